//! The text of a document: its encoding, and repairs of what is wrong in many feeds.

use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};

use crate::parse::error::ParseError;

/// How many bytes are searched for the declaration of an XML document.
const PROLOG_BYTES: usize = 1024;
/// Namespaces of formats that the parser knows under another name.
const NAMESPACES: [(&str, &str); 6] = [
    ("http://my.netscape.com/rdf/simple/0.9/", "http://purl.org/rss/1.0/"),
    ("http://channel.netscape.com/rdf/simple/0.9/", "http://purl.org/rss/1.0/"),
    ("http://purl.org/atom/ns#", "http://www.w3.org/2005/Atom"),
    ("http://backend.userland.com/rss2", ""),
    ("http://backend.userland.com/RSS2", ""),
    ("http://blogs.law.harvard.edu/tech/rss", ""),
];
/// Elements of Atom 0.3 that Atom 1.0 has under another name.
const ATOM_03: [(&str, &str); 3] =
    [("issued", "published"), ("modified", "updated"), ("tagline", "subtitle")];
/// Versions of RSS that the parser knows.
const VERSIONS: [&str; 3] = ["2.0", "0.91", "0.92"];

/// The text of a document, ready for the parser: UTF-8, no characters that XML forbids.
///
/// # Errors
/// If the document declares entities: they are needed by no feed, and expanding them may take all memory.
pub(crate) fn prepare(body: &[u8], content_type: Option<&str>) -> Result<String, ParseError> {
    let text = decode(body, content_type);
    let text: String = text.chars().filter(|c| is_allowed(*c)).collect();
    if !text.trim_start().starts_with('<') {
        return Ok(text);
    }
    let root = root_at(&text);
    if text[..root].contains("<!ENTITY") {
        return Err(ParseError::Entities);
    }
    Ok(repair(&text[root..]))
}

/// By the byte order mark, the header, the declaration; else UTF-8, and Windows-1252 if that does not fit. Text that is UTF-8 and not
/// ASCII is UTF-8 whoever says that it is Windows-1252: by that name goes what a server sends by default (`us-ascii`,
/// `iso-8859-1`), every text fits it, and none that makes sense in it is UTF-8 by chance.
fn decode(body: &[u8], content_type: Option<&str>) -> String {
    if let Some((encoding, _)) = Encoding::for_bom(body) {
        return encoding.decode(body).0.into_owned();
    }
    let named = content_type.and_then(charset).or_else(|| declared(body)).unwrap_or(UTF_8);
    if named == WINDOWS_1252
        && let Ok(text) = std::str::from_utf8(body)
    {
        return text.to_owned();
    }
    let (text, _, wrong) = named.decode(body);
    if !wrong {
        return text.into_owned();
    }
    // What is named does not fit: a feed without a false letter is worth more than a false name.
    match std::str::from_utf8(body) {
        Ok(text) => text.to_owned(),
        Err(_) if named == UTF_8 => WINDOWS_1252.decode(body).0.into_owned(),
        Err(_) => text.into_owned(),
    }
}

/// The `charset` of a content type.
fn charset(content_type: &str) -> Option<&'static Encoding> {
    let mut params = content_type.split(';').skip(1).filter_map(|param| param.split_once('='));
    let (_, label) = params.find(|(name, _)| name.trim().eq_ignore_ascii_case("charset"))?;
    Encoding::for_label(label.trim().trim_matches(['"', '\'']).as_bytes())
}

/// The encoding in `<?xml … encoding="…"?>`.
fn declared(body: &[u8]) -> Option<&'static Encoding> {
    let prolog = String::from_utf8_lossy(&body[..body.len().min(PROLOG_BYTES)]);
    let (declaration, _) = prolog.trim_start().strip_prefix("<?xml")?.split_once("?>")?;
    let (_, after) = declaration.split_once("encoding")?;
    let label = after.trim_start().strip_prefix('=')?.trim_start();
    let quote = label.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let label = label[1..].split(quote).next()?;
    // A document that could be read this far is not UTF-16, whatever it says.
    Encoding::for_label(label.as_bytes()).filter(|encoding| encoding.is_ascii_compatible())
}

