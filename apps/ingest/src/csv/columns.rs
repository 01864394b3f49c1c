//! The columns of each kind of data.

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueType {
    /// A short text, part of an index.
    Name,
    /// A text.
    Text,
    Number,
    /// A whole number in this range.
    Integer(i16, i16),
    /// As in 2025-12-31.
    Date,
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) value: ValueType,
    pub(crate) required: bool,
}

const fn required(name: &'static str, value: ValueType) -> Column {
    Column { name, value, required: true }
}

const fn optional(name: &'static str, value: ValueType) -> Column {
    Column { name, value, required: false }
}

/// In the order of copy_entries.sql.
pub(crate) const ENTRIES: [Column; 10] = [
    required("unit", ValueType::Name),
    required("category", ValueType::Name),
    required("quantity", ValueType::Number),
    required("measure", ValueType::Name),
    optional("date", ValueType::Date),
    optional("name", ValueType::Text),
    optional("supplier", ValueType::Text),
    optional("location", ValueType::Text),
    optional("reference", ValueType::Text),
    optional("note", ValueType::Text),
];

/// In the order of copy_factors.sql.
pub(crate) const FACTORS: [Column; 6] = [
    required("category", ValueType::Name),
    required("measure", ValueType::Name),
    required("kg_co2e", ValueType::Number),
    optional("scope", ValueType::Integer(1, 3)),
    optional("source", ValueType::Text),
    optional("note", ValueType::Text),
];

/// In the order of copy_units.sql.
pub(crate) const UNITS: [Column; 3] = [
    required("code", ValueType::Name),
    required("name", ValueType::Text),
    optional("parent", ValueType::Name),
];
