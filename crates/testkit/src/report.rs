//! What an exploration found: every run, and the ends they came to.

use std::collections::BTreeMap;
use std::fmt;

/// One schedule and its end.
#[derive(Debug, Clone)]
pub struct Run {
    schedule: Vec<String>,
    said: Vec<(String, String)>,
    end: String,
}

impl Run {
    pub(crate) fn new(schedule: Vec<String>, said: Vec<(String, String)>, end: String) -> Run {
        Run { schedule, said, end }
    }

    /// The end, as its query describes it.
    pub fn end(&self) -> &str {
        &self.end
    }

    /// What a step said (`session.label`); empty when it said nothing or was not taken.
    pub fn said(&self, label: &str) -> &str {
        let found = self.said.iter().find(|(said_by, _)| said_by == label);
        found.map_or("", |(_, said)| said)
    }

    /// Whether the one step was called before the other.
    pub fn before(&self, first: &str, second: &str) -> bool {
        let at = |label: &str| self.schedule.iter().position(|one| one == label);
        matches!((at(first), at(second)), (Some(first), Some(second)) if first < second)
    }

    /// Whether a session ended in an error.
    pub fn failed(&self) -> bool {
        self.said.iter().any(|(_, said)| said.starts_with("error"))
    }

    fn summary(&self) -> String {
        let said = self.said.iter().filter(|(_, said)| !said.is_empty());
        let said: Vec<String> = said.map(|(label, said)| format!("{label}={said}")).collect();
        format!("end `{}`  {}", self.end, said.join(" "))
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

    /// Panics with every bad end and a schedule that leads to it, if there is one.
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

    /// Panics unless some schedule fits: that the explorer can see what it is to see.
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
