//! A table of a team's own as an outbox: the names of its columns.
//!
//! Names are put into the statements of `sql/outbox` as quoted identifiers, and constants as quoted literals; nothing else is.

use tokio_postgres::types::Type;

use crate::error::Error;
use crate::postgres::{Params, Sql, query};

const SENT_BY_DELETE: &str = include_str!("../../../sql/outbox/sent_by_delete.sql");
const SENT_BY_MARK: &str = include_str!("../../../sql/outbox/sent_by_mark.sql");

/// The longest identifier of Postgres.
const NAME_BYTES_MAX: usize = 63;
/// Braces would be taken for a place in a statement; Postgres has no NUL.
const NOT_ALLOWED: [char; 3] = ['\0', '{', '}'];

/// Where a value of an event comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Column {
    /// From this column.
    Named(String),
    /// The same for all events.
    Constant(String),
}

/// What becomes of an event that was delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhenSent {
    /// Its row is deleted.
    Delete,
    /// A column changes from one value to another. Rows with other values are not events to send.
    Mark {
        /// The column, of the type text.
        column: String,
        /// Its value while the event waits.
        waiting: String,
        /// Its value when the event was delivered.
        sent: String,
    },
}

/// A table whose rows are events. It needs an index on the columns of the key and the id, in this order; if delivered rows stay, on
/// those that wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceTable {
    /// The schema.
    pub schema: String,
    /// The table.
    pub table: String,
    /// The column with the order of the events: a bigint or an integer that a sequence assigns.
    pub id: String,
    /// The column with the key of the entity, of the type text.
    pub entity_key: String,
    /// The topic.
    pub topic: Column,
    /// What happened.
    pub kind: Column,
    /// The column with the payload.
    pub payload: String,
    /// Whether the payload is of the type bytea. Otherwise it is sent as text: for the types text, json and jsonb.
    pub payload_is_bytes: bool,
    /// The column with more headers, of the type jsonb.
    pub headers: Option<String>,
    /// The column with the time at which an event was written, of the type timestamptz.
    pub created_at: Option<String>,
    /// What becomes of delivered rows.
    pub when_sent: WhenSent,
}

impl SourceTable {
    /// The outbox of Pitwheel itself. It needs an index that shards do not: `create index concurrently on pitwheel.outbox (entity_key, id)`.
    pub fn pitwheel() -> SourceTable {
        let named = |name: &str| Column::Named(name.to_owned());
        SourceTable {
            schema: "pitwheel".to_owned(),
            table: "outbox".to_owned(),
            id: "id".to_owned(),
            entity_key: "entity_key".to_owned(),
            topic: named("topic"),
            kind: named("type"),
            payload: "payload".to_owned(),
            payload_is_bytes: true,
            headers: Some("headers".to_owned()),
            created_at: Some("created_at".to_owned()),
            when_sent: WhenSent::Delete,
        }
    }

    /// The name under which claims and parked entities of this table are stored.
    pub fn name(&self) -> String {
        format!("{}.{}", self.schema, self.table)
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let mut names = vec![&self.schema, &self.table, &self.id, &self.entity_key, &self.payload];
        names.extend(self.headers.iter().chain(&self.created_at));
        for column in [&self.topic, &self.kind] {
            match column {
                Column::Named(name) => names.push(name),
                Column::Constant(value) => check_constant(value)?,
            }
        }
        if let WhenSent::Mark { column, waiting, sent } = &self.when_sent {
            names.push(column);
            check_constant(waiting)?;
            check_constant(sent)?;
            if waiting == sent {
                return Err(Error::Invalid(format!(
                    "waiting and sent events have the same mark `{sent}`: give two values"
                )));
            }
        }
        names.into_iter().try_for_each(|name| check_name(name))
    }

