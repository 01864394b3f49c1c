//! A flag wins over the environment, and the environment over the file.

use std::fs;

use serde_json::{Value, json};

use crate::support::{Db, Output, Result, pitwheel};

#[test]
fn a_flag_wins_over_the_environment_and_the_environment_over_the_file() -> Result {
    let (flag, environment, file) = (Db::migrated()?, Db::migrated()?, Db::migrated()?);
    for (db, kind) in [(&flag, "flag"), (&environment, "environment"), (&file, "file")] {
        db.enqueue(&[kind])?;
    }
    fs::write(flag.folder().join("pitwheel.toml"), format!("database_url = \"{}\"\n", file.url))?;
    let kind = |environment_url: &str, args: &[&str]| -> Result<String> {
        let mut command = pitwheel(flag.folder(), &[&["jobs", "list", "-o", "json"], args].concat());
        let output = Output::of(command.env("DATABASE_URL", environment_url))?.with_code(0)?;
        Ok(output.json()?[0]["kind"].as_str().ok_or("no kind")?.to_owned())
    };

    assert_eq!(kind("", &[])?, "file");
    assert_eq!(kind(&environment.url, &[])?, "environment");
    assert_eq!(kind(&environment.url, &["--database-url", &flag.url])?, "flag");
    Ok(())
}

#[test]
fn the_output_follows_the_same_order() -> Result {
    let db = Db::migrated()?;
    db.enqueue(&["greet"])?;
    let is_json = |variable: &str, args: &[&str]| -> Result<bool> {
        let mut command = db.command(&[&["jobs", "list"], args].concat());
        let output = Output::of(command.env("PITWHEEL_OUTPUT", variable))?.with_code(0)?;
        Ok(output.out.starts_with('['))
    };
    assert!(!is_json("", &[])?);
    fs::write(db.folder().join("pitwheel.toml"), "output = \"json\"\n")?;
    assert!(is_json("", &[])?);
    assert!(!is_json("table", &[])?);
    assert!(is_json("table", &["-o", "json"])?);

    let wrong = Output::of(db.command(&["jobs", "list"]).env("PITWHEEL_OUTPUT", "xml"))?.with_code(2)?;
    wrong.assert_error("PITWHEEL_OUTPUT is `xml`: it must be table or json");
    Ok(())
}

#[test]
fn logs_follow_the_same_order_and_are_json_on_every_line() -> Result {
    let db = Db::migrated()?;
    let logged = |variable: &str, args: &[&str]| -> Result<String> {
        let mut command = db.command(&[&["jobs", "show", "999"], args].concat());
        Ok(Output::of(command.env("PITWHEEL_LOG_FORMAT", variable))?.with_code(3)?.err)
    };
    let text = logged("", &[])?;
    assert!(text.starts_with("error: job 999 was not found"), "{text}");
    fs::write(db.folder().join("pitwheel.toml"), "log_format = \"json\"\n")?;
    for json in [logged("", &[])?, logged("text", &["--log-format", "json"])?] {
        let line: Value = serde_json::from_str(&json)?;
        assert_eq!(line["level"], json!("ERROR"));
        assert!(
            line["message"].as_str().is_some_and(|words| words.starts_with("job 999 was not found")),
            "{line}"
        );
        assert!(line["timestamp"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
    }
    assert_eq!(logged("text", &[])?, text);

    let wrong = Output::of(db.command(&["jobs", "list"]).env("PITWHEEL_LOG_FORMAT", "xml"))?.with_code(2)?;
    wrong.assert_error("PITWHEEL_LOG_FORMAT is `xml`: it must be text or json");
    Ok(())
}

#[test]
fn the_file_of_the_folder_wins_over_the_file_of_the_user() -> Result {
    let db = Db::migrated()?;
    let user = db.folder().join("configuration/pitwheel");
    fs::create_dir_all(&user)?;
    fs::write(user.join("config.toml"), "output = \"json\"\n")?;
    assert_eq!(db.run(&["jobs", "list"])?.with_code(0)?.json()?, json!([]));
    fs::write(db.folder().join("pitwheel.toml"), "# ours\n")?;
    assert_eq!(db.run(&["jobs", "list"])?.with_code(0)?.out, "");
    Ok(())
}

#[test]
fn an_invalid_file_is_reported_with_its_name_and_line() -> Result {
    let db = Db::migrated()?;
    let wrong = [
        (
            "output = \"json\"\ndatabase-url = \"x\"\n",
            "`pitwheel.toml`, line 2: unknown field `database-url`",
        ),
        ("\n\noutput = 5\n", "`pitwheel.toml`, line 3: "),
        ("database_url = \n", "`pitwheel.toml`, line 1: "),
    ];
    for (text, words) in wrong {
        fs::write(db.folder().join("pitwheel.toml"), text)?;
        db.run(&["jobs", "list"])?.with_code(2)?.assert_error(words);
    }
    Ok(())
}

#[test]
fn an_unreachable_database_is_reported_with_its_source_and_without_its_password() -> Result {
    let db = Db::empty()?;
    let away = "postgres://me:sesame@127.0.0.1:1/app";
    let output = db.run(&["jobs", "list", "--database-url", away])?.with_code(1)?;
    output.assert_error("check the database that --database-url names");
    assert!(!output.err.contains("sesame"), "{output:#?}");
    let output = Output::of(db.command(&["jobs", "list"]).env("DATABASE_URL", "mysql://me:sesame@here"))?
        .with_code(2)?;
    output.assert_error("from DATABASE_URL");
    assert!(!output.err.contains("sesame"), "{output:#?}");
    Ok(())
}

#[test]
fn without_a_database_one_sentence_tells_what_to_do() -> Result {
    let dev = pitwheel_devdb::default_dir();
    if [dev.clone(), dev.with_file_name("demo")].iter().any(|dir| pitwheel_devdb::running(dir).is_some()) {
        // The user who runs the tests also runs a dev database, and that one would be used.
        return Ok(());
    }
    let db = Db::empty()?;
    let output = Output::of(&mut pitwheel(db.folder(), &["jobs", "list"]))?.with_code(2)?;
    output.assert_error("start one with `pitwheel dev`, or set DATABASE_URL");
    Ok(())
}
