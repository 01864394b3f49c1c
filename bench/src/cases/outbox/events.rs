//! The events of all parts of the case.

use std::time::Duration;

/// Of every relay. Short, because one of them is killed.
pub(super) const LEASE: Duration = Duration::from_secs(5);

/// Events with a payload of 200 bytes, numbered from `$1` to `$2`.
pub(super) const INSERT: &str = "insert into pitwheel.outbox (entity_key, topic, type, payload)
    select 'entity-' || n % 20000, 'bench', 'changed', convert_to(rpad(n::text, 200), 'UTF8')
    from generate_series($1::bigint, $2::bigint) as n";
