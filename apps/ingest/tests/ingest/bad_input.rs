//! Files that cannot be loaded: a clear error, and nothing is changed.

use std::convert::Infallible;

use anyhow::Result;
use bytes::Bytes;
use futures_util::stream;
use pitwheel::State;
use pitwheel_ingest::{CsvOptions, Lane, Method, Target, Uploads};
use pitwheel_testkit::ScratchFolder;

use crate::support::{TestIngest, entries, lane, skipping};

const HEADER: &str = "unit,category,quantity,measure\n";
const MIB: usize = 1024 * 1024;

async fn nothing_changed(test: &TestIngest) -> Result<()> {
    assert_eq!(test.quantities(&lane()).await?, ["1"]);
    assert_eq!(test.db.count("select count(*) from ingest.entry").await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_file_whose_beginning_is_wrong_is_refused_at_once() -> Result<()> {
    let test = TestIngest::new().await?;
    test.load(&lane(), entries(&["1"]), &CsvOptions::default()).await?;
    let jobs = test.db.count("select count(*) from ingest.sync").await?;
    let wide = vec![b','; 10_000];
    let cases: [(&[u8], &str); 10] = [
        (b"", "the file is empty"),
        (b"\n\n\n", "the file is empty"),
        (b"\xef\xbb\xbf", "the file is empty"),
        (b"it,flight,1,km\nit,flight,2,km\n", "no name of a column was found"),
        (b"unit,category,quantty,measure\n", "did you mean `quantity`?"),
        (b"unit,category,quantity,measure,colour\n", "column `colour` is not known"),
        (&wide, "has more than 1000 columns"),
        (b"PK\x03\x04\x14\x00", "a ZIP or Excel file"),
        (b"unit,\"category\n", "a quote that is never closed"),
        (b"\x00\x01\x02\x03", "no name of a column was found"),
    ];
    for (bytes, expected) in cases {
        let upload = test.receive(bytes.to_vec()).await?;
        let refused = test.ingest.load(&lane(), upload, None, &CsvOptions::default(), "test").await;
        let error = refused.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(
            error.contains(expected),
            "{:?}: {error}",
            String::from_utf8_lossy(&bytes[..bytes.len().min(40)])
        );
    }
    let wrong = CsvOptions { encoding: Some("klingon".into()), ..CsvOptions::default() };
    assert!(test.upload(&lane(), HEADER, &wrong).await.is_err());
    assert_eq!(test.db.count("select count(*) from ingest.sync").await?, jobs, "no job was made");
    assert_eq!(test.files()?, 0, "no file is left");
    nothing_changed(&test).await
}

#[tokio::test]
async fn what_is_wrong_further_down_ends_the_job_and_changes_nothing() -> Result<()> {
    let test = TestIngest::new().await?;
    test.load(&lane(), entries(&["1"]), &CsvOptions::default()).await?;
    let rows = "it,flight,2,km\n".repeat(10_000);
    let after = |bytes: &[u8]| [HEADER.as_bytes(), rows.as_bytes(), bytes].concat();
    let cases = [
        (after(b"it,\"flight,2,km\n"), "line 10002 begins a row with a quote that is never closed"),
        (after(b"Z\xfcrich,flight,2,km\n"), "line 10002 is not UTF-8"),
        (after(&vec![b'x'; 2 * MIB]), "line 10002 begins a row of more than 1048576 bytes"),
        (after(&vec![b','; 10_000]), "line 10002 has more than 1000 columns"),
        (after(b"it,fl\0ght,2,km\n"), "line 10002, column `category`: has a NUL byte"),
        (after(b"it,flight,2\n"), "line 10002: the row has 3 columns, the header has 4"),
        (HEADER.as_bytes().to_vec(), "a header and no rows"),
    ];
    for (bytes, expected) in cases {
        let job = test.load(&lane(), bytes, &CsvOptions::default()).await?;
        let error = TestIngest::error(&job);
        assert!(error.contains(expected), "{expected}: {error}");
        nothing_changed(&test).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_row_of_a_hundred_megabytes_ends_the_job() -> Result<()> {
    let test = TestIngest::new().await?;
    let line = Bytes::from(vec![b'x'; MIB]);
    let chunks = std::iter::once(Bytes::from(HEADER)).chain(std::iter::repeat_n(line, 100));
    let upload = test.ingest.uploads().receive(stream::iter(chunks.map(Ok::<_, Infallible>))).await?;
    let id = test.ingest.load(&lane(), upload, None, &skipping(), "test").await?;
    let error = TestIngest::error(&test.run(id).await?);
    assert!(error.contains("line 2 begins a row of more than 1048576 bytes"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_file_with_too_many_wrong_rows_is_refused_whatever_is_skipped() -> Result<()> {
    let test = TestIngest::new().await?;
    let text = format!("{HEADER}{}", "it,flight,many,km\n".repeat(10_001) + "it,flight,1,km\n");
    let job = test.load(&lane(), text, &skipping()).await?;
    assert!(TestIngest::error(&job).contains("more than 10000 rows are wrong"));
    assert_eq!(test.db.count("select count(*) from ingest.rejected").await?, 10_000);
    assert!(test.current(&lane()).await?.is_none());
    Ok(())
}

#[tokio::test]
async fn an_upload_that_is_cut_off_or_too_long_leaves_nothing() -> Result<()> {
    let test = TestIngest::new().await?;
    let uploads = test.ingest.uploads();
    let cut = stream::iter([Ok(Bytes::from(HEADER)), Err("the connection was closed")]);
    let error = uploads.receive(cut).await.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("cut off after 31 bytes"), "{error}");
    let small = Uploads::new(test.folder.path()).limit(10);
    let error = small.receive(stream::iter([Ok::<_, Infallible>(Bytes::from(HEADER))])).await.err();
    assert!(error.is_some_and(|error| error.to_string().contains("more than 10 bytes")));
    assert_eq!(test.files()?, 0);
    Ok(())
}

#[tokio::test]
async fn factors_that_contradict_each_other_are_refused() -> Result<()> {
    let test = TestIngest::new().await?;
    let factors = pitwheel_ingest::Lane { target: pitwheel_ingest::Target::Factors, ..lane() };
    let text = "category,measure,kg_co2e,scope\nflight,km,0.2,3\ntrain,km,0.01,3\nflight,km,0.3,3\n";
    let job = test.load(&factors, text, &CsvOptions::default()).await?;
    assert!(TestIngest::error(&job).contains("lines 2 and 4 are both about `flight, km`"));
    assert_eq!(test.db.count("select count(*) from ingest.factor").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_file_with_carriage_returns_as_line_ends_is_loaded() -> Result<()> {
    let test = TestIngest::new().await?;
    let text = entries(&["1", "many", "2", "3", "few"]).replace('\n', "\r");
    let job = test.load(&lane(), text, &skipping()).await?;
    assert_eq!(job.summary.state, State::Done, "{:?}", job.errors);
    assert_eq!(test.quantities(&lane()).await?, ["1", "2", "3"]);
    let rejected = test.ingest.rejected(job.summary.id, 0, 10).await?;
    assert_eq!(rejected.iter().map(|row| row.line).collect::<Vec<_>>(), [3, 6]);
    Ok(())
}

#[tokio::test]
async fn what_postgres_refuses_for_good_is_not_tried_again() -> Result<()> {
    let test = TestIngest::new().await?;
    test.load(&lane(), entries(&["1"]), &CsvOptions::default()).await?;
    let refuse = "alter table ingest.entry add constraint small check (quantity < 100) not valid";
    test.db.client().await?.batch_execute(refuse).await?;
    let job = test.load(&lane(), entries(&["100"]), &CsvOptions::default()).await?;
    let error = TestIngest::error(&job);
    assert!(error.contains("(23514)"), "{error}");
    assert_eq!(job.summary.attempt, 1);
    nothing_changed(&test).await
}

#[tokio::test]
async fn a_file_of_this_machine_has_the_limit_of_an_upload() -> Result<()> {
    let test = TestIngest::new().await?;
    let files = ScratchFolder::create()?;
    let path = files.path().join("long.csv");
    std::fs::write(&path, HEADER)?;
    let small = Uploads::new(test.folder.path()).limit(10);
    let error = small.copy(&path).await.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("more than 10 bytes"), "{error}");
    assert_eq!(test.files()?, 0, "no file is left");
    Uploads::new(test.folder.path()).limit(HEADER.len() as u64).copy(&path).await?;
    Ok(())
}

#[tokio::test]
async fn a_source_with_a_password_is_refused() -> Result<()> {
    let test = TestIngest::new().await?;
    let units =
        Lane { method: Method::Api, target: Target::Units, module: None, entry_type: None, year: None };
    for location in
        ["https://ada:secret@example.com/units.csv", "http://ada@example.com/", "https://:x@example.com"]
    {
        let refused = test.ingest.set_source(&units, location).await;
        let error = refused.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("no user name and no password"), "{location}: {error}");
        assert!(!error.contains("secret"), "{error}");
    }
    test.ingest.set_source(&units, "https://example.com/a@b.csv?by=ada@example.com").await?;
    Ok(())
}
