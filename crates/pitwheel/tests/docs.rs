//! The documents agree with the code.

use std::path::Path;

use anyhow::{Context, Result};
use pitwheel::{DatabaseError, Error, PayloadError};

fn document(name: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))
}

#[test]
fn every_error_code_has_a_section() -> Result<()> {
    let errors = [
        Error::Url(String::new()),
        Error::Database(DatabaseError::Unreachable(String::new())),
        Error::SchemaBehind { found: 0, needed: 1 },
        Error::SchemaAhead { found: 2, known: 1 },
        Error::Payload { what: "payload", problem: PayloadError::Nul },
        Error::Invalid(String::new()),
        Error::NotFound(1, ""),
        Error::KeyTaken(1),
        Error::NotStale(1, String::new()),
    ];
    let text = document("docs/errors.md")?;
    let sections: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let codes: Vec<&str> = errors.iter().map(Error::code).collect();
    // The codes of the server follow.
    assert_eq!(sections[..codes.len()], codes);
    Ok(())
}

#[test]
fn the_program_in_the_readme_is_the_example_that_is_built() -> Result<()> {
    let example = document("crates/pitwheel/examples/greet.rs")?;
    let (_, program) = example.split_once("\n\n").context("the example has no doc line")?;
    assert!(document("README.md")?.contains(program), "README.md and examples/greet.rs differ");
    Ok(())
}
