//! Every operation in the API's description is called with values that are out of range or of the wrong type.

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use pitwheel_testkit::{Http, HttpResponse, TestDb, WAIT_MAX};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::Node;

/// Values for path and query parameters.
const WORDS: [&str; 14] = [
    "0",
    "-1",
    "9223372036854775807",
    "9223372036854775808",
    "1e9",
    "abc",
    "%00",
    "%FF",
    "%2e%2e%2f",
    "a%20b",
    "%F0%9F%92%A9",
    "true",
    "'%3B--",
    "2030-13-45T99:99:99Z",
];

fn values() -> Vec<Value> {
    let deep = (0..200).fold(json!(1), |inner, _| json!([inner]));
    vec![
        Value::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!(1e300),
        json!(""),
        json!("\0"),
        json!("x".repeat(10_000)),
        json!("1969-01-01T00:00:00Z"),
        json!("999999-01-01T00:00:00Z"),
        json!([]),
        json!(["\0"]),
        json!([i64::MIN, i64::MAX]),
        json!(vec![1; 1001]),
        json!({}),
        json!({ "\0": 1 }),
        deep,
    ]
}

/// Fails if the response is a server error, or an error without a problem document.
fn check(response: &HttpResponse, what: &str) {
    assert!((200..500).contains(&response.status), "{what}: {} {}", response.status, response.text);
    if response.status >= 400 {
        assert_eq!(
            response.content_type, "application/problem+json",
            "{what}: {} {}",
            response.status, response.text
        );
    }
}

/// A value that the schema allows.
fn sample(schema: &Value, description: &Value) -> Value {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
        return sample(&description["components"]["schemas"][name], description);
    }
    if let Some(first) =
        schema["oneOf"].as_array().and_then(|all| all.iter().find(|one| one["type"] != "null"))
    {
        return sample(first, description);
    }
    let kind = schema["type"].as_str().or_else(|| schema["type"][0].as_str()).unwrap_or("object");
    match kind {
        "object" => schema["properties"].as_object().map_or(json!({}), |properties| {
            properties.iter().map(|(name, schema)| (name.clone(), sample(schema, description))).collect()
        }),
        "array" => json!([sample(&schema["items"], description)]),
        "integer" | "number" => json!(4711),
        "boolean" => json!(false),
        _ => schema["example"].as_str().map_or(json!("x"), |example| json!(example)),
    }
}

/// The sample with each of its values replaced by each of the wrong values.
fn bodies(sample: &Value) -> Vec<Value> {
    let mut all = values();
    match sample {
        Value::Object(fields) => {
            for (name, inner) in fields {
                for other in bodies(inner) {
                    let mut changed = fields.clone();
                    changed.insert(name.clone(), other);
                    all.push(Value::Object(changed));
                }
            }
        }
        Value::Array(items) => {
            all.extend(items.first().map(bodies).unwrap_or_default().into_iter().map(|item| json!([item])));
        }
        _ => {}
    }
    all
}

#[tokio::test]
async fn no_request_stops_the_server_or_loses_a_job() -> Result<()> {
    let db = TestDb::new().await?;
    for _ in 0..3 {
        db.job().kind("kept").queue("kept").insert().await?;
    }
    let node = Node::start(db.pitwheel(), Duration::from_secs(30)).await?;
    let http = Http::new(node.address);
    let description = http.get("/api/openapi.json").await?.json()?;
    let mut calls = 0;
    for (path, methods) in description["paths"].as_object().context("no paths")? {
        for (method, call) in methods.as_object().context("no methods")? {
            let method = method.to_uppercase();
            let path = format!("/api/v1{path}");
            let named: Vec<String> = WORDS.iter().map(|word| fill(&path, word)).collect();
            // A valid request for events gets a response without an end.
            let endless = path.ends_with("/events");
            for path in named.iter().filter(|_| !endless) {
                check(&http.json(&method, path, &json!({})).await?, &format!("{method} {path}"));
                calls += 1;
            }
            for parameter in call["parameters"].as_array().into_iter().flatten() {
                let Some(name) = parameter["name"].as_str().filter(|_| parameter["in"] == "query") else {
                    continue;
                };
                for word in WORDS {
                    if endless && ["0", "-1", "9223372036854775807"].contains(&word) {
                        continue;
                    }
                    let path = format!("{}?{name}={word}", fill(&path, "1"));
                    check(&http.json(&method, &path, &Value::Null).await?, &format!("{method} {path}"));
                    calls += 1;
                }
            }
            let schema = &call["requestBody"]["content"]["application/json"]["schema"];
            if schema.is_null() {
                continue;
            }
            let path = fill(&path, "1");
            for body in bodies(&sample(schema, &description)) {
                let response = http.json(&method, &path, &body).await?;
                let shown: String = body.to_string().chars().take(200).collect();
                check(&response, &format!("{method} {path} {shown}"));
                calls += 1;
            }
            for (kind, bytes) in [
                ("application/json", &b"{"[..]),
                ("application/json", b"\xff\xfe"),
                ("application/json", b""),
                ("text/plain", b"{}"),
                ("multipart/form-data", b"--"),
            ] {
                let response = http.header("content-type", kind).send(&method, &path, bytes).await?;
                check(&response, &format!("{method} {path} {kind}"));
                assert!(response.status >= 400, "{method} {path} {kind}");
            }
        }
    }
    assert!(calls > 1000, "only {calls} calls: the description is incomplete");
    assert_eq!(status_of_too_large_body(node.address).await?, 413);
    for method in ["PUT", "DELETE", "PATCH", "OPTIONS", "BREW"] {
        check(&http.send(method, "/api/v1/jobs", "").await?, method);
    }
    assert_eq!(http.get("/readyz").await?.status, 200);
    assert_eq!(db.count("select count(*) from pitwheel.job where kind = 'kept'").await?, 3);
    node.stop().await
}

/// The status for a body above the limit. Written by hand: the server responds before it has read the body and closes
/// the connection, which a client library may report as a broken connection.
async fn status_of_too_large_body(address: SocketAddr) -> Result<u16> {
    const SIZE: usize = 33 * 1024 * 1024;
    let mut stream = TcpStream::connect(address).await?;
    let head = format!(
        "POST /api/v1/jobs HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
        content-type: application/json\r\ncontent-length: {SIZE}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    let _ = stream.write_all(&vec![b' '; SIZE]).await;
    let mut line = String::new();
    timeout(WAIT_MAX, BufReader::new(stream).read_line(&mut line)).await??;
    Ok(line.split(' ').nth(1).with_context(|| format!("no status: {line:?}"))?.parse()?)
}

fn fill(path: &str, word: &str) -> String {
    let parts = path.split('/').map(|part| if part.starts_with('{') { word } else { part });
    parts.collect::<Vec<_>>().join("/")
}
