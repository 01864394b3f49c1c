//! Counts the entries of a gRPC message before it is decoded. An empty job has two bytes in a message and hundreds in memory.

use pitwheel::Error;
use pitwheel::engine::limits::{ENQUEUE_MAX, FOLLOWERS_MAX, PARENTS_MAX, SETTLE_MAX, STEPS_MAX};

use crate::limits::{self, HOLDING_MAX, KINDS_MAX, QUEUES_MAX};

/// Entries of a message: the fields that lead to them, what they are, and how many there may be.
type Entries = (&'static [u64], &'static str, usize);

/// At the end of the fields: they lead to integers. A field of these may have one, or many without tags of their own. No field has
/// this number.
const INTEGERS: u64 = 0;

/// The entries in the message of a call.
fn entries(path: &str) -> &'static [Entries] {
    match path {
        "/pitwheel.v1.JobService/Enqueue" => &[(&[1], "jobs", ENQUEUE_MAX)],
        "/pitwheel.v1.PipelineService/CreatePipeline" => {
            &[(&[3], "steps", STEPS_MAX), (&[3, 3], "names in `after`", STEPS_MAX * PARENTS_MAX)]
        }
        "/pitwheel.v1.WorkerService/StreamJobs" => {
            &[(&[2], "queues", QUEUES_MAX), (&[3], "kinds", KINDS_MAX)]
        }
        "/pitwheel.v1.WorkerService/Heartbeat" => &[
            (&[1, INTEGERS], "workers", SETTLE_MAX),
            (&[2], "ended streams", SETTLE_MAX),
            (&[2, 2], "claims in `holding`", HOLDING_MAX),
        ],
        "/pitwheel.v1.WorkerService/ReportResult" => {
            &[(&[1], "results", SETTLE_MAX), (&[1, 2, 3], "followers", SETTLE_MAX * FOLLOWERS_MAX)]
        }
        _ => &[],
    }
}

/// Checks the number of entries in the message of a call.
pub(crate) fn check(path: &str, message: &[u8]) -> Result<(), Error> {
    for (fields, what, max) in entries(path) {
        let found = count(message, fields)
            .ok_or_else(|| Error::Invalid("the message is malformed, or has a group".into()))?;
        limits::entries(what, found, *max)?;
    }
    Ok(())
}

/// How often the last of these nested fields occurs. `None`: the message is malformed, or has a group. The decoder finds that only
/// after it has decoded what stands before, or skips the group and decodes what stands behind it.
fn count(mut message: &[u8], fields: &[u64]) -> Option<usize> {
    let (field, inner) = match fields {
        [] => return Some(1),
        // The last byte of each integer has no continuation bit.
        [INTEGERS] => return Some(message.iter().filter(|byte| **byte & 0x80 == 0).count().max(1)),
        [field, inner @ ..] => (field, inner),
    };
    let mut found = 0;
    while !message.is_empty() {
        let (tag, value) = next_field(&mut message)?;
        if tag == *field {
            found += count(value, inner)?;
        }
    }
    Some(found)
}

/// The number and the bytes of the next field. The bytes are empty unless the field has a length.
fn next_field<'m>(message: &mut &'m [u8]) -> Option<(u64, &'m [u8])> {
    let tag = varint(message)?;
    let length = match tag & 7 {
        0 => {
            varint(message)?;
            0
        }
        1 => 8,
        2 => usize::try_from(varint(message)?).ok()?,
        5 => 4,
        _ => return None,
    };
    let (value, rest) = message.split_at_checked(length)?;
    *message = rest;
    Some((tag >> 3, if tag & 7 == 2 { value } else { &[] }))
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENQUEUE: &str = "/pitwheel.v1.JobService/Enqueue";
    const REPORT: &str = "/pitwheel.v1.WorkerService/ReportResult";
    const HEARTBEAT: &str = "/pitwheel.v1.WorkerService/Heartbeat";

    /// A field with these bytes.
    fn field(number: u8, value: &[u8]) -> Vec<u8> {
        let mut length = value.len();
        let mut field = vec![number << 3 | 2];
        while length >= 0x80 {
            field.push(length as u8 | 0x80);
            length >>= 7;
        }
        field.push(length as u8);
        field.extend(value);
        field
    }

    #[test]
    fn entries_are_counted_without_decoding_them() {
        for (path, number, max) in [
            (ENQUEUE, 1, 500),
            (REPORT, 1, 1000),
            (HEARTBEAT, 2, 1000),
            ("/pitwheel.v1.PipelineService/CreatePipeline", 3, 1000),
            ("/pitwheel.v1.WorkerService/StreamJobs", 2, 100),
            ("/pitwheel.v1.WorkerService/StreamJobs", 3, 1000),
        ] {
            let most = field(number, &[]).repeat(max);
            assert!(check(path, &most).is_ok(), "{path}");
            assert!(check(path, &[most, field(number, &[])].concat()).is_err(), "{path}");
        }
        // Worker ids: 1000 of two bytes each in one field, and one in a field of its own.
        let packed = field(1, &[0x80, 0x01].repeat(1000));
        assert!(check(HEARTBEAT, &packed).is_ok());
        assert!(check(HEARTBEAT, &[packed.as_slice(), &[0x08, 0x01]].concat()).is_err());
        assert!(check(HEARTBEAT, &[0x08, 0x01].repeat(1001)).is_err());
        // One result, complete, with two followers, and a number that is skipped.
        let report = [0x0a, 0x08, 0x12, 0x06, 0x10, 0x01, 0x1a, 0x00, 0x1a, 0x00];
        assert_eq!((count(&report, &[1]), count(&report, &[1, 2, 3])), (Some(1), Some(2)));
    }

    #[test]
    fn entries_of_entries_are_counted() {
        let parents = field(3, &[]).repeat(60_000);
        let steps = [field(3, &parents), field(3, &parents)].concat();
        assert!(check("/pitwheel.v1.PipelineService/CreatePipeline", &field(3, &parents)).is_ok());
        assert!(check("/pitwheel.v1.PipelineService/CreatePipeline", &steps).is_err());
        let holding = field(2, &[]).repeat(HOLDING_MAX);
        assert!(check(HEARTBEAT, &field(2, &holding)).is_ok());
        assert!(check(HEARTBEAT, &[field(2, &holding), field(2, &field(2, &[]))].concat()).is_err());
    }

    #[test]
    fn what_the_decoder_would_skip_hides_nothing() {
        let jobs = field(1, &[]).repeat(10);
        assert!(check(ENQUEUE, &jobs).is_ok());
        // Field 9: the begin and the end of a group; a lone end; wire types that do not exist.
        for between in [[0x4b, 0x4c].as_slice(), &[0x4c], &[0x4e], &[0x4f]] {
            assert!(check(ENQUEUE, &[&jobs, between, &jobs].concat()).is_err(), "{between:?}");
        }
        assert!(check(ENQUEUE, &[0x0a, 0xff]).is_err(), "cut off");
        // The followers reach beyond the end of their result: the decoder notices after it has decoded them.
        let followers = field(2, &field(3, &[]).repeat(10));
        let result = [&[0x0a, 0x02], followers.as_slice()].concat();
        assert!(check(REPORT, &result).is_err());
    }
}
