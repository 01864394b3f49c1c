//! Lanes: jobs that run one at a time, in the order in which they were enqueued.

use serde_json::Value;

use crate::error::Error;

/// The bytes that the name of a lane may have as JSON text.
pub(crate) const LANE_BYTES_MAX: usize = 512;

/// The name of a lane: a string, or an array of strings, integers, booleans and nulls. Two names are the same lane if they are equal
/// as JSON; a null is equal to a null.
///
/// ```
/// # use pitwheel::{Lane, NewJob};
/// # fn example() -> Result<(), pitwheel::Error> {
/// let for_tenant = NewJob::raw("import", "{}").lane("tenant-7");
/// let for_year = NewJob::raw("import", "{}").lane(Lane::of(serde_json::json!(["energy", 3, null, 2026]))?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// JSON text. Postgres makes it canonical (`pitwheel.lane_text`).
    json: String,
}

impl Lane {
    /// The lane with this name. Fails if the value cannot name a lane.
    pub fn of(value: Value) -> Result<Lane, Error> {
        let lane = Lane { json: value.to_string() };
        check_value(&value).and_then(|()| check_size(&lane.json))?;
        Ok(lane)
    }

    /// The lane whose name is this JSON text.
    pub fn from_json(json: &str) -> Result<Lane, Error> {
        let value = serde_json::from_str(json)
            .map_err(|problem| Error::Invalid(format!("lane is not JSON: {problem}")))?;
        Lane::of(value)
    }

    /// Its name as JSON text.
    pub fn as_json(&self) -> &str {
        &self.json
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        check_size(&self.json)?;
        if self.json.contains("\\u0000") {
            return Err(Error::Invalid("lane holds a NUL character, which Postgres cannot store".into()));
        }
        Ok(())
    }
}

impl From<&str> for Lane {
    fn from(name: &str) -> Lane {
        Lane { json: Value::from(name).to_string() }
    }
}

impl From<String> for Lane {
    fn from(name: String) -> Lane {
        name.as_str().into()
    }
}

fn check_value(value: &Value) -> Result<(), Error> {
    let is_part = |part: &Value| match part {
        Value::Null | Value::Bool(_) | Value::String(_) => true,
        Value::Number(number) => number.is_i64(),
        Value::Array(_) | Value::Object(_) => false,
    };
    let is_lane = match value {
        Value::String(_) => true,
        Value::Array(parts) => !parts.is_empty() && parts.iter().all(is_part),
        _ => false,
    };
    if is_lane {
        return Ok(());
    }
    let shown: String = value.to_string().chars().take(80).collect();
    Err(Error::Invalid(format!(
        "lane `{shown}` is neither a string nor an array of strings, integers, booleans and nulls"
    )))
}

/// Postgres writes a space after each comma, so a name near the limit may be refused there.
fn check_size(json: &str) -> Result<(), Error> {
    if json.len() > LANE_BYTES_MAX {
        return Err(Error::Invalid(format!(
            "lane has {} bytes, it may have at most {LANE_BYTES_MAX}: use a shorter name",
            json.len()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_lane_is_a_string_or_an_array_of_plain_values() {
        for good in
            [json!("a"), json!(["a", 1, null, true]), json!([null]), json!([-9_007_199_254_740_993_i64])]
        {
            assert!(Lane::of(good.clone()).is_ok_and(|lane| lane.check().is_ok()), "{good}");
        }
        for bad in [
            json!(null),
            json!(7),
            json!([]),
            json!([1.5]),
            json!([[1]]),
            json!([{}]),
            json!({}),
            json!(true),
        ] {
            assert!(Lane::of(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_lane_has_at_most_512_bytes() {
        assert!(Lane::from("x".repeat(510)).check().is_ok());
        assert!(Lane::from("x".repeat(511)).check().is_err());
        assert!(Lane::from("\0").check().is_err());
    }
}
