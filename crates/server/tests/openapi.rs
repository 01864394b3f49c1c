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
