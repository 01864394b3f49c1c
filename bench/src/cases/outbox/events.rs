//! The events of all parts of the case.

use std::time::Duration;

/// Of every relay. Short, because one of them is killed.
pub(super) const LEASE: Duration = Duration::from_secs(5);

/// The statement that writes events with a payload of 200 bytes, numbered from `$1` to `$2`. Every part has a topic of its own: a
/// consumer reads its topic from the start.
pub(super) fn insert(topic: &str) -> String {
    format!(
        "insert into pitwheel.outbox (entity_key, topic, type, payload)
        select 'entity-' || n % 20000, '{topic}', 'changed', convert_to(rpad(n::text, 200), 'UTF8')
        from generate_series($1::bigint, $2::bigint) as n"
    )
}
