//! Cron expressions in a time zone.
//!
//! A local time that a clock change skips runs at the first moment after the gap, and a local time that comes twice runs once. An
//! expression whose minute or hour begins with `*` is meant as an interval: it follows the real time through a clock change, so
//! it has nothing to make up for in a gap, and runs through both passes of an hour that comes twice. Vixie cron does the same.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, ToSpan};

/// A date that matches comes within this many days, or never: 29 February can be eight years away.
const DAYS_MAX: usize = 366 * 9;
/// Clock changes within that time: a zone has two a year, four where one is for Ramadan.
const CHANGES_MAX: usize = 64;

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// A parsed expression.
#[derive(Debug, Clone)]
pub(crate) struct Cron {
    fields: Fields,
    zone: TimeZone,
    text: String,
}

impl Cron {
    /// Parses five fields and an optional time zone; UTC without one. The error says what is wrong, without naming the expression.
    pub(crate) fn parse(words: &[&str]) -> Result<Cron, String> {
        let (fields, zone) = match words {
            [.., _] if words.len() == 5 => (words, "UTC"),
            [fields @ .., zone] if words.len() == 6 => (fields, *zone),
            _ => {
                return Err(
                    "it needs five fields (minute, hour, day, month, weekday), then a time zone".into()
                );
            }
        };
        let cron = Cron {
            fields: Fields::parse(fields)?,
            zone: TimeZone::get(zone)
                .map_err(|_| format!("`{zone}` is not a time zone: use a name such as `Europe/Zurich`"))?,
            text: format!("{} {zone}", fields.join(" ")),
        };
        match cron.fields.next(Date::constant(2000, 1, 1).at(0, 0, 0, 0), true) {
            Some(_) => Ok(cron),
            None => Err("no date matches it".into()),
        }
    }

    /// The five fields and the time zone.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The first time after this one. `None`: beyond the end of time.
    pub(crate) fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        let (mut from, mut at_from) = (after, false);
        for _ in 0..CHANGES_MAX {
            let offset = self.zone.to_offset(from);
            let change = self.zone.following(from).next();
            let mut local = offset.to_datetime(from);
            let mut inclusive = at_from;
            if let Some(again) = self.repeats_until(from, offset).filter(|again| local < *again) {
                (local, inclusive) = (again, true);
            }
            let next = self.fields.next(local, inclusive)?;
            let at = offset.to_timestamp(next).ok()?;
            match change {
                Some(change) if at >= change.timestamp() => {
                    let resumes = change.offset().to_datetime(change.timestamp());
                    if self.fields.fixed && next < resumes {
                        return Some(change.timestamp());
                    }
                    (from, at_from) = (change.timestamp(), true);
                }
                _ => return Some(at),
            }
        }
        None
    }

    /// After a change that set the clock back: the local time up to which all times come for the second time.
    fn repeats_until(&self, at: Timestamp, offset: Offset) -> Option<DateTime> {
        if !self.fields.fixed {
            return None;
        }
        let change = self.zone.preceding(at.checked_add(1.nanosecond()).ok()?).next()?.timestamp();
        let before = self.zone.to_offset(change.checked_sub(1.nanosecond()).ok()?);
        (before > offset).then(|| before.to_datetime(change))
    }
}

/// The values that match, one bit for each.
#[derive(Debug, Clone, PartialEq)]
struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    last_day: bool,
    months: u64,
    weekdays: u64,
    /// Day and weekday are both restricted: a date matches if one of them does.
    either_day: bool,
    /// Meant as times of the day, not as an interval.
    fixed: bool,
}

impl Fields {
    fn parse(fields: &[&str]) -> Result<Fields, String> {
        let [minute, hour, day, month, weekday] = fields else { return Err("it needs five fields".into()) };
        let last_day = day.split(',').any(|part| part.eq_ignore_ascii_case("l"));
        let days: Vec<&str> = day.split(',').filter(|part| !part.eq_ignore_ascii_case("l")).collect();
        let days = if days.is_empty() { 0 } else { field("day", &days.join(","), 1, 31, &[])? };
        let weekdays = field("weekday", weekday, 0, 7, &WEEKDAYS)?;
        Ok(Fields {
            minutes: field("minute", minute, 0, 59, &[])?,
            hours: field("hour", hour, 0, 23, &[])?,
            days,
            last_day,
            months: field("month", month, 1, 12, &MONTHS)?,
            // 7 is Sunday, too.
            weekdays: (weekdays | weekdays >> 7) & 0x7f,
            either_day: !day.starts_with('*') && !weekday.starts_with('*'),
            fixed: !minute.starts_with('*') && !hour.starts_with('*'),
        })
    }

