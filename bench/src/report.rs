//! The results of a case, as a table and as `target/bench.json`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use indicatif::HumanFloatCount;
use serde::Serialize;

/// Runs of each measurement; the median is reported.
const RUNS: usize = 5;
/// Runs where the speed changes by more from one run to the next than the limit allows.
const OFTEN: usize = 21;
const JSON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench.json");

/// One number, its reference, and whether it meets its limit.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    case: String,
    value: f64,
    unit: &'static str,
    /// The difference between the fastest and the slowest run, as a share of the median; `None`: measured once.
    spread: Option<f64>,
    #[serde(skip)]
    sample: Option<Sample>,
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
    /// The number as a share of the reference.
    share: f64,
}

impl Row {
    /// A number without reference or limit.
    pub(crate) fn new(case: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            case: case.into(),
            value,
            unit,
            spread: None,
            sample: None,
            reference: None,
            bar: None,
            holds: None,
        }
    }

    /// The median and the spread of repeated runs.
    pub(crate) fn of(case: impl Into<String>, sample: &Sample, unit: &'static str) -> Self {
        let row = Self::new(case, sample.median, unit);
        Self { spread: Some(sample.spread()), sample: Some(sample.clone()), ..row }
    }

    /// Adds a reference: `value` in the same unit, measured in the same run.
    pub(crate) fn against(mut self, what: impl Into<String>, value: f64) -> Self {
        self.reference = Some(Reference { what: what.into(), value, share: self.value / value });
        self
    }

    /// Adds a reference that was measured in turns with this number. The share is that of the median turn: the machine can change
    /// its speed from one turn to the next, and then the two medians may come from different turns.
    pub(crate) fn in_turns_with(self, what: impl Into<String>, reference: &Sample) -> Self {
        let share = self.sample.as_ref().and_then(|sample| sample.share_of(reference));
        let mut row = self.against(what, reference.median);
        if let (Some(reference), Some(share)) = (&mut row.reference, share) {
            reference.share = share;
        }
        row
    }

    /// Sets the limit: at least `bar` times the reference or, without a reference, at least `bar` itself.
    pub(crate) fn at_least(mut self, bar: f64) -> Self {
        (self.bar, self.holds) = (Some(self.limit("at least", bar)), Some(self.measured() >= bar));
        self
    }

    /// Sets the limit: at most `bar` times the reference or, without a reference, at most `bar` itself.
    pub(crate) fn at_most(mut self, bar: f64) -> Self {
        (self.bar, self.holds) = (Some(self.limit("at most", bar)), Some(self.measured() <= bar));
        self
    }

    /// What the limit is compared with.
    fn measured(&self) -> f64 {
        self.reference.as_ref().map_or(self.value, |reference| reference.share)
    }

    fn limit(&self, word: &str, bar: f64) -> String {
        match &self.reference {
            Some(_) => format!("{word} {bar} × reference"),
            None => format!("{word} {bar} {}", self.unit),
        }
    }

    fn cells(&self) -> [String; 8] {
        let reference = self.reference.as_ref().map(|it| format!("{} {}", it.what, number(it.value)));
        let share = self.reference.as_ref().map(|it| format!("{:.3} ×", it.share));
        let holds = self.holds.map(|holds| if holds { "yes" } else { "NO" }.to_owned());
        [
            self.case.clone(),
            number(self.value),
            self.unit.to_owned(),
            self.spread.map(|spread| format!("{:.0} %", spread * 100.0)).unwrap_or_default(),
            reference.unwrap_or_default(),
            share.unwrap_or_default(),
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

/// The rows as lines of text, with a heading.
pub(crate) fn table(rows: &[Row]) -> String {
    let head = ["case", "value", "unit", "spread", "reference", "share", "bar", "holds"].map(str::to_owned);
    let lines: Vec<_> = std::iter::once(head).chain(rows.iter().map(Row::cells)).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 8] = std::array::from_fn(width);
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

/// Repeated runs of one measurement.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    pub(crate) median: f64,
    /// In the order in which they were measured.
    runs: Vec<f64>,
}

impl Sample {
    /// `None` when nothing was measured.
    pub(crate) fn of(runs: Vec<f64>) -> Option<Self> {
        let mut sorted = runs.clone();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (sorted.get((sorted.len().checked_sub(1)?) / 2)?, sorted.get(sorted.len() / 2)?);
        Some(Self { median: f64::midpoint(*low, *high), runs })
    }

    /// The difference between the highest and the lowest value, as a share of the median.
    fn spread(&self) -> f64 {
        let high = self.runs.iter().copied().fold(f64::MIN, f64::max);
        let low = self.runs.iter().copied().fold(f64::MAX, f64::min);
        (high - low) / self.median
    }

    /// The median of the shares that the runs have of the runs of `reference` in the same turns.
    fn share_of(&self, reference: &Sample) -> Option<f64> {
        let shares = self.runs.iter().zip(&reference.runs).map(|(run, reference)| run / reference);
        Some(Sample::of(shares.collect())?.median)
    }
}

/// Measures several things some times each, in turns, so that a busy moment of the machine affects all of them.
pub(crate) struct Turns<const N: usize>([Vec<f64>; N]);

impl<const N: usize> Turns<N> {
    /// Five times each.
    pub(crate) async fn measure(run: impl AsyncFnMut(usize) -> Result<f64>) -> Result<[Sample; N]> {
        Self::repeat(RUNS, run).await
    }

    /// Often enough to tell a difference of a few percent.
    pub(crate) async fn measure_often(run: impl AsyncFnMut(usize) -> Result<f64>) -> Result<[Sample; N]> {
        Self::repeat(OFTEN, run).await
    }

    async fn repeat(runs: usize, mut run: impl AsyncFnMut(usize) -> Result<f64>) -> Result<[Sample; N]> {
        let mut turns = Self([const { Vec::new() }; N]);
        for _ in 0..runs {
            for (index, values) in turns.0.iter_mut().enumerate() {
                values.push(run(index).await?);
            }
        }
        let samples = turns.0.map(Sample::of);
        Ok(samples.map(|sample| sample.unwrap_or(Sample { median: 0.0, runs: Vec::new() })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_run() {
        let sample = Sample::of(vec![5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        assert_eq!((sample.median, sample.spread()), (3.0, 4.0 / 3.0));
        assert_eq!(Sample::of(vec![1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Sample::of(Vec::new()), None);
    }

    #[test]
    fn a_share_compares_runs_of_the_same_turn() {
        // In the third turn, between the two runs, the machine gets twice as fast.
        let reference = Sample::of(vec![100.0, 100.0, 100.0, 200.0, 200.0]).unwrap();
        let ours = Sample::of(vec![90.0, 90.0, 180.0, 180.0, 180.0]).unwrap();
        let row = Row::of("drain", &ours, "jobs/s").in_turns_with("raw", &reference);
        assert_eq!((row.value, row.reference.as_ref().unwrap().value), (180.0, 100.0));
        assert_eq!(row.at_least(0.95).holds, Some(false));
    }

    #[test]
    fn a_row_has_the_keys_that_readers_of_the_file_expect() {
        let row = Row::new("drain", 90.0, "jobs/s").against("raw", 100.0);
        let json = serde_json::to_value(row).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "case": "drain", "value": 90.0, "unit": "jobs/s", "spread": null,
                "reference": { "what": "raw", "value": 100.0, "share": 0.9 }, "bar": null, "holds": null,
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
