//! A table of a team's own as an outbox: its name and columns from the command line, their types from the database.

use std::collections::BTreeMap;

use clap::Args;
use pitwheel::NewEvent;
use pitwheel::engine::outbox::{Column, SourceTable, WhenSent};
use pitwheel::engine::{Pool, Sql};
use tokio_postgres::types::Type;

use crate::exit::CommandError;

/// What an event has, under the names of `pitwheel.outbox`.
const NAMES: [&str; 7] = ["id", "entity_key", "topic", "type", "payload", "headers", "created_at"];
/// What may be the same for all events.
const CONSTANTS: [&str; 2] = ["topic", "type"];

const ID: [&str; 3] = ["bigint", "integer", "smallint"];
const TEXT: [&str; 2] = ["text", "character varying"];
const PAYLOAD: [&str; 5] = ["bytea", "jsonb", "json", "text", "character varying"];

#[derive(Debug, Args)]
pub(crate) struct TableArgs {
    /// Send the rows of a table of your own, as in app.outbox; not with the strategy `shards`
    #[arg(long, value_name = "SCHEMA.TABLE", value_parser = parse_table, requires = "sink")]
    table: Option<TableName>,

    /// A column that has another name in your table than in pitwheel.outbox, as in payload=body; can be repeated
    #[arg(long = "column", value_name = "NAME=COLUMN", value_parser = parse_column, requires = "table")]
    columns: Vec<(String, String)>,

    /// The topic or type of all rows, if your table has no column for it, as in topic=orders; can be repeated
    #[arg(long = "constant", value_name = "NAME=VALUE", value_parser = parse_constant, requires = "table")]
    constants: Vec<(String, String)>,

    /// Mark delivered rows instead of deleting them: a column, its value while a row waits, and after
    #[arg(long, value_name = "COLUMN=WAITING,SENT", value_parser = parse_mark, requires = "table")]
    mark: Option<WhenSent>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct TableName {
    schema: String,
    table: String,
}

impl TableArgs {
    /// The table; `None` if it is `pitwheel.outbox`.
    pub(crate) async fn source(&self, pool: &Pool) -> anyhow::Result<Option<SourceTable>> {
        let Some(TableName { schema, table }) = &self.table else { return Ok(None) };
        let sql = include_str!("../../sql/table_columns.sql");
        let rows = pool.get().await?.rows_once(sql, &[(schema, Type::TEXT), (table, Type::TEXT)]).await?;
        let types = rows.iter().map(|row| (row.get("name"), row.get("type"))).collect();
        Ok(Some(self.resolve(&types)?))
    }

    pub(crate) fn is_given(&self) -> bool {
        self.table.is_some()
    }

    /// The table as a source of events. `types` are the types of its columns, by name.
    fn resolve(&self, types: &BTreeMap<String, String>) -> Result<SourceTable, CommandError> {
        let Some(TableName { schema, table }) = self.table.clone() else {
            return Ok(SourceTable::pitwheel());
        };
        let columns = Columns {
            table: format!("{schema}.{table}"),
            types,
            named: once("--column", &self.columns)?,
            constants: once("--constant", &self.constants)?,
        };
        if types.is_empty() {
            let problem = format!("table `{}` does not exist: check its name", columns.table);
            return Err(CommandError::usage(problem));
        }
        let constant = |name: &str| columns.constants.get(name).copied().unwrap_or("any");
        let example = NewEvent::tombstone("any", constant("topic"), constant("type"));
        example.check().map_err(|error| CommandError::usage(error.to_string()))?;
        if let Some(WhenSent::Mark { column, .. }) = &self.mark {
            columns.check_mark(column)?;
        }
        let payload = columns.required("payload", &PAYLOAD)?;
        Ok(SourceTable {
            id: columns.required("id", &ID)?,
            entity_key: columns.required("entity_key", &TEXT)?,
            topic: columns.or_constant("topic")?,
            kind: columns.or_constant("type")?,
            payload_is_bytes: types.get(&payload).is_some_and(|of| of == "bytea"),
            payload,
            headers: columns.optional("headers", "jsonb")?,
            created_at: columns.optional("created_at", "timestamp with time zone")?,
            when_sent: self.mark.clone().unwrap_or(WhenSent::Delete),
            schema,
            table,
        })
    }
}

/// The columns of a table, and what the command line says about them.
struct Columns<'a> {
    table: String,
    types: &'a BTreeMap<String, String>,
    named: BTreeMap<&'a str, &'a str>,
    constants: BTreeMap<&'a str, &'a str>,
}

