//! The header: which position of a row belongs to which column.

use crate::csv::columns::Column;
use crate::csv::error::CsvError;
use crate::csv::options::CsvOptions;
use crate::csv::records::Record;

/// Names that are less alike are not suggested.
const ALIKE_MIN: f64 = 0.8;
/// Problems that one message names; a file of another kind has hundreds.
const PROBLEMS_MAX: usize = 5;

/// Where the columns are.
pub(crate) struct Mapping {
    /// The position of each column in a row; `None`: the file does not have it.
    pub(crate) positions: Vec<Option<usize>>,
    /// The number of fields of a row.
    pub(crate) width: usize,
}

/// Maps the names of the header to the columns.
pub(crate) fn map(header: Record<'_>, columns: &[Column], options: &CsvOptions) -> Result<Mapping, CsvError> {
    let problem = |problem: String| CsvError::Header { line: header.line, problem };
    check_renames(columns, options).map_err(CsvError::Option)?;
    if !header.fields().any(|name| is_known(name, columns, options)) {
        return Err(problem(format!(
            "no name of a column was found: the first line must be a header with {}",
            list(columns.iter().map(|column| column.name))
        )));
    }
    let mut positions = vec![None; columns.len()];
    let (mut problems, mut unknown) = (Vec::new(), Vec::new());
    for (at, name) in header.fields().enumerate() {
        match find(name, columns, options) {
            Some(column) if positions[column].is_some() => {
                problems.push(format!("column `{}` is there twice", columns[column].name));
            }
            Some(column) => positions[column] = Some(at),
            None => unknown.push(name.trim()),
        }
    }
    let missing: Vec<&str> = columns
        .iter()
        .zip(&positions)
        .filter(|(_, at)| at.is_none())
        .map(|(column, _)| column.name)
        .collect();
    for name in unknown.iter().filter(|_| !options.ignore_unknown_columns) {
        problems.push(match suggestion(name, &missing) {
            Some(column) => format!("column `{name}` is not known: did you mean `{column}`?"),
            None => format!("column `{name}` is not known: remove it, or ignore unknown columns"),
        });
    }
    for (column, _) in columns.iter().zip(&positions).filter(|(column, at)| column.required && at.is_none()) {
        problems.push(match suggestion(column.name, &unknown) {
            Some(name) if options.ignore_unknown_columns => {
                format!("column `{}` is missing: did you mean it by `{name}`?", column.name)
            }
            _ => format!("column `{}` is missing", column.name),
        });
    }
    if problems.is_empty() {
        return Ok(Mapping { positions, width: header.len() });
    }
    let more = problems.len().saturating_sub(PROBLEMS_MAX);
    problems.truncate(PROBLEMS_MAX);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    Err(problem(format!("{}{more}", problems.join("; "))))
}

/// Whether this name in a header belongs to a column.
pub(crate) fn is_known(name: &str, columns: &[Column], options: &CsvOptions) -> bool {
    find(name, columns, options).is_some()
}

fn find(name: &str, columns: &[Column], options: &CsvOptions) -> Option<usize> {
    let name = normal(name);
    let renamed = options.columns.iter().find(|(header, _)| normal(header) == name);
    let name = renamed.map_or(name, |(_, column)| normal(column));
    columns.iter().position(|column| column.name == name)
}

/// Refuses columns to map to that do not exist.
fn check_renames(columns: &[Column], options: &CsvOptions) -> Result<(), String> {
    let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
    let wrong = options.columns.values().find(|column| !names.contains(&normal(column).as_str()));
    match wrong {
        None => Ok(()),
        Some(wrong) => Err(match suggestion(wrong, &names) {
            Some(column) => format!("there is no column `{wrong}` to map to: did you mean `{column}`?"),
            None => format!("there is no column `{wrong}` to map to: use {}", list(names.into_iter())),
        }),
    }
}

/// Case, spaces and punctuation do not matter.
fn normal(name: &str) -> String {
    let word = |c: char| if c.is_alphanumeric() { c.to_lowercase().next().unwrap_or(c) } else { '_' };
    name.trim().chars().map(word).collect()
}

/// The most similar of these names.
fn suggestion<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    let name = normal(name);
    let scored = names.iter().map(|other| (strsim::jaro_winkler(&name, &normal(other)), *other));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(score, _)| *score >= ALIKE_MIN).map(|(_, other)| other)
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csv::columns::ENTRIES;
    use crate::csv::decode::Text;
    use crate::csv::records::Records;

    fn mapped(header: &str, options: &CsvOptions) -> Result<Mapping, String> {
        let text = Text::open(header.as_bytes(), None).map_err(|error| error.to_string())?;
        let mut records = Records::new(text, b',');
        let record = records.read().ok().flatten().ok_or("no header")?;
        map(record, &ENTRIES, options).map_err(|error| error.to_string())
    }

    #[test]
    fn columns_are_found_by_name_in_any_order_and_case() {
        let mapping = mapped("Measure, QUANTITY ,category,unit", &CsvOptions::default()).expect("a mapping");
        assert_eq!(mapping.positions[..4], [Some(3), Some(2), Some(1), Some(0)]);
        assert_eq!((mapping.positions[4], mapping.width), (None, 4));
    }

    #[test]
    fn a_misspelt_column_gets_a_suggestion() {
        let error = mapped("unit,category,quantty,measure", &CsvOptions::default()).err().unwrap_or_default();
        assert!(error.contains("column `quantty` is not known: did you mean `quantity`?"), "{error}");
        assert!(error.contains("column `quantity` is missing"), "{error}");
        let mut options = CsvOptions::default();
        options.columns.insert("Menge".into(), "quantitiy".into());
        let error = mapped("unit,category,Menge,measure", &options).err().unwrap_or_default();
        assert!(error.contains("did you mean `quantity`?"), "{error}");
    }

    #[test]
    fn other_names_can_be_mapped_and_unknown_ones_ignored() {
        let mut options = CsvOptions { ignore_unknown_columns: true, ..CsvOptions::default() };
        options.columns.insert("Menge".into(), "quantity".into());
        let mapping = mapped("unit,category,menge,measure,colour", &options).expect("a mapping");
        assert_eq!(mapping.positions[2], Some(2));
        options.ignore_unknown_columns = false;
        let error = mapped("unit,category,menge,measure,colour", &options).err().unwrap_or_default();
        assert!(error.contains("column `colour` is not known"), "{error}");
    }

    #[test]
    fn a_file_without_a_header_is_refused() {
        let error = mapped("Zürich,electricity,12,kWh", &CsvOptions::default()).err().unwrap_or_default();
        assert!(error.contains("line 1: no name of a column was found"), "{error}");
        let error =
            mapped("unit,unit,category,quantity,measure", &CsvOptions::default()).err().unwrap_or_default();
        assert!(error.contains("column `unit` is there twice"), "{error}");
    }
}