    /// The first local time that matches, after this one or at it.
    fn next(&self, from: DateTime, inclusive: bool) -> Option<DateTime> {
        let minute = from.with().second(0).subsec_nanosecond(0).build().ok()?;
        let from = if inclusive && minute == from { from } else { minute.checked_add(1.minute()).ok()? };
        let (mut date, mut time) = (from.date(), from.time());
        for _ in 0..DAYS_MAX {
            if self.months & bit(date.month()) == 0 {
                date = date.last_of_month().tomorrow().ok()?;
                time = Time::midnight();
            } else {
                if let Some(time) = self.day_matches(date).then(|| self.next_time(time)).flatten() {
                    return Some(date.to_datetime(time));
                }
                date = date.tomorrow().ok()?;
                time = Time::midnight();
            }
        }
        None
    }

    fn day_matches(&self, date: Date) -> bool {
        let day = self.days & bit(date.day()) != 0 || self.last_day && date == date.last_of_month();
        let weekday = self.weekdays & bit(date.weekday().to_sunday_zero_offset()) != 0;
        if self.either_day { day || weekday } else { day && weekday }
    }

    /// The first time of a day that matches, not before this one.
    fn next_time(&self, from: Time) -> Option<Time> {
        let hours = (from.hour()..24).filter(|hour| self.hours & bit(*hour) != 0);
        hours.into_iter().find_map(|hour| {
            let first = if hour == from.hour() { from.minute() } else { 0 };
            let minute = (first..60).find(|minute| self.minutes & bit(*minute) != 0)?;
            Time::new(hour, minute, 0, 0).ok()
        })
    }
}

fn bit(value: i8) -> u64 {
    1 << value
}

/// Parses one field: a list of values, ranges and steps.
fn field(what: &str, text: &str, min: u8, max: u8, names: &[&str]) -> Result<u64, String> {
    let mut bits = 0;
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, Some(number(what, step, 1, max, &[])?)),
            None => (part, None),
        };
        let (first, last) = match range.split_once('-') {
            _ if range == "*" => (min, max),
            Some((first, last)) => {
                (number(what, first, min, max, names)?, number(what, last, min, max, names)?)
            }
            None => {
                let first = number(what, range, min, max, names)?;
                (first, if step.is_some() { max } else { first })
            }
        };
        if first > last {
            return Err(format!("the {what}s `{range}` end before they begin: write two ranges"));
        }
        bits |= (first..=last).step_by(usize::from(step.unwrap_or(1))).fold(0, |bits, n| bits | 1 << n);
    }
    Ok(bits)
}

