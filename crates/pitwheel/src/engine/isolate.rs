//! Writing many rows together although Postgres refuses some of them: what it refuses is bisected until the row that it refuses stands
//! alone. That row is left for a later look: it must not hold up the others.

use crate::error::{DatabaseError, Error};

/// Refused statements per look, so that one stays short however many rows are refused. About half as many rows are passed.
const REFUSALS_MAX: usize = 100;
/// Statements per look that waited for a row that another transaction has locked, each for up to 200 ms.
const WAITS_MAX: usize = 12;

/// The statements of a look that have failed. A look isolates at least one row: both limits are larger than the number of halvings of a
/// page.
#[derive(Default)]
pub(super) struct Failures {
    refusals: usize,
    waits: usize,
}

impl Failures {
    fn are_enough(&self) -> bool {
        self.refusals >= REFUSALS_MAX || self.waits >= WAITS_MAX
    }
}

/// The parts in which rows are written, in their order.
pub(super) struct Parts<'a, T> {
    /// What is not written yet. The next part is the last one.
    left: Vec<&'a [T]>,
    refused: Vec<&'a T>,
    problem: Option<DatabaseError>,
    failures: &'a mut Failures,
}

impl<'a, T> Parts<'a, T> {
    pub(super) fn of(rows: &'a [T], failures: &'a mut Failures) -> Parts<'a, T> {
        Parts { left: vec![rows], refused: Vec::new(), problem: None, failures }
    }

    /// The next part to write. `None`: all are written or were refused, or enough statements of this look have failed.
    pub(super) fn next(&mut self) -> Option<&'a [T]> {
        match self.failures.are_enough() {
            true => None,
            false => self.left.pop(),
        }
    }

    /// Bisects a part that Postgres refused or could not read, or that waited for too long. Returns an error that would meet every part.
    pub(super) fn failed(&mut self, part: &'a [T], error: Error) -> Result<(), Error> {
        match error {
            Error::Database(error) if error.concerns_rows() => {
                self.failures.waits += usize::from(error.is_locked());
                self.failures.refusals += usize::from(!error.is_locked());
                self.problem = Some(error);
            }
            error => return Err(error),
        }
        match part {
            [only] => self.refused.push(only),
            _ => {
                let (first, rest) = part.split_at(part.len() / 2);
                self.left.extend([rest, first]);
            }
        }
        Ok(())
    }

    /// The rows that were refused, and the last error.
    pub(super) fn refused(&self) -> Option<(&[&'a T], &DatabaseError)> {
        self.problem.as_ref().filter(|_| !self.refused.is_empty()).map(|problem| (&*self.refused, problem))
    }

    /// The first row that was not tried, because enough statements have failed.
    pub(super) fn first_left(&self) -> Option<&'a T> {
        self.left.last().and_then(|part| part.first())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: &str) -> Error {
        Error::Database(DatabaseError::Refused { message: String::new(), code: code.to_owned() })
    }

    /// Writes numbers, of which some are refused. Returns those that were written, those that were refused, and where to go on.
    fn write(
        rows: &[i32],
        code: &str,
        is_refused: impl Fn(i32) -> bool,
    ) -> (Vec<i32>, Vec<i32>, Option<i32>) {
        let mut failures = Failures::default();
        let (mut parts, mut written) = (Parts::of(rows, &mut failures), Vec::new());
        while let Some(part) = parts.next() {
            match part.iter().any(|&row| is_refused(row)) {
                true => parts.failed(part, error(code)).expect("it concerns these rows only"),
                false => written.extend(part),
            }
        }
        let refused = parts.refused().map(|(refused, _)| refused.iter().map(|&&row| row).collect());
        (written, refused.unwrap_or_default(), parts.first_left().copied())
    }

    #[test]
    fn a_refused_row_stands_alone_and_the_others_are_written() {
        let rows: Vec<i32> = (0..1000).collect();
        let (written, refused, left) = write(&rows, "P0001", |row| row % 500 == 7);
        assert_eq!((written.len(), refused, left), (998, vec![7, 507], None));
    }

    #[test]
    fn however_many_rows_are_refused_a_look_ends_and_the_next_one_goes_on() {
        let rows: Vec<i32> = (0..1000).collect();
        for (code, at_least) in [("P0001", 40), ("55P03", 1)] {
            let (written, refused, left) = write(&rows, code, |row| row < 990);
            assert!(written.is_empty() && refused.len() >= at_least, "{code}: {refused:?}");
            assert_eq!(
                left,
                i32::try_from(refused.len()).ok(),
                "it goes on behind the last one that it tried"
            );
        }
    }

    #[test]
    fn an_error_that_meets_every_row_is_returned() {
        let mut failures = Failures::default();
        let mut parts = Parts::of(&[1, 2], &mut failures);
        let part = parts.next().expect("it has rows");
        assert!(parts.failed(part, error("42501")).is_err());
    }
}
