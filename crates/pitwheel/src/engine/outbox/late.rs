//! Events that are committed late: with an id below one that was already read.
//!
//! An id is drawn when an event is inserted, and the event is visible when its transaction commits. So an event can appear below what a
//! relay has read. To find it without reading everything again, the relay knows the **writers**: transactions that hold a lock on
//! the outbox because they have inserted. A writer that was not listed the last time has drawn its ids after that; so each
//! writer has an id above which all of its events are. When a writer has ended, the events above that id are looked at once more.
//!
//! A floor taken from transaction ids would not do: a transaction can hold an event's id before it has a transaction id.

use std::collections::HashMap;

use tokio_postgres::types::Type;

use crate::error::Error;
use crate::postgres::{Params, Sql};

/// What to look at after the writers were listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    /// An event that appeared since the last look is above this id.
    pub(super) above: i64,
    /// After this look, no event can appear up to this id.
    pub(super) floor: i64,
    /// The ids have gone back: the database was replaced by one that is behind, so what was read means nothing.
    pub(super) went_back: bool,
}

/// The writers that have not ended.
#[derive(Debug, Default)]
pub(super) struct Writers {
    /// The last id that was drawn when they were listed.
    last_id: i64,
    /// Each with the id above which its events are.
    open: HashMap<String, i64>,
    /// Where a look has to begin that was not finished.
    unfinished: Option<i64>,
}

impl Writers {
    /// Takes the last id, and the writers that were listed after it was read, each with whether it is prepared.
    pub(super) fn listed(&mut self, last_id: i64, listed: Vec<(String, bool)>) -> Look {
        if self.is_behind(last_id) {
            *self = Writers::default();
            return Look { above: 0, floor: 0, went_back: true };
        }
        let before = self.last_id;
        let oldest = self.open.values().copied().fold(before, i64::min);
        let mut open = HashMap::new();
        for (writer, prepared) in listed {
            // A transaction that is prepared gets another name; it may be any of those known before.
            let above = if prepared { oldest } else { before };
            let above = self.open.remove(&writer).unwrap_or(above);
            open.insert(writer, above);
        }
        // What is left has ended.
        let above = self.open.values().copied().fold(before, i64::min);
        let above = self.unfinished.map_or(above, |unfinished| unfinished.min(above));
        let floor = open.values().copied().fold(last_id, i64::min);
        (self.open, self.last_id, self.unfinished) = (open, last_id, Some(above));
        Look { above, floor, went_back: false }
    }

    /// Whether a database with this last id is another one than that whose writers were listed.
    pub(super) fn is_behind(&self, last_id: i64) -> bool {
        last_id < self.last_id
    }

    /// A part of the look was done: the next one goes on from this id, unless a writer that has ended by then asks for more.
    pub(super) fn looked_up_to(&mut self, id: i64) {
        self.unfinished = Some(id);
    }

    /// The look was finished.
    pub(super) fn looked(&mut self) {
        self.unfinished = None;
    }
}

/// The last id that was drawn.
pub(super) async fn last_id(client: &impl Sql) -> Result<i64, Error> {
    let rows = client.rows(include_str!("../../../sql/outbox/last_id.sql"), &[]).await?;
    rows.first()
        .map(|row| row.get(0))
        .ok_or_else(|| Error::Invalid("the sequence of the outbox returned no row".into()))
}