fn number(what: &str, text: &str, min: u8, max: u8, names: &[&str]) -> Result<u8, String> {
    let named = names.iter().position(|name| name.eq_ignore_ascii_case(text));
    let value = match named {
        // The first month is 1, the first weekday 0: the same as the smallest value of the field.
        Some(at) => u8::try_from(at).ok().map(|at| at + min),
        None if text.bytes().all(|c| c.is_ascii_digit()) => text.parse().ok(),
        None => None,
    };
    value
        .filter(|value| (min..=max).contains(value))
        .ok_or_else(|| format!("the {what} `{text}` is not one of {min} to {max}"))
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn cron(text: &str) -> Cron {
        Cron::parse(&text.split_whitespace().collect::<Vec<_>>()).expect(text)
    }

    /// The next times after a local time of the zone, with their offsets.
    fn times(text: &str, after: &str, count: usize) -> Vec<String> {
        let cron = cron(text);
        let mut at: Timestamp = after.parse().expect(after);
        (0..count)
            .map(|_| {
                at = cron.next_after(at).expect("there is a next time");
                cron.zone.to_offset(at).to_datetime(at).strftime("%m-%d %H:%M").to_string()
            })
            .collect()
    }

    #[test]
    fn a_time_in_a_gap_runs_at_the_first_moment_after_it() {
        for (zone, after, expected) in [
            ("Europe/Zurich", "2026-03-28T12:00:00Z", ["03-29 03:00", "03-30 02:15"]),
            ("America/New_York", "2026-03-07T12:00:00Z", ["03-08 03:00", "03-09 02:15"]),
            // The clock of this island moves by half an hour.
            ("Australia/Lord_Howe", "2026-10-03T03:00:00Z", ["10-04 02:30", "10-05 02:15"]),
        ] {
            assert_eq!(times(&format!("15 2 * * * {zone}"), after, 2), expected, "{zone}");
        }
        // Both are in the gap, and 03:00 is the moment after it: one run.
        let both = times("0,30 2,3 * * * Europe/Zurich", "2026-03-28T12:00:00Z", 3);
        assert_eq!(both, ["03-29 03:00", "03-29 03:30", "03-30 02:00"]);
    }

    #[test]
    fn a_time_that_comes_twice_runs_once() {
        for (zone, fields, after, expected) in [
            ("Europe/Zurich", "15 2", "2026-10-24T12:00:00Z", ["10-25 02:15", "10-26 02:15"]),
            ("America/New_York", "15 1", "2026-10-31T12:00:00Z", ["11-01 01:15", "11-02 01:15"]),
            ("Australia/Lord_Howe", "45 1", "2026-04-04T00:00:00Z", ["04-05 01:45", "04-06 01:45"]),
        ] {
            assert_eq!(times(&format!("{fields} * * * {zone}"), after, 2), expected, "{zone}");
        }
        // Asked between the two passes, or in the second one.
        for after in ["2026-10-25T00:20:00Z", "2026-10-25T01:05:00Z", "2026-10-25T01:20:00Z"] {
            assert_eq!(times("15 2 * * * Europe/Zurich", after, 1), ["10-26 02:15"]);
        }
    }

    #[test]
    fn an_interval_follows_the_real_time_through_a_clock_change() {
        let spring = times("*/30 * * * * Europe/Zurich", "2026-03-29T00:15:00Z", 4);
        assert_eq!(spring, ["03-29 01:30", "03-29 03:00", "03-29 03:30", "03-29 04:00"]);
        let autumn = times("0 * * * * Europe/Zurich", "2026-10-24T23:30:00Z", 4);
        assert_eq!(autumn, ["10-25 02:00", "10-25 02:00", "10-25 03:00", "10-25 04:00"]);
    }

    #[test]
    fn days_and_weekdays_are_alternatives_when_both_are_given() {
        assert_eq!(
            times("0 0 13 * 5 UTC", "2026-11-01T00:00:00Z", 3),
            ["11-06 00:00", "11-13 00:00", "11-20 00:00"]
        );
        assert_eq!(times("0 0 * * 5 UTC", "2026-11-07T00:00:00Z", 1), ["11-13 00:00"]);
        assert_eq!(times("0 0 13 * * UTC", "2026-11-13T00:00:00Z", 1), ["12-13 00:00"]);
    }

    #[test]
    fn the_last_day_of_a_month_is_found_in_december_too() {
        let last = times("0 0 L * *", "2026-11-01T00:00:00Z", 4);
        assert_eq!(last, ["11-30 00:00", "12-31 00:00", "01-31 00:00", "02-28 00:00"]);
        assert_eq!(times("0 0 29 2 *", "2096-03-01T00:00:00Z", 1), ["02-29 00:00"]);
    }

    #[test]
    fn names_ranges_steps_and_lists_are_understood() {
        let fields = |text: &str| cron(text).fields;
        assert_eq!(
            fields("0 9-17 * jan-MAR mon-fri"),
            fields("0 9,10,11,12,13,14,15,16,17 * 1,2,3 1,2,3,4,5")
        );
        assert_eq!(fields("*/20 5/6 1-10/3 * 7"), fields("0,20,40 5,11,17,23 1,4,7,10 * 0").with_interval());
    }

    impl Fields {
        fn with_interval(self) -> Fields {
            Fields { fixed: false, ..self }
        }
    }

    #[test]
    fn a_mistake_is_named() {
        for (text, expected) in [
            ("61 * * * *", "the minute `61` is not one of 0 to 59"),
            ("* * * *", "five fields"),
            ("* * 17-3 * *", "end before they begin"),
            ("* * * * * Europe/Zuerich", "`Europe/Zuerich` is not a time zone"),
            ("0 0 30 2 *", "no date matches it"),
            ("*/0 * * * *", "the minute `0` is not one of 1 to 59"),
            ("a * * * *", "the minute `a`"),
            ("-1 * * * *", "the minute ``"),
        ] {
            let error = Cron::parse(&text.split(' ').collect::<Vec<_>>()).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    /// The next time by looking at every minute, for expressions that are intervals: each real minute is looked at once.
    #[test]
    fn the_next_time_is_the_first_minute_that_matches() {
        let mut random = fastrand::Rng::with_seed(7);
        for zone in ["Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"] {
            for _ in 0..60 {
                let step = random.u8(2..30);
                let cron = cron(&format!("*/{step} {}-23 * * * {zone}", random.u8(0..4)));
                let begin: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
                let after = begin + SignedDuration::from_secs(random.i64(0..365 * 86_400));
                let matches = |at: Timestamp| {
                    let local = cron.zone.to_offset(at).to_datetime(at);
                    cron.fields.minutes & bit(local.minute()) != 0
                        && cron.fields.hours & bit(local.hour()) != 0
                };
                let whole = Timestamp::from_second(after.as_second() / 60 * 60).expect("a time");
                let expected = (1..).map(|n| whole + SignedDuration::from_mins(n)).find(|at| matches(*at));
                assert_eq!(cron.next_after(after), expected, "{} after {after}", cron.text);
            }
        }
    }
}
