//! The order checker: compares what a consumer received with what was committed.

use std::collections::{BTreeMap, HashMap, HashSet};

/// What was received: of each entity its numbers, in the order of arrival. The numbers of an entity start at 1 and have no gap.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    entities: HashMap<String, Vec<i64>>,
    /// How many different numbers arrived.
    pub(crate) distinct: usize,
    seen: HashSet<(String, i64)>,
}

/// How what was received differs from what was committed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Committed, and not received.
    pub(crate) lost: usize,
    /// First arrivals before one with a smaller number.
    pub(crate) early: usize,
    /// Received, and not committed.
    pub(crate) unknown: usize,
}

impl Arrivals {
    pub(crate) fn add(&mut self, entity: &str, number: i64) {
        self.entities.entry(entity.to_owned()).or_default().push(number);
        self.distinct += usize::from(self.seen.insert((entity.to_owned(), number)));
    }

    /// How many arrivals repeat an earlier one.
    pub(crate) fn repeated(&self) -> usize {
        self.entities.values().map(Vec::len).sum::<usize>() - self.distinct
    }

    /// How many first arrivals came before one with a smaller number, up to now.
    pub(crate) fn early(&self) -> usize {
        self.entities.values().map(|numbers| early(numbers)).sum()
    }

    /// What was committed and not received, of each entity.
    pub(crate) fn missing<'a>(&self, committed: &'a BTreeMap<String, i64>) -> Vec<(&'a str, Vec<i64>)> {
        let of_entity = |(entity, last): (&'a String, &i64)| {
            let is_missing = |number: &i64| !self.seen.contains(&(entity.clone(), *number));
            (&**entity, (1..=*last).filter(is_missing).collect::<Vec<i64>>())
        };
        committed.iter().map(of_entity).filter(|(_, numbers)| !numbers.is_empty()).collect()
    }

    /// Compares with what was committed: of each entity its last number.
    pub(crate) fn check(&self, committed: &BTreeMap<String, i64>) -> Verdict {
        let lost = self.missing(committed).iter().map(|(_, numbers)| numbers.len()).sum();
        let mut verdict = Verdict { lost, ..Verdict::default() };
        for (entity, numbers) in &self.entities {
            let last = committed.get(entity).copied().unwrap_or(0);
            verdict.unknown += numbers.iter().filter(|number| **number > last || **number < 1).count();
            verdict.early += early(numbers);
        }
        verdict
    }
}

/// First arrivals that came before one with a smaller number.
fn early(numbers: &[i64]) -> usize {
    let (mut seen, mut next, mut early) = (HashSet::new(), 1, 0);
    for number in numbers {
        if !seen.insert(*number) {
            continue;
        }
        while seen.contains(&next) {
            next += 1;
        }
        early += usize::from(*number > next);
    }
    early
}

mod tests {
    use super::*;

    fn verdict(arrived: &[i64], last: i64) -> Verdict {
        let mut arrivals = Arrivals::default();
        arrived.iter().for_each(|number| arrivals.add("a", *number));
        arrivals.check(&BTreeMap::from([("a".to_owned(), last)]))
    }

    #[test]
    fn repetitions_are_allowed_and_nothing_else() {
        assert_eq!(verdict(&[1, 2, 1, 2, 3, 2], 3), Verdict::default());
        assert_eq!(verdict(&[1, 2], 3), Verdict { lost: 1, ..Verdict::default() });
        assert_eq!(verdict(&[2, 3, 1, 2, 3], 3), Verdict { early: 2, ..Verdict::default() });
        assert_eq!(verdict(&[1, 2], 1), Verdict { unknown: 1, ..Verdict::default() });
    }
}
