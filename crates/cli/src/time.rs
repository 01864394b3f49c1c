//! Times and spans in arguments and tables.

use std::time::{Duration, SystemTime};

use jiff::{Span, SpanRelativeTo, Timestamp};

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// A time relative to now, in one rounded unit: "3 m ago", "in 2 h".
pub(crate) fn relative(time: SystemTime, now: SystemTime) -> String {
    let (span, past) = match now.duration_since(time) {
        Ok(span) => (span, true),
        Err(future) => (future.duration(), false),
    };
    match (rough(span), past) {
        (None, _) => "now".to_owned(),
        (Some(span), true) => format!("{span} ago"),
        (Some(span), false) => format!("in {span}"),
    }
}

fn rough(span: Duration) -> Option<String> {
    let seconds = (span + Duration::from_millis(500)).as_secs();
    let nearest = |unit: u64| (seconds + unit / 2) / unit;
    match seconds {
        0 => None,
        1..MINUTE => Some(format!("{seconds} s")),
        _ if nearest(MINUTE) < 60 => Some(format!("{} m", nearest(MINUTE))),
        _ if nearest(HOUR) < 48 => Some(format!("{} h", nearest(HOUR))),
        _ => Some(format!("{} d", nearest(DAY))),
    }
}

/// Parses a length of time: `30s`, `10m`, `1h30m`, `2d`. A day has 24 hours.
pub(crate) fn parse_span(text: &str) -> Result<Duration, String> {
    let problem = || "give a number and a unit, as in 500ms, 30s, 10m, 2h or 1d".to_owned();
    let span: Span = text.parse().map_err(|_| problem())?;
    let length = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| problem())?;
    Duration::try_from(length).map_err(|_| "it must not be negative".to_owned())
}

/// Parses a point in time in RFC 3339.
pub(crate) fn parse_time(text: &str) -> Result<SystemTime, String> {
    let time: Timestamp = text.parse().map_err(|_| {
        "give date, time and offset, as in 2030-01-31T08:00:00Z or 2030-01-31T09:00:00+01:00".to_owned()
    })?;
    Ok(time.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_times_have_one_rounded_unit() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(10 * 365 * DAY);
        let past = |seconds| relative(now - Duration::from_secs(seconds), now);
        let future = |seconds| relative(now + Duration::from_secs(seconds), now);

        let shown = [past(0), past(59), past(60), past(3 * MINUTE + 5)];
        assert_eq!(shown, ["now", "59 s ago", "1 m ago", "3 m ago"]);
        let shown = [past(HOUR - 10), past(47 * HOUR), past(3 * DAY)];
        assert_eq!(shown, ["1 h ago", "47 h ago", "3 d ago"]);
        let shown = [future(5), future(2 * HOUR), future(400 * DAY)];
        assert_eq!(shown, ["in 5 s", "in 2 h", "in 400 d"]);
        assert_eq!(relative(now + Duration::from_millis(599_998), now), "in 10 m");
    }

    #[test]
    fn spans_are_numbers_with_units() {
        assert_eq!(parse_span("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(parse_span("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_span("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_span("2d"), Ok(Duration::from_secs(2 * DAY)));
        for wrong in ["", "10", "ten minutes", "-5s", "5 parsecs", "1mo"] {
            assert!(parse_span(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_need_an_offset() {
        assert_eq!(parse_time("1970-01-01T01:00:00+01:00"), Ok(SystemTime::UNIX_EPOCH));
        for wrong in ["", "tomorrow", "2030-01-31", "2030-01-31T08:00:00"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
