//! Text that is safe to print.

/// Text from the database with its control characters escaped, so that they have no effect on a terminal.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(visible("a\u{1b}[31mb\nc\u{9b}é"), r"a\u{1b}[31mb\nc\u{9b}é");
    }
}
