//! The description of the HTTP API. `sdk/python/tests/test_openapi.py` validates it and generates a client from it.

mod support;

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use pitwheel_testkit::{Http, TestDb};
use serde_json::{Value, json};

use crate::support::Node;

async fn document() -> Result<Value> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), Duration::from_secs(30)).await?;
    let document = Http::new(node.address).get("/api/openapi.json").await?.json()?;
    node.stop().await?;
    Ok(document)
}

#[tokio::test]
async fn operations_have_unique_ids_and_described_responses() -> Result<()> {
    let document = document().await?;
    let mut ids = HashSet::new();
    for (path, methods) in document["paths"].as_object().context("no paths")? {
        for (method, operation) in methods.as_object().context("no methods")? {
            let id = operation["operationId"].as_str().context("no id")?;
            assert!(ids.insert(id.to_owned()), "two operations are called {id}");
            let responses = operation["responses"].as_object().context("no responses")?;
            for (status, response) in responses {
                let description = response["description"].as_str().unwrap_or_default();
                assert!(!description.is_empty(), "{method} {path} {status} has no description");
            }
            let refusals: &[&str] = match operation.get("requestBody") {
                Some(_) => &["400", "401", "403", "408", "413", "415", "429", "500", "503"],
                None => &["400", "401", "403", "429", "500", "503"],
            };
            for status in refusals {
                assert!(responses.contains_key(*status), "{method} {path} has no {status}");
            }
        }
    }
    assert!(ids.len() > 20, "{ids:?}");
    Ok(())
}

#[tokio::test]
async fn values_have_their_types() -> Result<()> {
    let document = document().await?;
    let schemas = &document["components"]["schemas"];
    let states = json!(["waiting", "blocked", "running", "done", "dead", "cancelled"]);
    assert_eq!(schemas["JobState"]["enum"], states);
    let refusal = &document["paths"]["/jobs"]["post"]["responses"]["415"]["content"];
    let problem = json!({ "$ref": "#/components/schemas/Problem" });
    assert_eq!(refusal["application/problem+json"]["schema"], problem);
    assert!(schemas["Problem"]["properties"]["detail"].is_object(), "{}", schemas["Problem"]);
    assert_eq!(schemas["Role"]["enum"], json!(["viewer", "operator", "admin", "worker", "producer"]));
    assert_eq!(schemas["Outcome"]["enum"], json!(["done", "requested", "not_found", "key_taken"]));
    let line = &schemas["JobLine"]["properties"];
    assert_eq!(line["state"]["$ref"], "#/components/schemas/JobState");
    assert_eq!(line["run_at"]["format"], "date-time");
    assert_eq!(line["finished_at"]["format"], "date-time");
    let job = &schemas["JobToEnqueue"]["properties"];
    assert_eq!(job["run_at"]["format"], "date-time");
    assert!(job["kind"]["pattern"].is_string() && job["queue"]["pattern"].is_string(), "{job}");
    assert_eq!(job["payload"].get("type"), None, "any JSON: {}", job["payload"]);
    Ok(())
}

/// Names that a program gives itself: any text.
const FREE_NAMES: [&str; 2] = ["Worker", "RelayLine"];

/// Whether a value must match a pattern, is one of some words, or is an object. Of a list: each item.
fn is_limited(document: &Value, schema: &Value) -> bool {
    if let Some(path) = schema["$ref"].as_str() {
        let target = document.pointer(path.trim_start_matches('#'));
        return target.is_some_and(|schema| is_limited(document, schema));
    }
    let any_of = schema["oneOf"].as_array().into_iter().flatten();
    let mut any_of = any_of.filter(|schema| schema["type"] != "null").peekable();
    let any_is = any_of.peek().is_some() && any_of.all(|schema| is_limited(document, schema));
    let items = schema.get("items").is_some_and(|items| is_limited(document, items));
    let is_object = schema["properties"].is_object();
    schema["pattern"].is_string() || schema["enum"].is_array() || is_object || items || any_is
}

/// All objects in the schemas, each with the name of the schema that it is a part of.
fn objects<'d>(
    name: &'d str,
    schema: &'d Value,
    found: &mut Vec<(&'d str, &'d serde_json::Map<String, Value>)>,
) {
    if let Some(properties) = schema["properties"].as_object() {
        found.push((name, properties));
    }
    let parts = ["allOf", "oneOf", "anyOf"].into_iter().flat_map(|part| schema[part].as_array());
    parts.flatten().for_each(|part| objects(name, part, found));
}

#[tokio::test]
async fn names_have_a_pattern_and_words_are_listed() -> Result<()> {
    let document = document().await?;
    let mut found = Vec::new();
    for (name, schema) in document["components"]["schemas"].as_object().context("no schemas")? {
        objects(name, schema, &mut found);
    }
    let words = ["kind", "kinds", "queue", "queues", "state", "strategy", "step", "after", "role"];
    let mut missing = Vec::new();
    for (schema, properties) in &found {
        let is_name = |property: &str| property == "name" && !FREE_NAMES.contains(schema);
        for (property, value) in properties.iter() {
            if (words.contains(&property.as_str()) || is_name(property)) && !is_limited(&document, value) {
                missing.push(format!("{schema}.{property}"));
            }
        }
    }
    for (path, methods) in document["paths"].as_object().context("no paths")? {
        for (method, operation) in methods.as_object().context("no methods")? {
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let (name, schema) = (parameter["name"].as_str().context("no name")?, &parameter["schema"]);
                let is_key = name == "key" && schema["maxLength"] != 512;
                let is_word = name == "name" || words.contains(&name);
                if is_key || is_word && !is_limited(&document, schema) {
                    missing.push(format!("{method} {path} {name}"));
                }
            }
        }
    }
    assert_eq!(missing, [""; 0]);
    assert!(found.len() > 30, "{}", found.len());
    Ok(())
}
