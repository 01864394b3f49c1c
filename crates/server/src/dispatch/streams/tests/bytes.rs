//! How many bytes of jobs wait in streams.

use super::*;
use crate::dispatch::job_bytes::job_bytes;
use crate::listen::unwritten::Unwritten;

/// The worker reads a message. Returns how many jobs and bytes it has.
fn read(streams: &mut Streams, message: &StreamMessage) -> (usize, usize) {
    let StreamMessage::Jobs(jobs) = message else { return (0, 0) };
    let bytes = jobs.iter().map(job_bytes).sum();
    streams.open.get_mut(&WORKER).expect("it is open").left_queue(bytes);
    (jobs.len(), bytes)
}

#[test]
fn a_worker_that_keeps_jobs_has_no_more_than_some_megabytes_of_them() {
    let (mut streams, _messages) = stream_that_keeps_jobs();
    let group = streams.groups[0].clone();
    let large = |id: i64| Claimed { payload: "x".repeat(250_000), ..job(id) };
    let (mut id, mut kept) = (0, 0);
    loop {
        let room = streams.reserve(&group, None, Instant::now()).total as i64;
        if room == 0 {
            break;
        }
        let ids = id + 1..=id + room;
        (id, kept) = (id + room, kept + room);
        assert_eq!(streams.send(ids.clone().map(large).collect()), []);
        let mut ahead: VecDeque<Claimed> = ids.map(large).collect();
        while !ahead.is_empty() {
            streams.start(WORKER, &mut ahead, Waker::noop()).expect("it is open");
        }
        if id == room {
            // Jobs are known to be short now.
            streams.reported([claim(1)].into_iter());
            kept -= 1;
        }
    }
    assert!((2..=16 * 1024 / 240).contains(&kept), "{kept} jobs of 250 kB");
}

#[test]
fn a_stream_that_is_not_read_gets_no_more_than_some_megabytes() {
    let (mut streams, mut messages) = stream(10_000);
    let group = streams.groups[0].clone();
    let (mut id, mut sent) = (0, 0);
    let mut fill = |streams: &mut Streams, payload: usize| loop {
        let slots = streams.reserve(&group, None, Instant::now()).total;
        if slots == 0 {
            break sent;
        }
        let jobs = (0..slots).map(|_| {
            id += 1;
            Claimed { payload: "x".repeat(payload), ..job(id) }
        });
        sent += slots - streams.send(jobs.collect()).len();
        assert!(id < 10_000, "its memory has no limit");
    };
    // Small jobs first, so that large ones are not expected.
    let small = fill(&mut streams, 10_000);
    while let Ok(message) = messages.try_recv() {
        read(&mut streams, &message);
    }
    let large = fill(&mut streams, 250_000) - small;
    assert!((8..=16 * 1024 / 240).contains(&large), "{large} jobs of 250 kB");
    let (mut jobs, mut largest) = (0, 0);
    while let Ok(message) = messages.try_recv() {
        let (count, bytes) = read(&mut streams, &message);
        (jobs, largest) = (jobs + count, largest.max(bytes));
    }
    assert_eq!(jobs, large, "each job was sent or returned");
    assert!(largest <= 1024 * 1024, "a message of {largest} bytes");
    assert!(fill(&mut streams, 250_000) > small + large, "a stream that is read gets more");
}

#[test]
fn streams_of_a_token_that_are_not_read_get_few_bytes() {
    let (mut streams, _messages) =
        open(StreamOptions { slots: CLAIM_MAX, token: Some(1), ..StreamOptions::default() });
    let group = streams.groups[0].clone();
    let mut unread = Vec::new();
    let mut add = |streams: &mut Streams, worker: i64, token: i64| {
        let (sender, messages) = stream_channel(CLAIM_MAX);
        let options = StreamOptions { slots: CLAIM_MAX, token: Some(token), ..StreamOptions::default() };
        streams.open(worker, group.clone(), options, sender);
        unread.push(messages);
    };
    (10..110).for_each(|worker| add(&mut streams, worker, 1));
    let (mut bytes, mut id) = (0, 0);
    loop {
        let room = streams.reserve(&group, None, Instant::now());
        if room.total == 0 {
            break;
        }
        let jobs = room.slots_by_worker.iter().map(|worker| {
            id += 1;
            let claim = Claim { id, fence: 1, holder: *worker };
            Claimed { claim, payload: "x".repeat(250_000), ..job(id) }
        });
        let jobs: Vec<Claimed> = jobs.collect();
        bytes += jobs.iter().map(job_bytes).sum::<usize>();
        assert_eq!(streams.send(jobs), []);
    }
    assert!(bytes < 256 * 1024 * 1024, "{bytes} bytes wait");
    add(&mut streams, 200, 1);
    assert_eq!(
        streams.reserve(&group, None, Instant::now()).total,
        1,
        "a stream that is read gets one job at a time"
    );
    add(&mut streams, 300, 2);
    assert!(streams.reserve(&group, None, Instant::now()).total > 1, "another token is not affected");
}

