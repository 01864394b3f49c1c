//! Text as people read it.

/// Text from a database as a terminal may see it: control characters are spelled out, so that none takes effect.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// 10000 as 10,000.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_reach_no_terminal() {
        assert_eq!(visible("a\u{1b}[31mb\nc\u{9b}é"), r"a\u{1b}[31mb\nc\u{9b}é");
    }

    #[test]
    fn long_numbers_are_grouped() {
        let grouped = [0, 999, 1000, 10_000, 1_234_567].map(thousands);
        assert_eq!(grouped, ["0", "999", "1,000", "10,000", "1,234,567"]);
    }
}
