//! A value of a row: checked, and written in the text format of `COPY`.

use crate::csv::columns::{Column, ValueType};

/// Characters of a name. Names are part of indexes.
const NAME_CHARS_MAX: usize = 200;
/// Characters of a text.
const TEXT_CHARS_MAX: usize = 10_000;
/// Bytes of a number. Postgres would take thousands of digits.
const NUMBER_BYTES_MAX: usize = 64;
/// The largest exponent of a number: `1e1000000` is a million digits.
const EXPONENT_MAX: u32 = 99;
/// Characters of a value that a message quotes.
const QUOTED_CHARS: usize = 40;

/// Checks a value and appends it. The error completes the sentence that begins with the name of the column.
pub(crate) fn write(
    value: &str,
    column: &Column,
    decimal_comma: bool,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let value = value.trim();
    if value.is_empty() {
        if column.required {
            return Err("is empty: every row needs a value".to_owned());
        }
        out.extend_from_slice(b"\\N");
        return Ok(());
    }
    match column.value {
        ValueType::Name => write_text(value, NAME_CHARS_MAX, out),
        ValueType::Text => write_text(value, TEXT_CHARS_MAX, out),
        ValueType::Number => write_number(value, decimal_comma, out),
        ValueType::Integer(min, max) => match value.parse::<i16>() {
            Ok(number) if (min..=max).contains(&number) => {
                out.extend_from_slice(number.to_string().as_bytes());
                Ok(())
            }
            _ => Err(format!("is `{}`, not a whole number from {min} to {max}", quoted(value))),
        },
        ValueType::Date if is_date(value) => {
            out.extend_from_slice(value.as_bytes());
            Ok(())
        }
        ValueType::Date => Err(format!("is `{}`, not a date: write it as in 2025-12-31", quoted(value))),
    }
}

fn write_text(value: &str, chars_max: usize, out: &mut Vec<u8>) -> Result<(), String> {
    if value.len() > chars_max && value.chars().count() > chars_max {
        return Err(format!("has more than {chars_max} characters"));
    }
    let is_special = |byte: &u8| matches!(byte, b'\\' | b'\t' | b'\n' | b'\r' | 0);
    let mut rest = value.as_bytes();
    while let Some(at) = rest.iter().position(is_special) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(match rest[at] {
            b'\\' => b"\\\\",
            b'\t' => b"\\t",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            _ => return Err("has a NUL byte, which no text has".to_owned()),
        });
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
    Ok(())
}

fn write_number(value: &str, decimal_comma: bool, out: &mut Vec<u8>) -> Result<(), String> {
    let point = if decimal_comma { b',' } else { b'.' };
    if !is_number(value.as_bytes(), point) {
        let example = if decimal_comma { "1234,5" } else { "1234.5" };
        return Err(format!("is `{}`, not a number: write it as in {example}", quoted(value)));
    }
    out.extend(value.bytes().map(|byte| if byte == b',' { b'.' } else { byte }));
    Ok(())
}

/// Digits with a sign, a fraction and an exponent, as Postgres reads them.
fn is_number(value: &[u8], point: u8) -> bool {
    let unsigned = value.strip_prefix(b"-").or_else(|| value.strip_prefix(b"+")).unwrap_or(value);
    let (mantissa, exponent) = match unsigned.iter().position(|byte| matches!(byte, b'e' | b'E')) {
        Some(at) => (&unsigned[..at], Some(&unsigned[at + 1..])),
        None => (unsigned, None),
    };
    let digits = mantissa.iter().filter(|byte| byte.is_ascii_digit()).count();
    let points = mantissa.iter().filter(|byte| **byte == point).count();
    let is_mantissa = digits > 0 && points <= 1 && digits + points == mantissa.len();
    let is_exponent = exponent.is_none_or(|text| {
        let unsigned = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
        unsigned.iter().all(u8::is_ascii_digit)
            && std::str::from_utf8(unsigned)
                .is_ok_and(|text| text.parse::<u32>().is_ok_and(|e| e <= EXPONENT_MAX))
    });
    value.len() <= NUMBER_BYTES_MAX && is_mantissa && is_exponent
}

fn is_date(value: &str) -> bool {
    let bytes = value.as_bytes();
    let shape = bytes.len() == 10
        && bytes
            .iter()
            .enumerate()
            .all(|(at, byte)| if matches!(at, 4 | 7) { *byte == b'-' } else { byte.is_ascii_digit() });
    if !shape {
        return false;
    }
    let part = |range: std::ops::Range<usize>| value[range].parse::<u32>().unwrap_or_default();
    let (year, month, day) = (part(0..4), part(5..7), part(8..10));
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    year > 0 && (1..=days).contains(&day)
}

/// The beginning of a value, without characters that have an effect on a terminal.
fn quoted(value: &str) -> String {
    let short: String =
        value.chars().map(|c| if c.is_control() { ' ' } else { c }).take(QUOTED_CHARS).collect();
    if short.len() < value.len() { format!("{short}…") } else { short }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(value: &str, kind: ValueType) -> Result<String, String> {
        let mut out = Vec::new();
        let column = Column { name: "x", value: kind, required: false };
        write(value, &column, false, &mut out).map(|()| String::from_utf8_lossy(&out).into_owned())
    }

    #[test]
    fn numbers_are_what_postgres_reads_and_nothing_else() {
        for number in ["1", "-1.5", "+2", ".5", "5.", "1e3", "1.5E-9", " 7 "] {
            assert_eq!(written(number, ValueType::Number).as_deref(), Ok(number.trim()), "{number}");
        }
        for other in
            ["1,5", "1 000", "1'000", "NaN", "inf", "--1", "1e", "e5", ".", "0x10", "1e1000000", "１", "1-2"]
        {
            assert!(written(other, ValueType::Number).is_err(), "{other}");
        }
        let mut out = Vec::new();
        let column = Column { name: "x", value: ValueType::Number, required: true };
        assert!(write("-1,5", &column, true, &mut out).is_ok() && out == b"-1.5");
        assert!(write("1.5", &column, true, &mut out).is_err(), "a thousand and a half, or one and a half?");
        assert!(write(" ", &column, true, &mut out).is_err());
    }

    #[test]
    fn dates_exist() {
        for date in ["2024-02-29", "2025-12-31", "0001-01-01"] {
            assert!(written(date, ValueType::Date).is_ok(), "{date}");
        }
        for other in [
            "2025-02-29",
            "1900-02-29",
            "2025-13-01",
            "2025-00-10",
            "2025-1-1",
            "31.12.2025",
            "0000-01-01",
            "2025-04-31",
        ] {
            assert!(written(other, ValueType::Date).is_err(), "{other}");
        }
    }

    #[test]
    fn text_keeps_every_character_but_nul() {
        assert_eq!(written("a\tb\\c\nd\re", ValueType::Text).as_deref(), Ok("a\\tb\\\\c\\nd\\re"));
        assert_eq!(written("\\N", ValueType::Text).as_deref(), Ok("\\\\N"), "not null");
        assert_eq!(written("", ValueType::Text).as_deref(), Ok("\\N"));
        assert!(written("a\0b", ValueType::Text).is_err());
        assert!(written(&"ü".repeat(NAME_CHARS_MAX), ValueType::Name).is_ok());
        assert!(written(&"ü".repeat(NAME_CHARS_MAX + 1), ValueType::Name).is_err());
    }
}
