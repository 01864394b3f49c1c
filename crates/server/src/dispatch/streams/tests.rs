mod alone;
mod bytes;
mod many;

use std::collections::VecDeque;
use std::task::Waker;
use std::time::SystemTime;

use pitwheel::engine::Ctid;

use super::*;
use crate::dispatch::stream::stream_channel;
use crate::listen::lifetimes::Lifetime;

const WORKER: i64 = 1;

fn claim(id: i64) -> Claim {
    Claim { id, fence: 1, holder: WORKER }
}

fn job(id: i64) -> Claimed {
    Claimed {
        claim: claim(id),
        ctid: Ctid::default(),
        hold: id,
        attempt: 1,
        max_attempts: 20,
        timeout: None,
        run_at: SystemTime::UNIX_EPOCH,
        priority: 0,
        queue: "default".into(),
        kind: "work".into(),
        key: None,
        lane: None,
        payload: "{}".to_owned(),
        metadata: None,
        recurrence: None,
        step: None,
    }
}

/// A stream that nothing is read from.
fn stream(slots: usize) -> (Streams, mpsc::Receiver<StreamMessage>) {
    open(StreamOptions { slots, ..StreamOptions::default() })
}

/// A stream with one slot, whose worker keeps jobs that wait for it.
fn stream_that_keeps_jobs() -> (Streams, mpsc::Receiver<StreamMessage>) {
    open(StreamOptions { slots: 1, keeps_ahead: true, ..StreamOptions::default() })
}

fn open(options: StreamOptions) -> (Streams, mpsc::Receiver<StreamMessage>) {
    let mut streams = Streams::default();
    let (group, _) = streams.group(vec!["default".into()], vec!["work".into()]);
    let (sender, messages) = stream_channel(options.slots);
    streams.open(WORKER, group, options, sender);
    (streams, messages)
}

#[test]
fn a_slot_is_free_when_its_ending_is_reported_and_takes_the_job_claimed_ahead() {
    let (mut streams, _messages) = stream(1);
    let group = streams.groups[0].clone();
    assert_eq!(
        streams.reserve(&group, None, Instant::now()).total,
        1,
        "nothing is known of how long jobs take"
    );
    let mut ahead = VecDeque::from([job(1)]);
    assert_eq!(streams.send(vec![job(1)]), []);
    let mut start = |streams: &mut Streams, more: Option<Claimed>| -> Vec<i64> {
        ahead.extend(more);
        let jobs = streams.start(WORKER, &mut ahead, Waker::noop()).expect("it is open");
        jobs.iter().map(|job| job.claim.id).collect()
    };
    assert_eq!(start(&mut streams, None), [1]);
    assert_eq!(streams.reserve(&group, None, Instant::now()).total, 0, "its slot is taken");
    streams.reported([claim(1)].into_iter());
    streams.reported([claim(1)].into_iter());
    assert_eq!(streams.open[&WORKER].running, 0, "a repeated report frees no second slot");

    let ahead_of_it = streams.reserve(&group, None, Instant::now()).total;
    assert!(ahead_of_it > 1, "jobs are short, so more than one is claimed: {ahead_of_it}");
    assert_eq!(streams.send(vec![job(2), job(3)]), []);
    assert_eq!(start(&mut streams, Some(job(2))), [2], "before the ending of the first is written");
    assert_eq!(start(&mut streams, Some(job(3))), [0; 0], "the slot is taken");
    streams.ended([claim(1), claim(2)].into_iter());
    assert_eq!(start(&mut streams, None), [3], "an ending that another node wrote frees the slot too");
    streams.set_alive(&[WORKER], &HashMap::from([(WORKER, true)]));
    assert!(streams.start(WORKER, &mut VecDeque::new(), Waker::noop()).is_none(), "it is quiet");
}

