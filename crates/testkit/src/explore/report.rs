//! What an exploration found: every run, and the ends of all runs.

use std::collections::BTreeMap;
use std::fmt;

/// One schedule, the outputs of its steps, and its end.
#[derive(Debug, Clone)]
pub struct Run {
    schedule: Vec<String>,
    outputs: Vec<(String, String)>,
    end: String,
}

impl Run {
    pub(crate) fn new(schedule: Vec<String>, outputs: Vec<(String, String)>, end: String) -> Run {
        Run { schedule, outputs, end }
    }

    /// The end, as its query describes it.
    pub fn end(&self) -> &str {
        &self.end
    }

    /// The output of a step (`session.label`); empty if it had none or the step did not run.
    pub fn output(&self, label: &str) -> &str {
        let found = self.outputs.iter().find(|(step, _)| step == label);
        found.map_or("", |(_, output)| output)
    }

    /// Whether the first step was started before the second. False unless both ran.
    pub fn before(&self, first: &str, second: &str) -> bool {
        let at = |label: &str| self.schedule.iter().position(|one| one == label);
        matches!((at(first), at(second)), (Some(first), Some(second)) if first < second)
    }

    /// Whether a session ended in an error.
    pub fn failed(&self) -> bool {
        self.outputs.iter().any(|(_, output)| output.starts_with("error"))
    }

    fn summary(&self) -> String {
        let outputs = self.outputs.iter().filter(|(_, output)| !output.is_empty());
        let outputs: Vec<String> = outputs.map(|(step, output)| format!("{step}={output}")).collect();
        format!("end `{}`  {}", self.end, outputs.join(" "))
    }
}

/// All runs of an exploration.
#[derive(Debug)]
pub struct Explored {
    title: &'static str,
    runs: Vec<Run>,
}

impl Explored {
    pub(crate) fn new(title: &'static str, runs: Vec<Run>) -> Explored {
        Explored { title, runs }
    }

    /// How many schedules there are.
    pub fn schedules(&self) -> usize {
        self.runs.len()
    }

    /// Panics if a run is bad, with every bad end and a schedule that leads to it.
    #[track_caller]
    pub fn never(&self, bad: impl Fn(&Run) -> bool) -> &Explored {
        let found = self.count(&bad);
        println!("{}: {} schedules, {found} bad", self.title, self.runs.len());
        assert!(
            found == 0,
            "{}: {found} of {} schedules end badly\n{}\nall ends:\n{self}",
            self.title,
            self.runs.len(),
            ends(self.runs.iter().filter(|run| bad(run)))
        );
        self
    }

    /// Panics unless some run is as expected: proves that the explorer can find such a run.
    #[track_caller]
    pub fn sometimes(&self, expected: impl Fn(&Run) -> bool) -> &Explored {
        let found = self.count(&expected);
        println!("{}: {} schedules, {found} as expected", self.title, self.runs.len());
        assert!(
            found > 0,
            "{}: none of {} schedules ends as expected\nall ends:\n{self}",
            self.title,
            self.runs.len()
        );
        self
    }

    fn count(&self, is: impl Fn(&Run) -> bool) -> usize {
        self.runs.iter().filter(|run| is(run)).count()
    }
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&ends(self.runs.iter()))
    }
}

/// Each end once, with how often it came and one schedule that leads to it.
fn ends<'a>(runs: impl Iterator<Item = &'a Run>) -> String {
    let mut ends: BTreeMap<String, (usize, &Run)> = BTreeMap::new();
    for run in runs {
        ends.entry(run.summary()).or_insert((0, run)).0 += 1;
    }
    let lines = ends.iter().map(|(summary, (count, run))| {
        format!("  {count:>4} × {summary}\n         for instance {}\n", run.schedule.join(" "))
    });
    lines.collect()
}