#[test]
fn streams_of_many_tokens_that_are_not_read_get_few_bytes_together() {
    let (mut streams, _messages) = open(StreamOptions { slots: CLAIM_MAX, ..StreamOptions::default() });
    let group = streams.groups[0].clone();
    let mut unread = Vec::new();
    let mut add = |streams: &mut Streams, token: i64| {
        let (sender, messages) = stream_channel(1);
        let unwritten = Unwritten::default();
        // Less than the limit of a token.
        unread.push((messages, unwritten.add(60 * 1024 * 1024)));
        let options = StreamOptions { slots: 1, token: Some(token), unwritten, ..StreamOptions::default() };
        streams.open(100 + token, group.clone(), options, sender);
    };
    (1..=4).for_each(|token| add(&mut streams, token));
    let reserved = streams.reserve(&group, None, Instant::now());
    assert!(reserved.total > 1, "{}", reserved.total);
    streams.unreserve(&reserved.slots_by_worker, &[]);
    add(&mut streams, 5);
    assert_eq!(
        streams.reserve(&group, None, Instant::now()).slots_by_worker,
        [WORKER],
        "one job, for the one that is read"
    );
}

#[test]
fn what_was_handed_on_counts_until_it_is_written() {
    let unwritten = Unwritten::default();
    let (mut streams, _messages) =
        open(StreamOptions { slots: CLAIM_MAX, unwritten: unwritten.clone(), ..StreamOptions::default() });
    let group = streams.groups[0].clone();
    let mut wanted = || {
        let reserved = streams.reserve(&group, None, Instant::now());
        streams.unreserve(&reserved.slots_by_worker, &[]);
        reserved.total
    };
    let most = wanted();
    assert!(most > 8, "{most}");
    let mut message = unwritten.add(7 * 1024 * 1024);
    assert!(wanted() < most, "a message is on its way");
    let mut first = message.split(1024 * 1024);
    drop(message);
    assert!((5..most).contains(&wanted()), "a part of it is written");
    let crowded = unwritten.add(64 * 1024 * 1024);
    assert_eq!(wanted(), 0, "its token has too much of that");
    drop((first.split(1), first, crowded));
    assert_eq!(wanted(), most);
}

#[test]
fn what_waits_in_a_stream_that_was_ended_counts_until_its_client_lets_go_of_it() {
    let (lifetime, guard) = Lifetime::new(None);
    let unwritten = Unwritten::default();
    let (mut streams, _messages) = open(StreamOptions {
        slots: CLAIM_MAX,
        token: Some(1),
        lifetime: Some(lifetime),
        unwritten: unwritten.clone(),
        ..StreamOptions::default()
    });
    let large = |id: i64| Claimed { payload: "x".repeat(250_000), ..job(id) };
    assert_eq!(streams.send((0..8).map(large).collect()), []);
    let on_its_way = unwritten.add(63 * 1024 * 1024);
    let is_crowded = |streams: &Streams| streams.crowded_tokens().contains(&Some(1));
    assert!(is_crowded(&streams));
    streams.close(WORKER);
    assert!(is_crowded(&streams), "the client has read nothing");
    drop(guard);
    assert!(!is_crowded(&streams), "what was not handed on is dropped");
    let more = unwritten.add(1024 * 1024);
    streams.closing.forget_gone();
    assert!(is_crowded(&streams), "the rest is on its way");
    drop((on_its_way, more));
    streams.closing.forget_gone();
    assert_eq!(streams.closing.len(), 0);
}
