//! Writing CSV.

/// Appends a row, with a newline. Fields are quoted where they must be.
pub(crate) fn write_record<'a>(fields: impl Iterator<Item = &'a str>, out: &mut String) {
    for (at, field) in fields.enumerate() {
        if at > 0 {
            out.push(',');
        }
        if field.contains([',', '"', '\n', '\r', ';', '\t']) || field.starts_with(' ') || field.ends_with(' ')
        {
            out.push('"');
            out.push_str(&field.replace('"', "\"\""));
            out.push('"');
        } else {
            out.push_str(field);
        }
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        let mut out = String::new();
        write_record(["a", "b,c", "say \"x\"", "", "two\nlines"].into_iter(), &mut out);
        assert_eq!(out, "a,\"b,c\",\"say \"\"x\"\"\",,\"two\nlines\"\n");
    }
}