#[test]
fn a_job_that_its_worker_keeps_has_a_slot_when_the_one_before_it_was_reported() {
    let (mut streams, _messages) = stream_that_keeps_jobs();
    let group = streams.groups[0].clone();
    let start = |streams: &mut Streams, ids: std::ops::RangeInclusive<i64>| {
        ids.clone().for_each(|_| streams.open.get_mut(&WORKER).expect("it is open").reserve());
        assert_eq!(streams.send(ids.clone().map(job).collect()), []);
        let sent = streams.start(WORKER, &mut ids.map(job).collect(), Waker::noop()).expect("it is open");
        sent.iter().map(|job| job.claim.id).collect::<Vec<i64>>()
    };
    assert_eq!(start(&mut streams, 1..=4), [1, 2, 3, 4], "three of them wait at the worker");
    let running = |streams: &Streams| {
        let slots = (1..=9).filter(|id| streams.sent(claim(*id)).is_some_and(ClaimedJob::has_slot));
        assert_eq!(slots.clone().count(), streams.open[&WORKER].running);
        slots.collect::<Vec<i64>>()
    };
    assert_eq!(running(&streams), [1]);
    // Reports may overtake each other.
    streams.reported([claim(2)].into_iter());
    assert_eq!(running(&streams), [1], "the report of the first one is on its way");
    streams.reported([claim(1)].into_iter());
    assert_eq!(running(&streams), [3]);
    streams.ended([claim(1), claim(2), claim(3)].into_iter());
    assert_eq!(running(&streams), [4], "an ending that another node wrote frees the slot too");

    assert!(streams.reserve(&group, None, Instant::now()).total > 1, "jobs are short");
    assert_eq!(start(&mut streams, 5..=6), [5, 6]);
    streams.ended([claim(5)].into_iter());
    assert_eq!(streams.open[&WORKER].wanted(false), 0, "they take longer than was known");
    assert_eq!(running(&streams), [4]);
    streams.reported([claim(4)].into_iter());
    assert_eq!(running(&streams), [6]);
}

#[test]
fn a_stream_gets_jobs_however_many_were_claimed_ahead_and_released() {
    let (mut streams, _messages) = stream(1);
    let group = streams.groups[0].clone();
    let large = |id: i64| Claimed { payload: "x".repeat(250_000), ..job(id) };
    assert_eq!(streams.reserve(&group, None, Instant::now()).total, 1);
    assert_eq!(streams.send(vec![large(0)]), []);
    streams.start(WORKER, &mut VecDeque::from([large(0)]), Waker::noop()).expect("it is open");
    for id in 1..=100 {
        streams.open.get_mut(&WORKER).expect("it is open").reserve();
        assert_eq!(streams.send(vec![large(id)]), [], "job {id}");
        let mut ahead = VecDeque::from([large(id)]);
        let sent = streams.start(WORKER, &mut ahead, Waker::noop()).expect("it is open");
        assert!(sent.is_empty(), "the slot is taken");
        let released = streams.give_up(WORKER, &ahead);
        assert_eq!(released, [claim(id)]);
        streams.ended(released.into_iter());
    }
    streams.ended([claim(0)].into_iter());
    assert_eq!(streams.open[&WORKER].wanted(false), 1, "nothing waits for its slot");
}

#[test]
fn few_jobs_are_spread_over_workers_and_many_go_to_one_at_a_time() {
    let (mut streams, _messages) = stream(CLAIM_MAX);
    let group = streams.groups[0].clone();
    let mut channels = Vec::new();
    for worker in WORKER + 1..=WORKER + 7 {
        let (sender, messages) = stream_channel(CLAIM_MAX);
        let options = StreamOptions { slots: CLAIM_MAX, ..StreamOptions::default() };
        streams.open(worker, group.clone(), options, sender);
        channels.push(messages);
    }
    // Small jobs, so that large ones are not expected.
    for worker in WORKER..=WORKER + 7 {
        let claims = (1..=100).map(|id| Claim { id: 100 * worker + id, fence: 1, holder: worker });
        let jobs = claims.clone().map(|claim| Claimed { claim, ..job(1) });
        assert_eq!(streams.send(jobs.collect()), []);
        streams.ended(claims);
    }
    let mut workers = |found: usize| {
        let slots = streams.reserve(&group, None, Instant::now()).slots_by_worker;
        assert_eq!(slots.len(), CLAIM_MAX);
        streams.unreserve(&slots, &[]);
        group.found(found);
        slots.into_iter().collect::<BTreeSet<i64>>()
    };
    let of_three: Vec<_> = (0..3).map(|_| workers(CLAIM_MAX).len()).collect();
    assert_eq!(of_three, [4, 4, 4], "nothing is known yet");
    let full: Vec<BTreeSet<i64>> = (0..8).map(|_| workers(CLAIM_MAX)).collect();
    assert!(full.iter().all(|workers| workers.len() == 1), "{full:?}");
    assert_eq!(full.into_iter().flatten().collect::<BTreeSet<i64>>().len(), 8, "each worker has its turn");
    assert_eq!(workers(0).len(), 1, "a claim that found nothing does not count");
    assert_eq!(workers(10).len(), 1);
    (0..3).for_each(|_| drop(workers(10)));
    assert_eq!(workers(10).len(), 4, "few jobs are due again");
}

