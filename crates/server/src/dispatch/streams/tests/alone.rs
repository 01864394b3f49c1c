//! Streams that wait until they are empty, for a suspect.

use std::time::Duration;

use super::*;
use crate::dispatch::suspects::FIRST_WAIT;

/// A stream that runs one job, and gets no other because a suspect is due.
fn emptying_stream(now: Instant) -> (Streams, Arc<Group>, mpsc::Receiver<StreamMessage>) {
    let (mut streams, messages) = stream(10);
    let group = streams.groups[0].clone();
    streams.open.get_mut(&WORKER).expect("it is open").reserve();
    assert_eq!(streams.send(vec![job(1)]), []);
    assert_eq!(streams.reserve_alone(&group, now), None, "it is busy");
    assert_eq!(streams.reserve(&group, None, now).total, 0);
    (streams, group, messages)
}

#[test]
fn a_stream_that_waits_for_a_suspect_goes_on_when_none_is_due() {
    let now = Instant::now();
    let (mut streams, group, _messages) = emptying_stream(now);
    streams.no_suspect(&group);
    assert!(streams.reserve(&group, None, now).total > 0);
}

#[test]
fn a_stream_that_waits_for_a_suspect_goes_on_after_a_limit() {
    let now = Instant::now();
    let (mut streams, group, _messages) = emptying_stream(now);
    let last = now + FIRST_WAIT - Duration::from_millis(1);
    assert_eq!(streams.reserve(&group, None, last).total, 0);
    let reserved = streams.reserve(&group, None, now + FIRST_WAIT);
    assert!(reserved.total > 0);
    assert_eq!(
        streams.reserve_alone(&group, now + FIRST_WAIT),
        None,
        "the suspect does not run beside other jobs"
    );
}

#[test]
fn a_stream_that_waits_for_a_suspect_runs_it_when_it_is_empty() {
    let now = Instant::now();
    let (mut streams, group, _messages) = emptying_stream(now);
    streams.ended(std::iter::once(claim(1)));
    assert_eq!(streams.reserve_alone(&group, now), Some(WORKER));
    assert_eq!(streams.send_alone(WORKER, Some(job(2))), []);
    assert_eq!(streams.reserve(&group, None, now).total, 0, "it runs alone");
    streams.ended(std::iter::once(claim(2)));
    assert!(streams.reserve(&group, None, now).total > 0);
}

#[test]
fn only_the_least_busy_stream_waits_for_a_suspect() {
    let (mut streams, _messages) = stream(10);
    let (group, now) = (streams.groups[0].clone(), Instant::now());
    let (sender, _others) = stream_channel(10);
    let busier = WORKER + 1;
    streams.open(busier, group.clone(), StreamOptions { slots: 10, ..StreamOptions::default() }, sender);
    for (worker, jobs) in [(WORKER, 1), (busier, 2)] {
        (0..jobs).for_each(|_| streams.open.get_mut(&worker).expect("it is open").reserve());
    }
    for _ in 0..2 {
        assert_eq!(streams.reserve_alone(&group, now), None);
        let reserved = streams.reserve(&group, None, now);
        streams.unreserve(&reserved.slots_by_worker, &[]);
        assert_eq!(reserved.slots_by_worker, [busier; 8], "the other one goes on");
    }
}

#[test]
fn a_suspect_waits_a_second_for_endings_that_are_not_written_and_not_for_ever() {
    let now = Instant::now();
    let (mut streams, group, _messages) = emptying_stream(now);
    streams.reported(std::iter::once(claim(1)));
    assert_eq!(streams.reserve_alone(&group, now), None, "its ending is being written");
    let later = Instant::now() + Duration::from_secs(1);
    assert_eq!(streams.reserve_alone(&group, later), Some(WORKER), "its row is locked");
    // The lock ends while the suspect is being claimed.
    streams.ended(std::iter::once(claim(1)));
    assert_eq!(streams.reserve(&group, None, later).total, 0, "the process is reserved");
    assert_eq!(streams.send_alone(WORKER, Some(job(2))), []);
    assert_eq!(streams.reserve(&group, None, later).total, 0, "it runs alone");
}

#[test]
fn a_process_whose_suspect_was_reported_gets_other_jobs_although_the_ending_is_not_written() {
    let now = Instant::now();
    let (mut streams, _messages) = stream(10);
    let group = streams.groups[0].clone();
    assert_eq!(streams.reserve_alone(&group, now), Some(WORKER));
    assert_eq!(streams.send_alone(WORKER, Some(job(1))), []);
    assert_eq!(streams.reserve(&group, None, now).total, 0, "it runs alone");
    streams.reported(std::iter::once(claim(1)));
    assert!(streams.reserve(&group, None, now).total > 0);
}

#[test]
fn a_stream_that_was_reserved_for_no_suspect_has_its_room_again() {
    let now = Instant::now();
    let (mut streams, _messages) = stream(1);
    let group = streams.groups[0].clone();
    assert_eq!(streams.reserve_alone(&group, now), Some(WORKER));
    assert_eq!(streams.send_alone(WORKER, None), []);
    assert_eq!(streams.open[&WORKER].taken, 0);
    assert_eq!(streams.reserve(&group, None, now).total, 1);
}
