//! Text that is safe to print.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_reach_no_terminal() {
        assert_eq!(visible("a\u{1b}[31mb\nc\u{9b}é"), r"a\u{1b}[31mb\nc\u{9b}é");
    }
}
