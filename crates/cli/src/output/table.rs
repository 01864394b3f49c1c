//! Tables without lines, at most 100 characters wide.

use anstyle::{Ansi256Color, AnsiColor};
use comfy_table::presets::NOTHING;
use comfy_table::{Cell, CellAlignment, Color, ColumnConstraint, ContentArrangement, Row, Table};

use super::text::visible;

/// Wider tables wrap in an ordinary window.
const WIDTH: u16 = 100;

/// One column of a table: its title and its cells from top to bottom.
pub(crate) struct Column {
    title: &'static str,
    cells: Vec<String>,
    numeric: bool,
    cut: bool,
    optional: bool,
    colour: fn(&str) -> Option<AnsiColor>,
}

impl Column {
    pub(crate) fn new<T>(title: &'static str, rows: &[T], cell: impl Fn(&T) -> String) -> Column {
        Column {
            title,
            cells: rows.iter().map(|row| visible(&cell(row))).collect(),
            numeric: false,
            cut: false,
            optional: false,
            colour: |_| None,
        }
    }

    /// Aligns the column to the right.
    pub(crate) fn numeric(mut self) -> Column {
        self.numeric = true;
        self
    }

    /// Allows the column to be truncated when the table is too wide.
    pub(crate) fn cut(mut self) -> Column {
        self.cut = true;
        self
    }

    /// Leaves the column out when all of its cells are empty.
    pub(crate) fn optional(mut self) -> Column {
        self.optional = true;
        self
    }

    /// Sets the colour of a cell by its text.
    pub(crate) fn coloured(mut self, colour: fn(&str) -> Option<AnsiColor>) -> Column {
        self.colour = colour;
        self
    }

    fn cell(&self, at: usize) -> Cell {
        let text = self.cells.get(at).map_or("", String::as_str);
        let cell = Cell::new(text);
        match (self.colour)(text) {
            Some(colour) => cell.fg(Color::AnsiValue(Ansi256Color::from_ansi(colour).index())),
            None => cell,
        }
    }
}

/// The table as text. It has styles, which [`print`](super::print()) removes where they are not wanted.
pub(crate) fn render(mut columns: Vec<Column>) -> String {
    columns.retain(|column| !column.optional || column.cells.iter().any(|cell| !cell.is_empty()));
    let height = columns.first().map_or(0, |column| column.cells.len());
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH)
        .set_truncation_indicator("…")
        .enforce_styling()
        .set_header(columns.iter().map(|column| column.title));
    // The padding stays plain, so that it can be trimmed.
    table.style_text_only();
    for at in 0..height {
        let mut row = Row::from(columns.iter().map(|column| column.cell(at)));
        row.max_height(1);
        table.add_row(row);
    }
    for (column, drawn) in columns.iter().zip(table.column_iter_mut()) {
        drawn.set_padding((0, 2));
        if column.numeric {
            drawn.set_cell_alignment(CellAlignment::Right);
        }
        if !column.cut {
            drawn.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_table_truncates_only_columns_that_allow_it() {
        let rows = [("1", "short".to_owned()), ("9223372036854775807", "k".repeat(300))];
        let columns = vec![
            Column::new("ID", &rows, |row| row.0.to_owned()).numeric(),
            Column::new("KEY", &rows, |row| row.1.clone()).cut(),
            Column::new("NOTE", &rows, |_| String::new()).optional(),
        ];

        let text = render(columns);

        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("9223372036854775807  kkk") && text.contains('…'), "{text}");
        assert!(!text.contains("NOTE"), "{text}");
    }
}
