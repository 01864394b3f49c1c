//! OPML: lists of feeds that readers exchange.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use serde::Serialize;
use url::Url;
use utoipa::ToSchema;

/// More feeds than this of one file are refused.
pub const FEEDS_MAX: usize = 20_000;
/// Deeper folders are refused.
const DEPTH_MAX: usize = 32;

/// A feed of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Outline {
    /// The URL of the feed.
    pub url: String,
    /// Its name.
    pub name: Option<String>,
    /// The folders that it is in, joined by `/`.
    pub category: Option<String>,
}

/// Why a list is refused.
#[derive(Debug, thiserror::Error)]
pub enum OpmlError {
    /// Not well-formed.
    #[error("the file is not OPML: {0}")]
    Xml(String),
    /// Too large.
    #[error("the file has more than {FEEDS_MAX} feeds or {DEPTH_MAX} levels of folders: split it")]
    TooLarge,
}

/// What a file holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Opml {
    /// Its feeds, each URL once.
    pub outlines: Vec<Outline>,
    /// Feeds whose URL cannot be fetched, as written.
    pub invalid: Vec<String>,
}

/// Reads a list. A feed that is in it twice is taken once.
///
/// # Errors
/// If it is not well-formed OPML, or too large.
pub fn read(text: &str) -> Result<Opml, OpmlError> {
    let mut reader = Reader::from_str(text);
    reader.config_mut().expand_empty_elements = true;
    let (mut opml, mut folders, mut known) = (Opml::default(), Vec::new(), std::collections::HashSet::new());
    let mut is_opml = false;
    loop {
        match reader.read_event().map_err(|error| OpmlError::Xml(error.to_string()))? {
            Event::Start(tag) if tag.local_name().as_ref() == "outline" => {
                let outline = attributes(&tag)?;
                let (url, name) = (outline.0, outline.1);
                match url {
                    Some(url) => {
                        opml.add(&url, name, &folders, &mut known);
                        folders.push(None);
                    }
                    None => folders.push(name),
                }
                if folders.len() > DEPTH_MAX || opml.outlines.len() > FEEDS_MAX {
                    return Err(OpmlError::TooLarge);
                }
            }
            Event::Start(tag) => is_opml |= tag.local_name().as_ref() == "opml",
            Event::End(tag) if tag.local_name().as_ref() == "outline" => drop(folders.pop()),
            Event::Eof => break,
            _ => {}
        }
    }
    if !is_opml {
        return Err(OpmlError::Xml("it has no `opml` element".into()));
    }
    Ok(opml)
}

impl Opml {
    fn add(
        &mut self,
        url: &str,
        name: Option<String>,
        folders: &[Option<String>],
        known: &mut std::collections::HashSet<String>,
    ) {
        match Url::parse(url.trim()) {
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => {
                let url = url.to_string();
                if known.insert(url.clone()) {
                    let folders: Vec<&str> = folders.iter().flatten().map(String::as_str).collect();
                    let category = Some(folders.join("/")).filter(|category| !category.is_empty());
                    self.outlines.push(Outline { url, name, category });
                }
            }
            _ => self.invalid.push(url.to_owned()),
        }
    }
}

/// The `xmlUrl` and the name of an outline.
fn attributes(tag: &BytesStart<'_>) -> Result<(Option<String>, Option<String>), OpmlError> {
    let failed = |error: &dyn std::fmt::Display| OpmlError::Xml(error.to_string());
    let (mut url, mut text, mut title) = (None, None, None);
    for attribute in tag.attributes() {
        let attribute = attribute.map_err(|error| failed(&error))?;
        let value = attribute.normalized_value(quick_xml::XmlVersion::Implicit1_0);
        let value = value.map_err(|error| failed(&error))?.trim().to_owned();
        let slot = match attribute.key.local_name().as_ref() {
            "xmlUrl" | "xmlurl" | "xmlURL" => &mut url,
            "text" => &mut text,
            "title" => &mut title,
            _ => continue,
        };
        *slot = Some(value).filter(|value| !value.is_empty());
    }
    Ok((url, text.or(title)))
}

