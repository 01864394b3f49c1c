//! A pipeline as its author defines it.

use std::collections::HashSet;

use crate::error::Error;
use crate::job::limits::{FOLLOWERS_BYTES_MAX, PARENTS_MAX, STEPS_MAX};
use crate::job::new_job::{NewJob, check_name};
use crate::job::on_failure::OnFailure;

/// A pipeline to create: steps, each with its job and the steps that it comes after. A step without any runs at once.
///
/// ```
/// # use pitwheel::{NewJob, NewPipeline};
/// # let (load, clean, index, report) = (NewJob::raw("load", "{}"), NewJob::raw("clean", "{}"), NewJob::raw("index", "{}"), NewJob::raw("report", "{}"));
/// let import = NewPipeline::new("import")
///     .step("load", load)
///     .step("clean", clean).after(["load"])
///     .step("index", index).after(["load"])
///     .step("report", report).after(["clean", "index"]);
/// ```
#[derive(Debug, Clone)]
#[must_use = "a new pipeline does nothing until it is created"]
pub struct NewPipeline {
    pub(crate) name: String,
    pub(crate) on_failure: OnFailure,
    pub(crate) steps: Vec<NewStep>,
    /// `after` was called before the first step.
    misplaced: bool,
}

/// A step to create.
#[derive(Debug, Clone)]
pub(crate) struct NewStep {
    pub(crate) name: String,
    pub(crate) job: NewJob,
    pub(crate) after: Vec<String>,
}

impl NewPipeline {
    /// A pipeline without steps. The name is for people and lists; it need not be unique.
    pub fn new(name: impl Into<String>) -> NewPipeline {
        NewPipeline {
            name: name.into(),
            on_failure: OnFailure::default(),
            steps: Vec::new(),
            misplaced: false,
        }
    }

    /// What becomes of the steps after one that failed. Without it they are skipped.
    pub fn on_failure(mut self, on_failure: OnFailure) -> NewPipeline {
        self.on_failure = on_failure;
        self
    }

    /// Adds a step. Its name is unique in the pipeline, and its job has no key. A delay counts from the time at which the step
    /// could run.
    pub fn step(mut self, name: impl Into<String>, job: impl Into<NewJob>) -> NewPipeline {
        self.steps.push(NewStep { name: name.into(), job: job.into(), after: Vec::new() });
        self
    }

    /// The step that was added last comes after these, which were added before it.
    pub fn after<T: Into<String>>(mut self, parents: impl IntoIterator<Item = T>) -> NewPipeline {
        match self.steps.last_mut() {
            Some(step) => step.after.extend(parents.into_iter().map(Into::into)),
            None => self.misplaced = true,
        }
        self
    }

    /// Refuses what the engine cannot run. Since a step comes only after steps that were added before it, there is no circle.
    pub fn check(&self) -> Result<(), Error> {
        check_name("pipeline", &self.name)?;
        if self.misplaced {
            return Err(Error::Invalid("`after` was called before `step`: add the step first".into()));
        }
        if self.steps.is_empty() || self.steps.len() > STEPS_MAX {
            return Err(Error::Invalid(format!(
                "the pipeline has {} steps, it may have 1 to {STEPS_MAX}",
                self.steps.len()
            )));
        }
        let bytes: usize = self.steps.iter().map(|step| step.job.bytes()).sum();
        if bytes > FOLLOWERS_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "the steps have {bytes} bytes, the limit is {FOLLOWERS_BYTES_MAX}: store large payloads elsewhere and pass \
                 references"
            )));
        }
        let mut before = HashSet::new();
        for step in &self.steps {
            step.check(&before)?;
            before.insert(&*step.name);
        }
        Ok(())
    }
}

impl NewStep {
    fn check(&self, before: &HashSet<&str>) -> Result<(), Error> {
        check_name("step", &self.name)?;
        if before.contains(&*self.name) {
            return Err(Error::Invalid(format!("two steps have the name `{}`", self.name)));
        }
        if self.after.len() > PARENTS_MAX {
            return Err(Error::Invalid(format!(
                "step `{}` comes after {} steps, the limit is {PARENTS_MAX}",
                self.name,
                self.after.len()
            )));
        }
        let mut named = HashSet::new();
        for parent in &self.after {
            if !before.contains(&**parent) {
                return Err(Error::Invalid(format!(
                    "step `{}` comes after `{}`, which was not added before it",
                    self.name,
                    parent.chars().take(80).collect::<String>().escape_debug()
                )));
            }
            if !named.insert(parent) {
                return Err(Error::Invalid(format!("step `{}` comes after `{parent}` twice", self.name)));
            }
        }
        if self.job.key.is_some() {
            return Err(Error::Invalid(format!(
                "step `{}` has a key: its name in the pipeline identifies it",
                self.name
            )));
        }
        self.job.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> NewJob {
        NewJob::raw("work", "{}")
    }

    fn refusal(pipeline: NewPipeline) -> String {
        pipeline.check().err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_pipeline_that_cannot_run_is_refused() {
        let new = || NewPipeline::new("import");
        assert_eq!(refusal(new()), "the pipeline has 0 steps, it may have 1 to 1000");
        assert_eq!(
            refusal(new().after(["a"]).step("a", job())),
            "`after` was called before `step`: add the step first"
        );
        assert_eq!(refusal(new().step("a", job()).step("a", job())), "two steps have the name `a`");
        let backwards = new().step("a", job()).after(["b"]).step("b", job()).after(["a"]);
        assert_eq!(refusal(backwards), "step `a` comes after `b`, which was not added before it");
        let itself = new().step("a", job()).after(["a"]);
        assert_eq!(refusal(itself), "step `a` comes after `a`, which was not added before it");
        let twice = new().step("a", job()).step("b", job()).after(["a", "a"]);
        assert_eq!(refusal(twice), "step `b` comes after `a` twice");
        let keyed = new().step("a", job().key("k"));
        assert_eq!(refusal(keyed), "step `a` has a key: its name in the pipeline identifies it");
        assert!(refusal(new().step("no name", job())).starts_with("step `no name` is not a name"));
        let many = (0..=STEPS_MAX).fold(new(), |pipeline, n| pipeline.step(format!("s{n}"), job()));
        assert_eq!(refusal(many), "the pipeline has 1001 steps, it may have 1 to 1000");
        assert!(new().step("a", job()).step("b", job()).after(["a"]).check().is_ok());
    }
}
