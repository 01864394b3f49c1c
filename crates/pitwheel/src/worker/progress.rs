//! The last progress that a handler has reported.

#[derive(Default)]
pub(super) struct LastProgress {
    /// From 0 to 1, and a note.
    last: Option<(f32, String)>,
    is_taken: bool,
}

impl LastProgress {
    pub(super) fn report(&mut self, fraction: f32, note: String) {
        *self = LastProgress { last: Some((fraction, note)), is_taken: false };
    }

    /// What is to be written while the job runs, once for each report: if that takes long, the same must not be queued again and
    /// again.
    pub(super) fn take(&mut self) -> Option<(f32, String)> {
        if std::mem::replace(&mut self.is_taken, true) { None } else { self.last() }
    }

    /// What was taken was not written: the last report is to be taken again.
    #[cfg(feature = "remote")]
    pub(super) fn put_back(&mut self) {
        self.is_taken = false;
    }

    /// What is to be written with the ending. It may not be written yet: a row that is locked is skipped, and a call may fail.
    pub(super) fn last(&self) -> Option<(f32, String)> {
        self.last.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_report_is_taken_once_and_the_last_one_stays() {
        let (half, most) = ((0.5, "half".to_owned()), (0.9, "most".to_owned()));
        let mut progress = LastProgress::default();
        assert_eq!((progress.take(), progress.last()), (None, None));
        progress.report(half.0, half.1.clone());
        assert_eq!((progress.take(), progress.take()), (Some(half.clone()), None));
        assert_eq!(progress.last(), Some(half));
        progress.report(most.0, most.1.clone());
        assert_eq!(
            (progress.take(), progress.take(), progress.last()),
            (Some(most.clone()), None, Some(most))
        );
    }
}
