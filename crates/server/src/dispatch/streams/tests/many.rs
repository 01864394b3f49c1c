//! Thousands of streams with jobs.

use std::time::Duration;

use super::*;

const STREAMS: i64 = 2000;
const JOBS_EACH: i64 = 50;
/// Half a second in a test build. If all jobs are gone through for each stream, it is twenty.
const DONE_WITHIN: Duration = Duration::from_secs(3);

#[test]
fn what_concerns_one_stream_does_not_go_through_the_jobs_of_all() {
    let mut streams = Streams::default();
    let (group, _) = streams.group(vec!["default".into()], vec!["work".into()]);
    let mut channels = Vec::new();
    for worker in 1..=STREAMS {
        let (sender, messages) = stream_channel(1);
        streams.open(worker, group.clone(), StreamOptions { slots: 100, ..StreamOptions::default() }, sender);
        channels.push(messages);
        let jobs = (0..JOBS_EACH).map(|n| {
            let id = worker * JOBS_EACH + n;
            // Two jobs in each hold.
            Claimed { claim: Claim { id, fence: 1, holder: worker }, hold: id / 2, ..job(id) }
        });
        assert_eq!(streams.send(jobs.collect()), []);
    }
    let jobs = usize::try_from(STREAMS * JOBS_EACH).expect("a small number");
    let begun = Instant::now();
    let (workers, holds) = streams.known_holds(&group);
    assert_eq!(holds.into_iter().collect::<HashSet<i64>>().len(), jobs / 2);
    let claims = streams.claims_of(&workers);
    assert_eq!(claims.iter().copied().collect::<HashSet<Claim>>().len(), jobs);
    workers.iter().for_each(|worker| streams.close(*worker));
    let took = begun.elapsed();
    assert_eq!(streams.claims_of(&workers), []);
    assert!(took < DONE_WITHIN, "{took:?}");
}

#[test]
fn a_hold_is_known_until_its_last_job_has_ended() {
    let (mut streams, _messages) = stream(10);
    let group = streams.groups[0].clone();
    let of_one_hold = |id| Claimed { hold: 7, ..job(id) };
    assert_eq!(streams.send(vec![of_one_hold(1), of_one_hold(2), job(3)]), []);
    let known = |streams: &Streams| streams.known_holds(&group).1.into_iter().collect::<BTreeSet<i64>>();
    assert_eq!(known(&streams), BTreeSet::from([3, 7]));
    streams.ended([claim(1)].into_iter());
    assert_eq!((known(&streams), streams.take_emptied()), (BTreeSet::from([3, 7]), vec![]));
    streams.ended([claim(2)].into_iter());
    assert_eq!((known(&streams), streams.take_emptied()), (BTreeSet::from([3]), vec![7]));
    assert_eq!(streams.claims_of(&[WORKER]), [claim(3)]);
    streams.close(WORKER);
    assert_eq!((streams.claims_of(&[WORKER]), streams.take_emptied()), (vec![], vec![]));
}
