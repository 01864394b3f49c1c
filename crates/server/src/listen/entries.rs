//! Counts the jobs and results of a gRPC message before it is decoded. An empty job has two bytes in a message and hundreds
//! in memory.

use pitwheel::Error;
use pitwheel::engine::limits::{FOLLOWERS_MAX, SETTLE_MAX};

use crate::limits;

/// The fields that lead from a report to its results, and from a result to its followers.
const RESULTS: [u64; 1] = [1];
const FOLLOWERS: [u64; 3] = [1, 2, 3];
/// The fields that lead from an enqueue to its jobs.
const JOBS: [u64; 1] = [1];

/// Checks the number of jobs or results in the message of a call.
pub(crate) fn check(path: &str, message: &[u8]) -> Result<(), Error> {
    match path {
        "/pitwheel.v1.JobService/Enqueue" => limits::enqueue(count(message, &JOBS)),
        "/pitwheel.v1.WorkerService/ReportResult" => {
            limits::report("results", count(message, &RESULTS))?;
            limits::all_followers(count(message, &FOLLOWERS), SETTLE_MAX * FOLLOWERS_MAX)
        }
        _ => Ok(()),
    }
}

/// How often the last of these nested fields occurs. Stops where the message is malformed: the decoder refuses it there.
fn count(mut message: &[u8], fields: &[u64]) -> usize {
    let Some((field, inner)) = fields.split_first() else { return 1 };
    let mut found = 0;
    while let Some((tag, value)) = next_field(&mut message) {
        if tag == *field {
            found += count(value, inner);
        }
    }
    found
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

    #[test]
    fn jobs_are_counted_without_decoding_them() {
        let jobs = [0x0a, 0x00].repeat(501);
        assert_eq!(count(&jobs, &JOBS), 501);
        assert!(check("/pitwheel.v1.JobService/Enqueue", &jobs).is_err());
        assert!(check("/pitwheel.v1.JobService/Enqueue", &jobs[..1000]).is_ok());
        // One result, complete, with two followers, and a number that is skipped.
        let report = [0x0a, 0x08, 0x12, 0x06, 0x10, 0x01, 0x1a, 0x00, 0x1a, 0x00];
        assert_eq!((count(&report, &RESULTS), count(&report, &FOLLOWERS)), (1, 2));
        assert_eq!(count(&[0x0a, 0xff], &JOBS), 0, "cut off");
    }
}