impl Columns<'_> {
    /// The column with this part of an event, of one of these types.
    fn required(&self, name: &str, allowed: &[&str]) -> Result<String, CommandError> {
        let column = self.find(name)?;
        self.check_type(name, &column, allowed)?;
        Ok(column)
    }

    fn or_constant(&self, name: &str) -> Result<Column, CommandError> {
        match self.constants.get(name) {
            Some(_) if self.named.contains_key(name) => Err(CommandError::usage(format!(
                "`{name}` is a column and a constant: give `--column` or `--constant`"
            ))),
            Some(value) => Ok(Column::Constant((*value).to_owned())),
            None => Ok(Column::Named(self.find(name)?)),
        }
    }

    /// A part of an event that a table need not have. A column that only happens to have its name is not used.
    fn optional(&self, name: &str, allowed: &str) -> Result<Option<String>, CommandError> {
        if self.named.contains_key(name) {
            return self.required(name, &[allowed]).map(Some);
        }
        Ok(self.types.get(name).filter(|of| *of == allowed).map(|_| name.to_owned()))
    }

    fn find(&self, name: &str) -> Result<String, CommandError> {
        let column = self.named.get(name).copied().unwrap_or(name);
        if self.types.contains_key(column) {
            return Ok(column.to_owned());
        }
        let constant = match CONSTANTS.contains(&name) {
            true => format!(", or give `--constant {name}=VALUE`"),
            false => String::new(),
        };
        Err(CommandError::usage(format!(
            "table `{}` has no column `{column}`: name it with `--column {name}=COLUMN`{constant}",
            self.table
        )))
    }

    fn check_type(&self, name: &str, column: &str, allowed: &[&str]) -> Result<(), CommandError> {
        match self.types.get(column) {
            Some(found) if !allowed.contains(&&**found) => Err(CommandError::usage(format!(
                "column `{column}` of `{}` has the type `{found}`: `{name}` needs {}",
                self.table,
                allowed.join(" or ")
            ))),
            _ => Ok(()),
        }
    }

    fn check_mark(&self, column: &str) -> Result<(), CommandError> {
        if self.types.contains_key(column) {
            return Ok(());
        }
        let problem = format!("table `{}` has no column `{column}`: check `--mark`", self.table);
        Err(CommandError::usage(problem))
    }
}

/// The values by name, each given once.
fn once<'a>(flag: &str, pairs: &'a [(String, String)]) -> Result<BTreeMap<&'a str, &'a str>, CommandError> {
    let mut values = BTreeMap::new();
    for (name, value) in pairs {
        if values.insert(&**name, &**value).is_some() {
            return Err(CommandError::usage(format!("`{flag} {name}=…` is given twice: give it once")));
        }
    }
    Ok(values)
}

fn parse_table(text: &str) -> Result<TableName, String> {
    match text.split_once('.') {
        Some((schema, table)) if !schema.is_empty() && !table.is_empty() => {
            Ok(TableName { schema: schema.to_owned(), table: table.to_owned() })
        }
        _ => Err("give the schema and the table, as in app.outbox".to_owned()),
    }
}

fn parse_column(text: &str) -> Result<(String, String), String> {
    parse_pair(text, &NAMES)
}

fn parse_constant(text: &str) -> Result<(String, String), String> {
    parse_pair(text, &CONSTANTS)
}

fn parse_pair(text: &str, names: &[&str]) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if names.contains(&name) && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err(format!("give NAME=VALUE, where NAME is one of {}", names.join(", "))),
    }
}

fn parse_mark(text: &str) -> Result<WhenSent, String> {
    let parts = text.split_once('=').and_then(|(column, values)| Some((column, values.split_once(',')?)));
    match parts {
        Some((column, (waiting, sent))) if ![column, waiting, sent].contains(&"") && waiting != sent => {
            Ok(WhenSent::Mark {
                column: column.to_owned(),
                waiting: waiting.to_owned(),
                sent: sent.to_owned(),
            })
        }
        _ => Err("give a column and two different values, as in status=NEW,SENT".to_owned()),
    }
}
