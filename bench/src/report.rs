//! The results of a case, as a table and as `target/bench.json`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use indicatif::HumanFloatCount;
use serde::Serialize;

/// Runs of each measurement; the median is reported.
const RUNS: usize = 5;
const JSON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench.json");

/// One number, its reference, and whether it meets its limit.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    case: String,
    value: f64,
    unit: &'static str,
    /// The difference between the fastest and the slowest run, as a share of the median; `None`: measured once.
    spread: Option<f64>,
    reference: Option<Reference>,
    /// The limit in words, as in `at least 0.5 × reference`.
    bar: Option<String>,
    /// Whether the number meets the limit; `None`: there is no limit.
    holds: Option<bool>,
}

#[derive(Debug, Serialize)]
struct Reference {
    what: String,
    value: f64,
}

impl Row {
    /// A number without reference or limit.
    pub(crate) fn new(case: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { case: case.into(), value, unit, spread: None, reference: None, bar: None, holds: None }
    }

    /// Adds the spread of the runs.
    pub(crate) fn spread(mut self, sample: &Sample) -> Self {
        self.spread = Some(sample.spread());
        self
    }

    /// Adds a reference: `value` in the same unit, measured in the same run.
    pub(crate) fn against(mut self, what: impl Into<String>, value: f64) -> Self {
        self.reference = Some(Reference { what: what.into(), value });
        self
    }

    /// Sets the limit: at least `share` of the reference or, without a reference, at least `share` itself.
    pub(crate) fn at_least(mut self, share: f64) -> Self {
        let (bar, limit) = self.limit("at least", share);
        (self.bar, self.holds) = (Some(bar), Some(self.value >= limit));
        self
    }

    /// Sets the limit: at most `share` of the reference or, without a reference, at most `share` itself.
    pub(crate) fn at_most(mut self, share: f64) -> Self {
        let (bar, limit) = self.limit("at most", share);
        (self.bar, self.holds) = (Some(bar), Some(self.value <= limit));
        self
    }

    fn limit(&self, word: &str, share: f64) -> (String, f64) {
        match &self.reference {
            Some(reference) => (format!("{word} {share} × reference"), share * reference.value),
            None => (format!("{word} {share} {}", self.unit), share),
        }
    }

    fn cells(&self) -> [String; 7] {
        let reference = self.reference.as_ref().map(|it| format!("{} {}", it.what, number(it.value)));
        let holds = self.holds.map(|holds| if holds { "yes" } else { "NO" }.to_owned());
        [
            self.case.clone(),
            number(self.value),
            self.unit.to_owned(),
            self.spread.map(|spread| format!("{:.0} %", spread * 100.0)).unwrap_or_default(),
            reference.unwrap_or_default(),
            self.bar.clone().unwrap_or_default(),
            holds.unwrap_or_default(),
        ]
    }
}

/// Prints the rows and writes them to `target/bench.json`, which is overwritten.
pub(crate) fn publish(rows: &[Row]) -> Result<()> {
    print!("{}", table(rows));
    let path = Path::new(JSON);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, serde_json::to_string_pretty(rows)? + "\n").context("cannot write `target/bench.json`")
}

fn table(rows: &[Row]) -> String {
    let head = ["case", "value", "unit", "spread", "reference", "bar", "holds"].map(str::to_owned);
    let lines: Vec<_> = std::iter::once(head).chain(rows.iter().map(Row::cells)).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 7] = std::array::from_fn(width);
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if column == 1 { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// With three significant digits or more, and a comma between thousands.
fn number(value: f64) -> String {
    if value.abs() < 0.1 {
        return format!("{value:.4}");
    }
    if value.abs() < 100.0 {
        return format!("{value:.2}");
    }
    format!("{:.0}", HumanFloatCount(value))
}

/// The median of repeated runs, and the lowest and highest value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sample {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Sample {
    /// `None` when nothing was measured.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (low, high) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Self { median, low, high })
    }

    /// The difference between the highest and the lowest value, as a share of the median.
    pub(crate) fn spread(&self) -> f64 {
        (self.high - self.low) / self.median
    }
}

/// Measures several things five times each, in turns, so that a busy moment of the machine affects all of them.
pub(crate) struct Turns<const N: usize>([Vec<f64>; N]);

impl<const N: usize> Turns<N> {
    pub(crate) async fn measure(mut run: impl AsyncFnMut(usize) -> Result<f64>) -> Result<[Sample; N]> {
        let mut turns = Self([const { Vec::new() }; N]);
        for _ in 0..RUNS {
            for (index, values) in turns.0.iter_mut().enumerate() {
                values.push(run(index).await?);
            }
        }
        let samples = turns.0.map(Sample::of);
        Ok(samples.map(|sample| sample.unwrap_or(Sample { median: 0.0, low: 0.0, high: 0.0 })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_run() {
        let sample = Sample::of(vec![5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        assert_eq!(sample, Sample { median: 3.0, low: 1.0, high: 5.0 });
        assert_eq!(Sample::of(vec![1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Sample::of(Vec::new()), None);
    }

    #[test]
    fn a_row_has_the_keys_that_readers_of_the_file_expect() {
        let row = Row::new("drain", 90.0, "jobs/s").against("raw", 100.0);
        let json = serde_json::to_value(row).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "case": "drain", "value": 90.0, "unit": "jobs/s", "spread": null,
                "reference": { "what": "raw", "value": 100.0 }, "bar": null, "holds": null,
            })
        );
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(number(1_234_567.4), "1,234,567");
        assert_eq!(number(123.4), "123");
        assert_eq!(number(1.234), "1.23");
    }
}
