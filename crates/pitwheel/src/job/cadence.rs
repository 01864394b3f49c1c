//! When a recurring job runs: a cadence, which people write and read as text.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;

use crate::error::Error;
use crate::job::cron::Cron;
use crate::job::limits::{CADENCE_BYTES_MAX, SPAN_MAX};

/// When a recurring job runs.
///
/// Its text form is the same in Rust, SQL, HTTP, Python and on the command line: `every 15m`, `cron 30 2 * * 1-5 Europe/Zurich`
/// (UTC without a time zone) or `adaptive 15m..24h`, each with an optional `jitter 30s` at its end. Times are whole numbers of
/// `d`, `h`, `m` and `s`, as in `1h30m`.
///
/// ```
/// # use pitwheel::Cadence;
/// let nightly: Cadence = "cron 30 2 * * * Europe/Zurich".parse()?;
/// let often = Cadence::every(std::time::Duration::from_secs(900))?.jitter(std::time::Duration::from_secs(30))?;
/// assert_eq!(often.to_string(), "every 15m jitter 30s");
/// # Ok::<(), pitwheel::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Cadence {
    pub(crate) rhythm: Rhythm,
    /// Each run is later than planned by a random part of this.
    pub(crate) jitter: Duration,
}

#[derive(Debug, Clone)]
pub(crate) enum Rhythm {
    /// At equal distances from an anchor.
    Every(Duration),
    Cron(Box<Cron>),
    /// After an interval within these bounds, which the runs make shorter or longer.
    Adaptive {
        min: Duration,
        max: Duration,
    },
}

impl Cadence {
    /// At equal distances, at least one second. The distance is kept between planned times, so that late runs add no delay.
    pub fn every(interval: Duration) -> Result<Cadence, Error> {
        Rhythm::Every(interval).checked().map(|rhythm| Cadence { rhythm, jitter: Duration::ZERO })
    }

    /// After an interval between two bounds: shorter after a run that found something new, longer after one that did not. It
    /// begins with the shortest.
    pub fn adaptive(min: Duration, max: Duration) -> Result<Cadence, Error> {
        Rhythm::Adaptive { min, max }.checked().map(|rhythm| Cadence { rhythm, jitter: Duration::ZERO })
    }

    /// Makes each run later than planned by a random part of this, so that jobs that are planned together do not run together.
    pub fn jitter(mut self, jitter: Duration) -> Result<Cadence, Error> {
        let shortest = match self.rhythm {
            Rhythm::Every(interval) => interval,
            Rhythm::Adaptive { min, .. } => min,
            Rhythm::Cron(_) => SPAN_MAX,
        };
        if jitter >= shortest {
            return Err(Error::Invalid(format!(
                "jitter `{}` is not shorter than the time between two runs",
                text(jitter)
            )));
        }
        whole_seconds("jitter", jitter)?;
        self.jitter = jitter;
        Ok(self)
    }

    /// The first planned time after this one. `None`: an adaptive cadence has no planned times.
    pub(crate) fn next_after(&self, anchor: SystemTime, after: SystemTime) -> Option<SystemTime> {
        match &self.rhythm {
            Rhythm::Every(interval) => Some(next_on_grid(anchor, *interval, after)),
            Rhythm::Cron(cron) => cron.next_after(Timestamp::try_from(after).ok()?).map(SystemTime::from),
            Rhythm::Adaptive { .. } => None,
        }
    }
}

/// The first time after `after` that is a whole number of intervals before or after the anchor.
fn next_on_grid(anchor: SystemTime, interval: Duration, after: SystemTime) -> SystemTime {
    let step = interval.as_nanos();
    match after.duration_since(anchor) {
        Ok(since) => after + nanos(step - since.as_nanos() % step),
        Err(until) => {
            let past_last = until.duration().as_nanos() % step;
            after + nanos(if past_last == 0 { step } else { past_last })
        }
    }
}