#[test]
fn cancels_never_take_the_room_of_jobs() {
    let (mut streams, mut messages) = stream(3);
    for _ in 0..100 {
        streams.send_cancels(vec![(WORKER, claim(7))]);
    }
    for id in 0..3 {
        assert_eq!(streams.send(vec![job(id)]), [], "job {id}");
    }
    assert_eq!(streams.len(), 1, "the stream stays open");
    let mut jobs = 0;
    while let Ok(message) = messages.try_recv() {
        jobs += usize::from(matches!(message, StreamMessage::Jobs(_)));
    }
    assert_eq!(jobs, 3);
}

#[test]
fn a_stream_that_takes_no_messages_is_closed_and_its_jobs_are_returned() {
    let (mut streams, messages) = stream(1);
    let mut sent = 0;
    // Each job ends elsewhere, so that its slot is free again although its message was not read.
    let unsent = loop {
        let unsent = streams.send(vec![job(sent)]);
        if !unsent.is_empty() {
            break unsent;
        }
        streams.ended([claim(sent)].into_iter());
        sent += 1;
        assert!(sent < 1000, "the channel has no limit");
    };
    assert_eq!(unsent, [claim(sent)], "what was not sent must be released");
    assert_eq!((streams.len(), streams.groups().len()), (0, 0));
    assert_eq!(streams.send(vec![job(sent + 1)]), [claim(sent + 1)]);
    drop(messages);
}

#[test]
fn a_claim_that_a_failover_lost_frees_its_slot_when_its_fence_is_given_again() {
    let (mut streams, _messages) = stream(2);
    let (group, _) = streams.group(vec!["default".into()], vec!["work".into()]);
    let (sender, _others) = stream_channel(1);
    let other = WORKER + 1;
    streams.open(other, group, StreamOptions { slots: 1, ..StreamOptions::default() }, sender);
    streams.open.get_mut(&WORKER).expect("it is open").reserve();
    assert_eq!(streams.send(vec![job(1)]), []);
    streams.open.get_mut(&other).expect("it is open").reserve();
    let again = Claim { holder: other, ..claim(1) };
    assert_eq!(streams.send(vec![Claimed { claim: again, ..job(1) }]), []);
    assert_eq!(streams.open[&WORKER].taken, 0, "its claim is lost");

    streams.ended(std::iter::once(claim(1)));
    assert_eq!(streams.open[&other].taken, 1, "the report of the lost claim frees no slot of the other");
    streams.ended(std::iter::once(again));
    assert_eq!(streams.open[&other].taken, 0);
}

#[test]
fn a_stream_that_was_ended_counts_until_its_client_lets_go_of_it() {
    let (lifetime, guard) = Lifetime::new(None);
    let (mut streams, _messages) = open(StreamOptions {
        slots: 1,
        token: Some(1),
        lifetime: Some(lifetime),
        ..StreamOptions::default()
    });
    streams.close(WORKER);
    assert_eq!(streams.closing.count_of_token(1), 1);
    drop(guard);
    streams.closing.forget_gone();
    assert_eq!(streams.closing.len(), 0);
}