/// The characters that XML allows. Postgres cannot store NUL.
fn is_allowed(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

/// Where the root element begins: after the declaration, comments and the document type.
fn root_at(text: &str) -> usize {
    let mut at = 0;
    while let Some(open) = text[at..].find('<').map(|open| at + open) {
        let rest = &text[open..];
        let skipped = if rest.starts_with("<?") {
            rest.find("?>").map(|end| end + 2)
        } else if rest.starts_with("<!--") {
            rest.find("-->").map(|end| end + 3)
        } else if rest.starts_with("<!") {
            doctype_len(rest)
        } else {
            return open;
        };
        match skipped {
            Some(len) => at = open + len,
            None => break,
        }
    }
    text.len()
}

/// The length of a document type, with the declarations between its brackets.
fn doctype_len(text: &str) -> Option<usize> {
    let close = text.find('>')?;
    match text[..close].find('[') {
        None => Some(close + 1),
        Some(open) => {
            let end = open + text[open..].find(']')?;
            Some(end + text[end..].find('>')? + 1)
        }
    }
}

/// Gives the root element a version and namespaces that the parser knows.
fn repair(text: &str) -> String {
    let end = text.find('>').unwrap_or(text.len());
    let (root, rest) = text.split_at(end);
    let mut root = root.to_owned();
    for (old, new) in NAMESPACES {
        for quote in ['"', '\''] {
            let (from, to) = (format!("{quote}{old}{quote}"), format!("{quote}{new}{quote}"));
            // A default namespace without a name is none.
            root = root.replace(&from, &to);
        }
    }
    if root.starts_with("<rss") && !VERSIONS.iter().any(|known| has_version(&root, known)) {
        root = format!("<rss version=\"2.0\"{}", without_version(&root["<rss".len()..]));
    }
    if root.starts_with("<feed") && has_version(&root, "0.3") {
        return root + &with_names_of_atom_1(rest);
    }
    root + rest
}

fn with_names_of_atom_1(rest: &str) -> String {
    ATOM_03.iter().fold(rest.to_owned(), |text, (old, new)| {
        ["<", "</"].iter().fold(text, |text, open| {
            [">", " "].iter().fold(text, |text, end| {
                text.replace(&format!("{open}{old}{end}"), &format!("{open}{new}{end}"))
            })
        })
    })
}

fn has_version(root: &str, version: &str) -> bool {
    root.contains(&format!("version=\"{version}\"")) || root.contains(&format!("version='{version}'"))
}

/// The attributes of a tag without `version`.
fn without_version(attributes: &str) -> String {
    let Some(at) = attributes.find(" version") else { return attributes.to_owned() };
    let value = attributes[at + " version".len()..].trim_start().strip_prefix('=').map(str::trim_start);
    let quoted = value.and_then(|value| Some((value.chars().next()?, value.get(1..)?)));
    match quoted.and_then(|(quote, value)| value.split_once(quote)) {
        Some((_, after)) => format!("{}{after}", &attributes[..at]),
        None => attributes.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(text: &str) -> String {
        prepare(text.as_bytes(), None).expect("no entities")
    }

    #[test]
    fn encodings_are_found_in_the_header_the_mark_and_the_declaration() {
        let latin = b"<?xml version='1.0' encoding='iso-8859-1'?><rss version=\"2.0\">caf\xe9</rss>";
        assert!(prepare(latin, None).expect("text").contains("café"));
        let header = Some("text/xml; charset=\"ISO-8859-1\"");
        assert!(prepare(b"<feed>caf\xe9</feed>", header).expect("text").contains("café"));
        let utf16: Vec<u8> = "\u{feff}<feed>café</feed>".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(prepare(&utf16, None).expect("text"), "<feed>café</feed>");
        for wrong in ["us-ascii", "iso-8859-1", "windows-1252"] {
            let header = format!("text/xml; charset={wrong}");
            let text = prepare("<feed>café</feed>".as_bytes(), Some(&header)).expect("text");
            assert_eq!(text, "<feed>café</feed>", "{wrong}: the document is UTF-8");
        }
        assert!(prepare(b"<feed>caf\xe9</feed>", None).expect("text").contains("café"), "not UTF-8");
    }

    #[test]
    fn declared_entities_are_refused() {
        let bomb = "<?xml version='1.0'?><!DOCTYPE r [<!ENTITY a 'b'><!ENTITY c '&a;&a;'>]><rss>&c;</rss>";
        assert!(matches!(prepare(bomb.as_bytes(), None), Err(ParseError::Entities)));
        let doctype =
            "<!DOCTYPE rss PUBLIC \"-//Netscape//DTD RSS 0.91//EN\" \"x.dtd\"><rss version=\"0.91\"/>";
        assert_eq!(prepared(doctype), "<rss version=\"0.91\"/>");
    }

    #[test]
    fn old_versions_and_namespaces_are_renamed() {
        assert_eq!(prepared("<rss version=\"0.94\" a=\"b\">x"), "<rss version=\"2.0\" a=\"b\">x");
        assert_eq!(prepared("<rss>x"), "<rss version=\"2.0\">x");
        assert_eq!(prepared("<rss version='0.92'>x"), "<rss version='0.92'>x");
        let atom = prepared(
            "<feed version=\"0.3\" xmlns=\"http://purl.org/atom/ns#\"><issued a=\"b\">x</issued></feed>",
        );
        assert_eq!(
            atom,
            "<feed version=\"0.3\" xmlns=\"http://www.w3.org/2005/Atom\"><published a=\"b\">x</published></feed>"
        );
        let old = "<rdf:RDF xmlns=\"http://my.netscape.com/rdf/simple/0.9/\">";
        assert_eq!(prepared(old), "<rdf:RDF xmlns=\"http://purl.org/rss/1.0/\">");
    }

    #[test]
    fn characters_that_xml_forbids_are_left_out() {
        assert_eq!(prepared("<a>b\u{0}c\u{8}\u{fffe}d\te</a>"), "<a>bcd\te</a>");
    }
}