/// Intervals are at most 100 years, which is less than 2⁶⁴ nanoseconds.
fn nanos(nanos: u128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

impl Rhythm {
    fn checked(self) -> Result<Rhythm, Error> {
        match self {
            Rhythm::Every(interval) => whole_seconds("interval", interval)?,
            Rhythm::Adaptive { min, max } => {
                whole_seconds("minimum", min)?;
                whole_seconds("maximum", max)?;
                if min > max {
                    return Err(Error::Invalid(format!(
                        "the minimum `{}` is longer than the maximum `{}`",
                        text(min),
                        text(max)
                    )));
                }
            }
            Rhythm::Cron(_) => {}
        }
        Ok(self)
    }
}

fn whole_seconds(what: &str, span: Duration) -> Result<(), Error> {
    if span < Duration::from_secs(1) || span > SPAN_MAX || span.subsec_nanos() > 0 {
        return Err(Error::Invalid(format!(
            "{what} {span:?} is not a whole number of seconds between 1 s and 100 years"
        )));
    }
    Ok(())
}

impl FromStr for Cadence {
    type Err = Error;

    fn from_str(cadence: &str) -> Result<Cadence, Error> {
        parse(cadence).map_err(|problem| {
            let shown: String = cadence.chars().take(100).collect::<String>().escape_debug().to_string();
            Error::Invalid(format!(
                "cadence `{shown}`: {problem}; write `every 15m`, `cron 0 3 * * * Europe/Zurich` or `adaptive 15m..24h`"
            ))
        })
    }
}

fn parse(cadence: &str) -> Result<Cadence, String> {
    let made = if cadence.len() > CADENCE_BYTES_MAX { None } else { Some(parse_words(cadence)?) };
    // As it is stored: with its time zone.
    made.filter(|made| made.to_string().len() <= CADENCE_BYTES_MAX)
        .ok_or_else(|| format!("it is longer than {CADENCE_BYTES_MAX} bytes"))
}

fn parse_words(cadence: &str) -> Result<Cadence, String> {
    let words: Vec<&str> = cadence.split_whitespace().collect();
    let (words, jitter) = match words.as_slice() {
        [words @ .., "jitter", jitter] => (words, Some(span(jitter)?)),
        words => (words, None),
    };
    let made = match words {
        ["every", interval] => Cadence::every(span(interval)?),
        ["cron", fields @ ..] => {
            let rhythm = Rhythm::Cron(Box::new(Cron::parse(fields)?));
            Ok(Cadence { rhythm, jitter: Duration::ZERO })
        }
        ["adaptive", range] => {
            let (min, max) = range.split_once("..").ok_or("it needs a minimum and a maximum")?;
            Cadence::adaptive(span(min)?, span(max)?)
        }
        _ => return Err("it is none of the three forms".into()),
    };
    let made = match jitter {
        Some(jitter) => made.and_then(|cadence| cadence.jitter(jitter)),
        None => made,
    };
    made.map_err(|error| error.to_string())
}

/// Reads a time span such as `1h30m`.
fn span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a time span such as `90s`, `15m`, `1h30m` or `2d`");
    let (mut seconds, mut rest, mut units) = (0_u64, text, ["d", "h", "m", "s"].as_slice());
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).filter(|at| *at > 0).ok_or_else(wrong)?;
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        let unit = units.iter().position(|unit| rest[digits..].starts_with(unit)).ok_or_else(wrong)?;
        let length = match units[unit] {
            "d" => 86_400,
            "h" => 3600,
            "m" => 60,
            _ => 1,
        };
        seconds = number.checked_mul(length).and_then(|part| seconds.checked_add(part)).ok_or_else(wrong)?;
        (rest, units) = (&rest[digits + 1..], &units[unit + 1..]);
    }
    if text.is_empty() { Err(wrong()) } else { Ok(Duration::from_secs(seconds)) }
}

/// A time span as people write it, to the second.
pub(crate) fn text(span: Duration) -> String {
    let mut rest = span.as_secs();
    if rest == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, length) in [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)] {
        if rest >= length {
            text.push_str(&format!("{}{unit}", rest / length));
            rest %= length;
        }
    }
    text
}