/// Writes a list, with a folder for each category.
pub fn write(outlines: &[Outline]) -> String {
    let mut sorted: Vec<&Outline> = outlines.iter().collect();
    sorted.sort_by(|one, other| (&one.category, &one.url).cmp(&(&other.category, &other.url)));
    let mut text = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<opml version=\"2.0\">\n  <head><title>Feeds</title></head>\n  <body>\n",
    );
    let mut open: Vec<&str> = Vec::new();
    for outline in sorted {
        let folders: Vec<&str> = outline.category.iter().flat_map(|category| category.split('/')).collect();
        let shared = open.iter().zip(&folders).take_while(|(one, other)| one == other).count();
        close(&mut text, &mut open, shared);
        for folder in &folders[shared..] {
            indent(&mut text, open.len());
            text.push_str(&format!("<outline text=\"{}\">\n", escaped(folder)));
            open.push(folder);
        }
        indent(&mut text, open.len());
        let (name, url) = (escaped(outline.name.as_deref().unwrap_or(&outline.url)), escaped(&outline.url));
        text.push_str(&format!("<outline type=\"rss\" text=\"{name}\" xmlUrl=\"{url}\"/>\n"));
    }
    close(&mut text, &mut open, 0);
    text + "  </body>\n</opml>\n"
}

fn close(text: &mut String, open: &mut Vec<&str>, keep: usize) {
    while open.len() > keep {
        open.pop();
        indent(text, open.len());
        text.push_str("</outline>\n");
    }
}

fn indent(text: &mut String, depth: usize) {
    text.push_str(&"  ".repeat(depth + 2));
}

fn escaped(text: &str) -> String {
    quick_xml::escape::escape(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_survives_a_round_trip() {
        let outline = |url: &str, name: &str, category: Option<&str>| Outline {
            url: url.to_owned(),
            name: Some(name.to_owned()),
            category: category.map(str::to_owned),
        };
        let all = [
            outline("https://a.example/f?x=1&y=2", "A \"quoted\" <name> & more", None),
            outline("https://b.example/", "B", Some("News")),
            outline("https://c.example/", "C", Some("News/Local")),
            outline("https://d.example/", "D", Some("Zoo")),
        ];
        let text = write(&all);
        let back = read(&text).expect("well-formed");
        assert_eq!(back.outlines, all, "{text}");
        assert!(back.invalid.is_empty());
    }

    #[test]
    fn nested_folders_duplicates_and_wrong_urls_are_understood() {
        let text = r#"<opml version="1.0"><body>
            <outline text="News"><outline title="A" xmlUrl="https://a.example/feed"/>
              <outline text="Local"><outline xmlUrl="https://b.example/feed"></outline></outline></outline>
            <outline text="A again" xmlUrl="https://a.example/feed"/>
            <outline text="wrong" xmlUrl="feed://c.example"/></body></opml>"#;
        let opml = read(text).expect("well-formed");
        let found: Vec<_> = opml.outlines.iter().map(|one| (&*one.url, one.category.as_deref())).collect();
        let expected =
            [("https://a.example/feed", Some("News")), ("https://b.example/feed", Some("News/Local"))];
        assert_eq!(found, expected);
        assert_eq!(opml.outlines[0].name.as_deref(), Some("A"));
        assert_eq!(opml.invalid, ["feed://c.example"]);
    }

    #[test]
    fn what_is_not_a_list_is_refused() {
        for text in ["", "<rss/>", "<opml><body><outline></body></opml>", "not xml"] {
            assert!(read(text).is_err(), "{text}");
        }
        let deep = format!("<opml>{}", "<outline text=\"x\">".repeat(100));
        assert!(matches!(read(&deep), Err(OpmlError::TooLarge)));
    }
}