    /// The statement with the names of this table in it.
    pub(super) fn statement(&self, template: &str) -> String {
        let column = |name: &str| format!("source.{}", identifier(name));
        let value = |from: &Column| match from {
            Column::Named(name) => format!("{}::text", column(name)),
            Column::Constant(value) => format!("{}::text", literal(value)),
        };
        let table = format!("{}.{}", identifier(&self.schema), identifier(&self.table));
        let payload = match self.payload_is_bytes {
            true => column(&self.payload),
            false => format!("convert_to({}::text, 'UTF8')", column(&self.payload)),
        };
        let headers = self.headers.as_deref().map_or("null::jsonb".to_owned(), column);
        let created_at = match self.created_at.as_deref().map(column) {
            Some(column) => format!("coalesce({column}, clock_timestamp())"),
            None => "clock_timestamp()".to_owned(),
        };
        let (waiting, finish) = match &self.when_sent {
            WhenSent::Delete => ("true".to_owned(), SENT_BY_DELETE.to_owned()),
            WhenSent::Mark { column: mark, waiting, sent } => (
                format!("{} = {}", column(mark), literal(waiting)),
                SENT_BY_MARK.replace("{mark}", &identifier(mark)).replace("{sent}", &literal(sent)),
            ),
        };
        // Names cannot contain braces, so no replacement makes another one.
        template
            .replace("{finish}", &finish)
            .replace("{table}", &table)
            .replace("{id}", &identifier(&self.id))
            .replace("{key}", &identifier(&self.entity_key))
            .replace("{topic}", &value(&self.topic))
            .replace("{type}", &value(&self.kind))
            .replace("{payload}", &payload)
            .replace("{headers}", &headers)
            .replace("{created_at}", &created_at)
            .replace("{waiting}", &waiting)
    }

    /// Refuses a table that does not exist, or without the index that claims need, or with events that may have no key or no id.
    pub(super) async fn check_index(&self, client: &impl Sql) -> Result<(), Error> {
        let table = format!("{}.{}", identifier(&self.schema), identifier(&self.table));
        let params: Params = &[(&table, Type::TEXT), (&self.entity_key, Type::TEXT), (&self.id, Type::TEXT)];
        let rows = query(client, include_str!("../../../sql/outbox/has_entity_index.sql"), params).await?;
        let found = |at: usize| rows.first().is_some_and(|row| row.get(at));
        let (has_table, has_index, has_key, has_id) = (found(0), found(1), found(2), found(3));
        let (name, key, id) = (self.name(), identifier(&self.entity_key), identifier(&self.id));
        let may_be_null = |what: &str, column: &str| {
            format!(
                "the {what} of table `{name}` may be null, and such events would wait for ever: run \
                 `alter table {table} alter column {column} set not null`"
            )
        };
        let problem = match (has_table, has_index, has_key, has_id) {
            (true, true, true, true) => return Ok(()),
            (false, ..) => format!("table `{name}` does not exist: check its name"),
            (_, false, ..) => format!(
                "table `{name}` has no index for claims: run `create index concurrently on {table} ({key}, {id})`"
            ),
            (_, _, false, _) => may_be_null("entity key", &key),
            (.., false) => may_be_null("id", &id),
        };
        Err(Error::Invalid(problem))
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(NOT_ALLOWED) {
        return Err(Error::Invalid(format!(
            "`{}` is not the name of a table or column: 1 to {NAME_BYTES_MAX} bytes, without braces",
            name.escape_debug()
        )));
    }
    Ok(())
}

fn check_constant(value: &str) -> Result<(), Error> {
    if value.is_empty() || value.len() > 249 || value.contains(NOT_ALLOWED) {
        return Err(Error::Invalid(format!(
            "constant `{}` has {} bytes, it may have 1 to 249, without braces",
            value.escape_debug(),
            value.len()
        )));
    }
    Ok(())
}

/// A quoted identifier.
fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A quoted literal, in the form that does not depend on the server's settings.
fn literal(value: &str) -> String {
    format!("E'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_constants_are_quoted() {
        let source = SourceTable {
            table: "my \"outbox\"; drop table x".to_owned(),
            topic: Column::Constant("it's \\ a topic".to_owned()),
            ..SourceTable::pitwheel()
        };
        assert!(source.check().is_ok());
        assert_eq!(
            source.statement("select {topic} from {table}"),
            r#"select E'it\'s \\ a topic'::text from "pitwheel"."my ""outbox""; drop table x""#
        );
    }

    #[test]
    fn names_that_could_be_placeholders_are_refused() {
        for name in ["", "{table}", "a\0b", &"x".repeat(64)] {
            let source = SourceTable { id: name.to_owned(), ..SourceTable::pitwheel() };
            assert!(source.check().is_err(), "{name}");
        }
    }
}