impl fmt::Display for Cadence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rhythm {
            Rhythm::Every(interval) => write!(f, "every {}", text(*interval))?,
            Rhythm::Cron(cron) => write!(f, "cron {}", cron.text())?,
            Rhythm::Adaptive { min, max } => write!(f, "adaptive {}..{}", text(*min), text(*max))?,
        }
        if self.jitter.is_zero() { Ok(()) } else { write!(f, " jitter {}", text(self.jitter)) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for (written, shown) in [
            ("every 15m", "every 15m"),
            ("every  90m jitter 30s", "every 1h30m jitter 30s"),
            ("every 86400s", "every 1d"),
            ("cron */15 * * * *", "cron */15 * * * * UTC"),
            (
                "cron 30 2 * * mon-fri Europe/Zurich jitter 5m",
                "cron 30 2 * * mon-fri Europe/Zurich jitter 5m",
            ),
            ("adaptive 15m..24h", "adaptive 15m..1d"),
        ] {
            let cadence: Cadence = written.parse().expect(written);
            assert_eq!(cadence.to_string(), shown);
            assert_eq!(shown.parse::<Cadence>().expect(shown).to_string(), shown);
        }
    }

    #[test]
    fn a_cadence_is_short_as_it_is_stored() {
        let cron = |minutes: usize| format!("cron {} * * * *", vec!["59"; minutes].join(","));
        assert_eq!(cron(166).len(), 510, "and four bytes for the time zone");
        for text in [cron(166), cron(1_000_000), "every".to_owned() + &" ".repeat(600) + "1h"] {
            let refused = text.parse::<Cadence>().expect_err("it is too long").to_string();
            assert!(refused.contains("longer than 512 bytes") && refused.len() < 400, "{refused}");
        }
        assert_eq!(cron(165).parse::<Cadence>().expect("it is short enough").to_string().len(), 511);
    }

    #[test]
    fn a_mistake_is_named_with_what_to_write() {
        for (text, expected) in [
            ("", "none of the three forms"),
            ("hourly", "none of the three forms"),
            ("every", "none of the three forms"),
            ("every 15", "`15` is not a time span"),
            ("every 30m1h", "`30m1h` is not a time span"),
            ("every 0s", "between 1 s and 100 years"),
            ("every 99999999999d", "between 1 s and 100 years"),
            ("every 9999999999999999999d", "not a time span"),
            ("every 1m jitter 1m", "jitter `1m` is not shorter"),
            ("adaptive 15m", "minimum and a maximum"),
            ("adaptive 1h..15m", "longer than the maximum"),
            ("cron 99 * * * *", "the minute `99`"),
        ] {
            let error = text.parse::<Cadence>().expect_err(text).to_string();
            assert!(error.contains(expected) && error.contains("write `every 15m`"), "{text}: {error}");
        }
    }

    #[test]
    fn planned_times_keep_their_distance_from_the_anchor_on_both_sides() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..1000 {
            let interval = Duration::from_secs(random.u64(1..5000));
            let anchor = UNIX_EPOCH + Duration::from_micros(random.u64(1 << 40..1 << 50));
            let after = UNIX_EPOCH + Duration::from_micros(random.u64(1 << 40..1 << 50));
            let next = Cadence::every(interval).unwrap().next_after(anchor, after).unwrap();
            assert!(next > after && next.duration_since(after).unwrap() <= interval);
            let apart = next.duration_since(anchor).unwrap_or_else(|before| before.duration());
            assert_eq!(apart.as_nanos() % interval.as_nanos(), 0);
        }
        let cadence = Cadence::every(Duration::from_secs(10)).unwrap();
        let anchor = UNIX_EPOCH + Duration::from_secs(1000);
        let earlier = UNIX_EPOCH + Duration::from_secs(980);
        assert_eq!(cadence.next_after(anchor, earlier).unwrap(), UNIX_EPOCH + Duration::from_secs(990));
    }
}
