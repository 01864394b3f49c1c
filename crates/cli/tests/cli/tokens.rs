//! Tokens from their creation to their end.

use pitwheel_testkit::{block_until, psql};
use serde_json::json;

use crate::support::{Db, Output, Result};

#[test]
fn the_secret_is_alone_on_stdout_and_is_shown_once() -> Result {
    let db = Db::migrated()?;
    let made = db.run(&["tokens", "create", "ci", "--role", "producer"])?.with_code(0)?;
    let secret = made.out.strip_suffix('\n').ok_or("no line")?;
    assert!(secret.starts_with("pitwheel_") && !secret.contains(char::is_whitespace), "{made:#?}");
    assert!(made.err.contains("it is not shown again"), "{made:#?}");
    assert!(!made.err.contains(secret), "{made:#?}");

    let listed = db.run(&["tokens", "list"])?.with_code(0)?;
    assert!(listed.out.starts_with("TOKEN  ROLE      CREATED"), "{}", listed.out);
    assert!(listed.out.contains("ci     producer"), "{}", listed.out);
    let everything = listed.out + &db.json(&["tokens", "list"])?.to_string();
    assert!(!everything.contains(secret), "{everything}");
    let stored = psql(&db.url, "select token::text from pitwheel.token as token")?;
    assert!(!stored.contains(secret), "{stored}");
    Ok(())
}

#[test]
fn json_output_is_the_token_with_its_secret() -> Result {
    let db = Db::migrated()?;
    let mut command = db.command(&["tokens", "create", "ci", "--role", "worker", "--expires", "30d"]);
    let made = Output::of(command.args(["-o", "json"]).env("USER", "ada"))?.with_code(0)?.json()?;
    let mut names: Vec<&str> =
        made.as_object().ok_or("no object")?.keys().map(String::as_str).collect::<Vec<_>>();
    names.sort_unstable();
    assert_eq!(names, ["created_at", "created_by", "expires_at", "name", "role", "secret"]);
    assert_eq!((&made["name"], &made["role"]), (&json!("ci"), &json!("worker")));
    assert_eq!(made["created_by"], json!("cli ada"));
    assert!(made["secret"].as_str().is_some_and(|secret| secret.starts_with("pitwheel_")), "{made}");

    let listed = &db.json(&["tokens", "list"])?[0];
    assert_eq!((&listed["name"], &listed["expires_at"]), (&json!("ci"), &made["expires_at"]));
    let span = "select round(extract(epoch from expires_at - created_at) / 86400) from pitwheel.token";
    assert_eq!(psql(&db.url, span)?, "30");
    Ok(())
}

#[test]
fn a_revoked_token_is_not_listed_and_its_name_is_free() -> Result {
    let db = Db::migrated()?;
    let create = ["tokens", "create", "ci", "--role", "viewer"];
    db.run(&create)?.with_code(0)?;
    db.run(&create)?.with_code(2)?.assert_error("`ci` exists already: revoke it first");

    let revoked = db.run(&["tokens", "revoke", "ci"])?.with_code(0)?;
    assert!(revoked.err.contains("`ci` is revoked"), "{revoked:#?}");
    let again = db.run(&["tokens", "revoke", "ci"])?.with_code(3)?;
    again.assert_error("there is no token `ci`: see `pitwheel tokens list`");
    let none = db.run(&["tokens", "list"])?.with_code(0)?;
    assert_eq!(none.out, "");
    assert!(none.err.contains("pitwheel tokens create"), "{none:#?}");

    db.run(&create)?.with_code(0)?;
    assert_eq!(db.json(&["tokens", "revoke", "ci"])?, json!({ "name": "ci", "revoked": true }));
    Ok(())
}

#[test]
fn an_invalid_token_is_refused() -> Result {
    let db = Db::migrated()?;
    let refused: [(&[&str], &str); 6] = [
        (&["ci"], "--role <ROLE>"),
        (&["ci", "--role", "boss"], "possible values: viewer, operator, admin, worker, producer"),
        (&["ci", "--role", "admin", "--expires", "soon"], "give a number and a unit"),
        (&["ci", "--role", "admin", "--expires", "0s"], "it must not be zero"),
        (&["ci", "--role", "admin", "--expires", "99999d"], "more than 100 years away"),
        (&["no name", "--role", "admin"], "is not a name"),
    ];
    for (args, words) in refused {
        let output = db.run(&[&["tokens", "create"], args].concat())?.with_code(2)?;
        assert!(output.err.starts_with("error: ") && output.err.contains(words), "no {words:?}: {output:#?}");
        assert_eq!(output.out, "");
    }
    assert_eq!(db.json(&["tokens", "list"])?, json!([]));
    Ok(())
}

#[test]
fn an_expired_token_is_listed_as_such() -> Result {
    let db = Db::migrated()?;
    db.run(&["tokens", "create", "ci", "--role", "viewer", "--expires", "1ms"])?.with_code(0)?;
    block_until("it expires", || {
        db.run(&["tokens", "list"]).is_ok_and(|output| output.out.contains("expired "))
    })?;
    Ok(())
}
