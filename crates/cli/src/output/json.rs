//! Indents JSON without parsing it: `serde_json` would not keep every digit of a number, nor duplicate keys.

/// Indents JSON: a line for each member. Does not check the syntax.
pub(crate) fn pretty(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let mut depth = 0;
    let mut rest = json.trim();
    while let Some(c) = rest.chars().next() {
        let mut taken = c.len_utf8();
        match c {
            '"' => {
                taken = string_length(rest);
                out.push_str(&rest[..taken]);
            }
            '{' | '[' => {
                out.push(c);
                let inside = rest[1..].trim_start();
                if let Some(close) = inside.chars().next().filter(|c| matches!(c, '}' | ']')) {
                    out.push(close);
                    taken = rest.len() - inside.len() + 1;
                } else {
                    depth += 1;
                    new_line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = usize::saturating_sub(depth, 1);
                new_line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                new_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_whitespace() => {}
            c => out.push(c),
        }
        rest = &rest[taken..];
    }
    out
}

fn new_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.push_str(&"  ".repeat(depth));
}

/// The length of the string that `text` starts with, including its quotes.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pretty_changes_only_white_space() {
        let json = r#"{"big":12345678901234567890123, "a":[ 1.50,{ },[ ]] ,"s":"q\" , {é"}"#;
        let lines = "{\n  \"big\": 12345678901234567890123,\n  \"a\": [\n    1.50,\n    {},\n    []\n  ],\n  \
                     \"s\": \"q\\\" , {é\"\n}";
        assert_eq!(pretty(json), lines);
    }

    #[test]
    fn pretty_accepts_invalid_json() {
        for odd in ["", "]]]", "{", "\"abc", "\"\\", "[,]", "é"] {
            let _ = pretty(odd);
        }
    }
}