/// The writers, each with whether it is prepared. Call it after [`last_id`].
pub(super) async fn writers(client: &impl Sql) -> Result<Vec<(String, bool)>, Error> {
    let rows = client.rows(include_str!("../../../sql/outbox/writers.sql"), &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// A part of a shard to look at: above one id, up to another.
pub(super) struct Part {
    pub(super) shard: i16,
    pub(super) above: i64,
    pub(super) up_to: i64,
}

/// The first event of each part, with its shard.
pub(super) async fn look_back(client: &impl Sql, parts: &[Part]) -> Result<Vec<(i16, i64)>, Error> {
    let shards: Vec<i16> = parts.iter().map(|part| part.shard).collect();
    let above: Vec<i64> = parts.iter().map(|part| part.above).collect();
    let up_to: Vec<i64> = parts.iter().map(|part| part.up_to).collect();
    let params: Params =
        &[(&shards, Type::INT2_ARRAY), (&above, Type::INT8_ARRAY), (&up_to, Type::INT8_ARRAY)];
    let rows = client.rows(include_str!("../../../sql/outbox/look_back.sql"), params).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(names: &[&str]) -> Vec<(String, bool)> {
        names.iter().map(|name| ((*name).to_owned(), false)).collect()
    }

    /// Lists, and finishes the look. Returns where it began and the floor after it.
    fn look(writers: &mut Writers, last_id: i64, names: &[&str]) -> (i64, i64) {
        let look = writers.listed(last_id, open(names));
        writers.looked();
        (look.above, look.floor)
    }

    #[test]
    fn the_first_look_is_at_everything() {
        assert_eq!(look(&mut Writers::default(), 100, &["a"]), (0, 0));
    }

    #[test]
    fn without_writers_only_what_is_new_is_looked_at() {
        let mut writers = Writers::default();
        look(&mut writers, 100, &[]);
        assert_eq!(look(&mut writers, 200, &[]), (100, 200));
    }

    #[test]
    fn a_long_writer_is_looked_for_once_and_keeps_the_floor() {
        let mut writers = Writers::default();
        look(&mut writers, 100, &[]);
        assert_eq!(look(&mut writers, 200, &["long"]), (100, 100));
        assert_eq!(look(&mut writers, 300, &["long", "short"]), (200, 100));
        assert_eq!(look(&mut writers, 400, &["long"]), (200, 100), "the short one has ended");
        assert_eq!(look(&mut writers, 500, &["long"]), (400, 100));
        assert_eq!(look(&mut writers, 600, &[]), (100, 600), "the long one has ended");
    }

    #[test]
    fn a_look_that_failed_is_repeated() {
        let mut writers = Writers::default();
        look(&mut writers, 100, &[]);
        look(&mut writers, 200, &["a"]);
        assert_eq!(writers.listed(300, open(&[])).above, 100);
        assert_eq!(look(&mut writers, 400, &[]), (100, 400));
    }

    #[test]
    fn a_long_look_goes_on_where_it_stopped() {
        let mut writers = Writers::default();
        look(&mut writers, 100, &["long"]);
        assert_eq!(writers.listed(50_000_000, open(&["short"])).above, 0);
        writers.looked_up_to(20_000_000);
        assert_eq!(writers.listed(50_000_100, open(&["short"])).above, 20_000_000);
        writers.looked_up_to(40_000_000);
        assert_eq!(writers.listed(50_000_200, open(&[])).above, 100, "the short one has ended");
        writers.looked_up_to(40_000_000);
        assert_eq!(look(&mut writers, 50_000_300, &[]), (40_000_000, 50_000_300));
    }

    #[test]
    fn a_prepared_transaction_may_be_any_that_was_open() {
        let mut writers = Writers::default();
        look(&mut writers, 100, &[]);
        look(&mut writers, 200, &["a"]);
        look(&mut writers, 300, &["a"]);
        let prepared = writers.listed(400, vec![("-1/7".to_owned(), true)]);
        assert_eq!((prepared.above, prepared.floor), (100, 100));
        writers.looked();
        assert_eq!(look(&mut writers, 500, &[]), (100, 500));
    }

    #[test]
    fn ids_that_go_back_start_over() {
        let mut writers = Writers::default();
        look(&mut writers, 100, &[]);
        assert!(writers.listed(50, open(&[])).went_back);
        assert_eq!(look(&mut writers, 60, &[]), (0, 60));
    }
}
