//! Feed documents of many programs, with what they say: the corpus of gofeed. It is no part of this repository. The test reads it
//! from `../shared/corpora/feeds-gofeed`, beside the repository, or from `FEED_CORPUS`.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use pitwheel_feeds::parse::{Document, parse};
use serde_json::Value;
use url::Url;

/// Documents whose title, link, id and dates agree with what is expected. A change that lowers this breaks a feed that worked.
const AGREE: usize = 87;
/// Documents that are parsed or refused.
const DOCUMENTS: usize = 1091;

fn corpus() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpora/feeds-gofeed");
    let named = std::env::var_os("FEED_CORPUS").map(PathBuf::from);
    named.or(Some(beside)).map(|folder| folder.join("testdata")).filter(|folder| folder.is_dir())
}

/// All files below a folder, sorted.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    found.sort();
    Ok(found)
}

fn parsed(path: &Path) -> Result<Result<Document, String>> {
    let url = "http://feed.example/feed".parse()?;
    Ok(parse(&std::fs::read(path)?, None, &url).map_err(|error| error.to_string()))
}

#[test]
fn every_document_is_parsed_or_refused_cleanly() -> Result<()> {
    let Some(corpus) = corpus() else { return skipped() };
    let (mut all, mut feeds) = (0, 0);
    for path in files(&corpus)? {
        let outcome = parsed(&path)?;
        assert!(
            outcome.as_ref().err() != Some(&"the document is not a feed: the parser gave up".into()),
            "{path:?}"
        );
        all += 1;
        feeds += usize::from(outcome.is_ok());
    }
    println!("{all} documents: {feeds} are feeds, the others are refused, none made the parser panic");
    assert!(all >= DOCUMENTS, "{all} documents");
    Ok(())
}

#[test]
fn titles_links_ids_and_dates_agree_with_the_corpus() -> Result<()> {
    let Some(corpus) = corpus() else { return skipped() };
    let (mut agree, mut differ) = (0, Vec::new());
    for path in files(&corpus.join("translator"))? {
        let Some(expected) = expected(&path)? else { continue };
        let differences = match parsed(&path)? {
            Ok(document) => differences(&document, &expected),
            Err(error) => vec![error],
        };
        match differences.as_slice() {
            [] => agree += 1,
            _ => differ.push(format!("{}: {}", name(&path), differences.join("; "))),
        }
    }
    println!("{agree} documents agree, {} differ:\n{}", differ.len(), differ.join("\n"));
    assert!(agree >= AGREE, "{agree} documents agree, {AGREE} are expected");
    Ok(())
}

fn skipped() -> Result<()> {
    println!(
        "SKIPPED: the feed corpus is not here; set FEED_CORPUS to a copy of gofeed's folder to run this test"
    );
    Ok(())
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// What a document is expected to say: `NAME.json` beside `NAME.xml`, `NAME_expected.json` beside `NAME.json`.
fn expected(path: &Path) -> Result<Option<Value>> {
    let stem = path.with_extension("");
    let stem = stem.to_string_lossy();
    let beside = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xml") => PathBuf::from(format!("{stem}.json")),
        Some("json") => PathBuf::from(format!("{stem}_expected.json")),
        _ => return Ok(None),
    };
    if !beside.is_file() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&beside)?;
    serde_json::from_str(&text).map(Some).with_context(|| format!("{}", beside.display()))
}

/// The fields that differ, of those that are expected.
fn differences(document: &Document, expected: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut text = |field: &str, expected: &Value, actual: Option<&str>| {
        if let Some(expected) = expected.as_str().map(str::trim).filter(|text| !text.is_empty())
            && Some(expected) != actual
            && Url::parse(expected).map(String::from).ok().as_deref() != actual
        {
            found.push(format!("{field} is {actual:?}, not {expected:?}"));
        }
    };
    text("title", &expected["title"], document.title.as_deref());
    text("link", &expected["link"], document.site_url.as_deref());
    let items = expected["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (at, item) in items.iter().enumerate() {
        let article = document.articles.get(at);
        text("item title", &item["title"], article.and_then(|article| article.title.as_deref()));
        text("item link", &item["link"], article.and_then(|article| article.url.as_deref()));
        text("item guid", &item["guid"], article.and_then(|article| article.guid.as_deref()));
    }
    let mut time = |field: &str, expected: &Value, actual: Option<SystemTime>| {
        let expected = expected.as_str().filter(|text| !text.starts_with("0001"));
        let actual = actual.map(pitwheel_server::views::time);
        if let Some(expected) = expected
            && Some(expected) != actual.as_deref()
        {
            found.push(format!("{field} is {actual:?}, not {expected:?}"));
        }
    };
    time("updated", &expected["updatedParsed"], document.updated_at);
    time("published", &expected["publishedParsed"], document.published_at);
    for (at, item) in items.iter().enumerate() {
        let article = document.articles.get(at);
        time("item published", &item["publishedParsed"], article.and_then(|article| article.published_at));
        time("item updated", &item["updatedParsed"], article.and_then(|article| article.updated_at));
    }
    found
}
