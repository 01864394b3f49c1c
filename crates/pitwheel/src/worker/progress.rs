//! The last progress that a handler has reported, until it is written.

#[derive(Default)]
pub(super) struct LastProgress {
    /// From 0 to 1, and a note.
    unwritten: Option<(f32, String)>,
    is_taken: bool,
}

impl LastProgress {
    pub(super) fn report(&mut self, fraction: f32, note: String) {
        *self = LastProgress { unwritten: Some((fraction, note)), is_taken: false };
    }

    /// What is to be written now, once for each report: if that takes long, the same must not be queued again and again.
    pub(super) fn take(&mut self) -> Option<(f32, String)> {
        if std::mem::replace(&mut self.is_taken, true) { None } else { self.unwritten() }
    }

    /// What is to be written with the ending. What was taken may be under way, or lost.
    pub(super) fn unwritten(&self) -> Option<(f32, String)> {
        self.unwritten.clone()
    }

    /// This progress is written. If the handler has reported another one since, that is not.
    pub(super) fn written(&mut self, fraction: f32, note: &str) {
        self.unwritten.take_if(|last| last.0 == fraction && last.1 == note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_taken_once_and_kept_until_it_is_written() {
        let (half, most) = ((0.5, "half".to_owned()), (0.9, "most".to_owned()));
        let mut progress = LastProgress::default();
        assert_eq!((progress.take(), progress.unwritten()), (None, None));
        progress.report(half.0, half.1.clone());
        assert_eq!((progress.take(), progress.take()), (Some(half.clone()), None));
        assert_eq!(progress.unwritten(), Some(half.clone()));

        progress.report(most.0, most.1.clone());
        progress.written(half.0, &half.1);
        assert_eq!((progress.take(), progress.unwritten()), (Some(most.clone()), Some(most.clone())));
        progress.written(most.0, &most.1);
        assert_eq!((progress.take(), progress.unwritten()), (None, None));
    }
}
