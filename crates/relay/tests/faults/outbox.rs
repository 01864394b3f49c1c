//! The outboxes that are tested: one for each strategy.

use pitwheel::engine::outbox::{Column, EntityLock, SourceTable, WhenSent};

use crate::support::load::insert_into_outbox;

/// A strategy, and the table that it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outbox {
    Shards,
    /// On the outbox of Pitwheel.
    Advisory,
    /// On a table of a team's own, whose delivered events are marked.
    RowLock,
}

impl Outbox {
    const ALL: [Outbox; 3] = [Outbox::Shards, Outbox::Advisory, Outbox::RowLock];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Outbox::Shards => "shards",
            Outbox::Advisory => "advisory",
            Outbox::RowLock => "row-lock",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Outbox> {
        Outbox::ALL.into_iter().find(|outbox| outbox.name() == name)
    }

    /// What the strategy needs in a migrated database.
    pub(crate) fn setup(self) -> &'static str {
        match self {
            Outbox::Shards => "",
            Outbox::Advisory => "create index on pitwheel.outbox (entity_key, id)",
            Outbox::RowLock => {
                "create table own_outbox (
                    id bigint generated always as identity primary key, entity_key text not null,
                    payload text, status text not null default 'NEW');
                create index on own_outbox (entity_key, id) where status = 'NEW'"
            }
        }
    }

    /// Writes events, as `Load` needs it.
    pub(crate) fn insert(self, topic: &str) -> String {
        match self {
            Outbox::Shards | Outbox::Advisory => insert_into_outbox(topic),
            Outbox::RowLock => "with written as (
                    insert into ledger select $1::text, n from generate_series($2::bigint, $3::bigint) as n returning number)
                insert into own_outbox (entity_key, payload) select $1::text, written.number::text from written order by written.number"
                .to_owned(),
        }
    }

    /// The number of events that wait.
    pub(crate) fn waiting(self) -> &'static str {
        match self {
            Outbox::Shards | Outbox::Advisory => "select count(*) from pitwheel.outbox",
            Outbox::RowLock => "select count(*) from own_outbox where status = 'NEW'",
        }
    }

    /// How entities are claimed, if the strategy claims them.
    pub(crate) fn entities(self) -> Option<(SourceTable, EntityLock)> {
        match self {
            Outbox::Shards => None,
            Outbox::Advisory => Some((SourceTable::pitwheel(), EntityLock::Advisory)),
            Outbox::RowLock => Some((own_table(), EntityLock::Row)),
        }
    }
}

fn own_table() -> SourceTable {
    SourceTable {
        schema: "public".to_owned(),
        table: "own_outbox".to_owned(),
        id: "id".to_owned(),
        entity_key: "entity_key".to_owned(),
        topic: Column::Constant("orders".to_owned()),
        kind: Column::Constant("step".to_owned()),
        payload: "payload".to_owned(),
        payload_is_bytes: false,
        headers: None,
        created_at: None,
        when_sent: WhenSent::Mark {
            column: "status".to_owned(),
            waiting: "NEW".to_owned(),
            sent: "SENT".to_owned(),
        },
    }
}
