//! A lane: what data is about, and how it comes in. Its jobs run one after the other.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_postgres::Row;
use utoipa::ToSchema;

use crate::csv::columns::{self, Column};
use crate::error::Error;

/// What the data of a lane is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = IngestTarget)]
pub enum Target {
    /// What was used: quantities by unit and category.
    Entries,
    /// What a quantity emits.
    Factors,
    /// Organisational units.
    Units,
}

/// How the data of a lane comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = IngestMethod)]
pub enum Method {
    /// An uploaded file.
    Csv,
    /// A source that is read: a URL or a file.
    Api,
    /// Computed from other data.
    Computed,
}

impl Target {
    /// As in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Target::Entries => "entries",
            Target::Factors => "factors",
            Target::Units => "units",
        }
    }
}

impl Method {
    /// As in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Csv => "csv",
            Method::Api => "api",
            Method::Computed => "computed",
        }
    }
}

/// A lane. Parts that are `None` are equal to each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = IngestLane)]
#[serde(deny_unknown_fields)]
pub struct Lane {
    /// The module, such as `travel`.
    #[serde(default)]
    pub module: Option<String>,
    /// The data entry type within the module, such as `flights`; null: all of the module.
    #[serde(default)]
    pub entry_type: Option<String>,
    /// What the data is.
    pub target: Target,
    /// How it comes in.
    pub method: Method,
    /// The year; null: every year.
    #[serde(default)]
    pub year: Option<i16>,
}

/// Which rows the data of a lane has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dataset {
    Entries,
    Factors,
    Units,
    Emissions,
}

impl Lane {
    /// Refuses parts that cannot be stored and combinations that have no meaning.
    pub(crate) fn check(&self) -> Result<(), Error> {
        check_name("module", self.module.as_deref())?;
        check_name("entry_type", self.entry_type.as_deref())?;
        if self.year.is_some_and(|year| !(1900..=2999).contains(&year)) {
            return Err(Error::Invalid("`year` is not from 1900 to 2999".into()));
        }
        if self.method == Method::Computed && self.target != Target::Entries {
            return Err(Error::Invalid(
                "only `entries` can be computed: choose the method `csv` or `api`".into(),
            ));
        }
        if self.entry_type.is_some() && self.module.is_none() {
            return Err(Error::Invalid("an entry type belongs to a module: name the module too".into()));
        }
        Ok(())
    }

    pub(crate) fn dataset(&self) -> Dataset {
        match (self.target, self.method) {
            (Target::Entries, Method::Computed) => Dataset::Emissions,
            (Target::Entries, _) => Dataset::Entries,
            (Target::Factors, _) => Dataset::Factors,
            (Target::Units, _) => Dataset::Units,
        }
    }

    /// The lane as the engine knows it: module, entry type, target, method, year.
    pub fn key(&self) -> Value {
        json!([self.module, self.entry_type, self.target.as_str(), self.method.as_str(), self.year])
    }

    /// The lane of what is computed from the entries of this one.
    pub(crate) fn computed(&self) -> Lane {
        Lane { target: Target::Entries, method: Method::Computed, ..self.clone() }
    }

    pub(crate) fn read(row: &Row) -> Result<Lane, Error> {
        let (target, method): (&str, &str) = (row.get("target"), row.get("method"));
        let unknown =
            |what: &str| Error::Invalid(format!("`{what}` is of a newer program: use a newer program"));
        Ok(Lane {
            module: row.get("module"),
            entry_type: row.get("entry_type"),
            target: Target::from_str(target, false).map_err(|_| unknown(target))?,
            method: Method::from_str(method, false).map_err(|_| unknown(method))?,
            year: row.get("year"),
        })
    }
}

impl std::fmt::Display for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let part = |part: Option<&str>| part.unwrap_or("*").to_owned();
        let year = self.year.map_or_else(|| "*".to_owned(), |year| year.to_string());
        let (module, entry_type) = (part(self.module.as_deref()), part(self.entry_type.as_deref()));
        write!(f, "{module}/{entry_type}/{}/{}/{year}", self.target.as_str(), self.method.as_str())
    }
}

impl Dataset {
    /// The columns of its files; none for what is computed.
    pub(crate) fn columns(self) -> &'static [Column] {
        match self {
            Dataset::Entries => &columns::ENTRIES,
            Dataset::Factors => &columns::FACTORS,
            Dataset::Units => &columns::UNITS,
            Dataset::Emissions => &[],
        }
    }
}

/// Which lanes to list. `None` takes all.
#[derive(Debug, Clone, Default)]
pub struct LaneFilter {
    /// The module.
    pub module: Option<String>,
    /// The entry type.
    pub entry_type: Option<String>,
    /// The target.
    pub target: Option<Target>,
    /// The method.
    pub method: Option<Method>,
    /// The year.
    pub year: Option<i16>,
}

fn check_name(what: &str, name: Option<&str>) -> Result<(), Error> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    match name {
        Some(name) if name.is_empty() || name.len() > 63 || !name.chars().all(is_part) => Err(
            Error::Invalid(format!("`{what}` is `{name}`: use 1 to 63 letters, digits, `_`, `-` and `.`")),
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_keeps_its_parts_and_its_nulls() {
        let lane = Lane {
            module: Some("travel".into()),
            entry_type: None,
            target: Target::Factors,
            method: Method::Api,
            year: None,
        };
        assert_eq!(lane.key(), json!(["travel", null, "factors", "api", null]));
        assert_eq!(lane.to_string(), "travel/*/factors/api/*");
        assert!(lane.check().is_ok());
    }

    #[test]
    fn lanes_without_meaning_are_refused() {
        let lane = Lane {
            module: Some("travel".into()),
            entry_type: None,
            target: Target::Entries,
            method: Method::Csv,
            year: Some(2025),
        };
        for wrong in [
            Lane { module: Some("a b".into()), ..lane.clone() },
            Lane { module: Some(String::new()), ..lane.clone() },
            Lane { year: Some(25), ..lane.clone() },
            Lane { target: Target::Factors, method: Method::Computed, ..lane.clone() },
            Lane { module: None, entry_type: Some("flights".into()), ..lane.clone() },
        ] {
            assert!(wrong.check().is_err(), "{wrong}");
        }
        assert!(lane.check().is_ok());
    }
}
