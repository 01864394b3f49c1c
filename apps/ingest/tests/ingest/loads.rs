//! What a file does to the data of its lane.

use anyhow::{Context as _, Result};
use pitwheel::State;
use pitwheel_ingest::{CsvOptions, Lane, WorkerOptions};
use pitwheel_testkit::wait_until;

use crate::support::{TestIngest, entries, lane, skipping};

#[tokio::test]
async fn a_file_becomes_the_current_data_of_its_lane() -> Result<()> {
    let test = TestIngest::new().await?;
    let text = "\u{feff}Quantity;unit;Category;Measure;date;note\r\n\
        1.50;it;flight;km;2025-01-31;\"two\r\nlines; \"\"quoted\"\"\"\r\n\
        2;hr;train;km;;\r\n";
    let job = test.load(&lane(), text, &CsvOptions::default()).await?;

    assert_eq!(job.summary.state, State::Done);
    let current = test.current(&lane()).await?.context("nothing is current")?;
    assert_eq!((current.rows, current.rejected, current.job_id), (2, 0, job.summary.id));
    let rows = test.ingest.rows(current.id, 0, 10).await?;
    let first: serde_json::Value = serde_json::from_str(&rows[0].1)?;
    assert_eq!((rows[0].0, rows[1].0), (2, 4), "lines of the file");
    assert!(rows[0].1.contains("\"quantity\": 1.50"), "digits are kept: {}", rows[0].1);
    assert_eq!((&first["date"], &first["note"]), (&"2025-01-31".into(), &"two\r\nlines; \"quoted\"".into()));
    let result: serde_json::Value = serde_json::from_str(&job.result.unwrap_or_default())?;
    assert_eq!(result["format"], "UTF-8, delimiter `;`");
    assert_eq!(test.files()?, 0, "the upload is deleted");
    assert_eq!(test.db.count("select count(*) from ingest.current_entry").await?, 2);
    Ok(())
}

#[tokio::test]
async fn the_former_data_stays_readable_and_can_be_promoted_again() -> Result<()> {
    let test = TestIngest::new().await?;
    test.load(&lane(), entries(&["1"]), &CsvOptions::default()).await?;
    let first = test.current(&lane()).await?.context("nothing is current")?.id;
    test.load(&lane(), entries(&["2", "3"]), &CsvOptions::default()).await?;
    let second = test.current(&lane()).await?.context("nothing is current")?.id;

    assert_eq!(test.quantities(&lane()).await?, ["2", "3"]);
    assert_eq!(test.quantities_of(first).await?, ["1"]);
    let promoted = test.ingest.promote(first).await?;
    assert!(promoted.is_current && promoted.id == first);
    assert_eq!(test.quantities(&lane()).await?, ["1"]);
    assert!(!test.ingest.version(second).await?.is_current);
    assert!(test.ingest.promote(999).await.is_err());
    Ok(())
}

#[tokio::test]
async fn one_wrong_row_loads_nothing_and_is_reported_with_line_and_column() -> Result<()> {
    let test = TestIngest::new().await?;
    test.load(&lane(), entries(&["1"]), &CsvOptions::default()).await?;
    let job = test.load(&lane(), entries(&["2", "many", "3", ""]), &CsvOptions::default()).await?;

    let error = TestIngest::error(&job);
    assert!(error.contains("2 rows are wrong") && error.contains("line 3, column `quantity`"), "{error}");
    assert_eq!(test.quantities(&lane()).await?, ["1"], "the former data is current");
    assert_eq!(test.db.count("select count(*) from ingest.entry").await?, 1);
    let rejected = test.ingest.rejected(job.summary.id, 0, 10).await?;
    let seen: Vec<_> = rejected.iter().map(|row| (row.line, row.column.as_deref())).collect();
    assert_eq!(seen, [(3, Some("quantity")), (5, Some("quantity"))]);
    assert_eq!(rejected[0].record, "it,flight,many,km");
    assert_eq!(test.ingest.rejected(job.summary.id, 3, 10).await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn wrong_rows_can_be_skipped() -> Result<()> {
    let test = TestIngest::new().await?;
    let job = test.load(&lane(), entries(&["2", "many", "3"]), &skipping()).await?;

    assert_eq!(job.summary.state, State::Done);
    assert_eq!(test.quantities(&lane()).await?, ["2", "3"]);
    let current = test.current(&lane()).await?.context("nothing is current")?;
    assert_eq!((current.rows, current.rejected), (2, 1));
    assert_eq!(test.ingest.rejected(job.summary.id, 0, 10).await?.len(), 1);

    let job = test.load(&lane(), entries(&["many", "more"]), &skipping()).await?;
    assert!(TestIngest::error(&job).contains("all 2 rows are wrong"));
    assert_eq!(test.quantities(&lane()).await?, ["2", "3"], "nothing is never current");
    Ok(())
}

#[tokio::test]
async fn lanes_whose_parts_are_null_are_the_same_lane() -> Result<()> {
    let test = TestIngest::new().await?;
    let nulls = Lane { module: None, entry_type: None, year: None, ..lane() };
    for quantity in ["1", "2"] {
        test.load(&nulls, entries(&[quantity]), &CsvOptions::default()).await?;
    }
    assert_eq!(test.quantities(&nulls).await?, ["2"]);
    let lanes = "select count(*) from ingest.lane where module is null and method = 'csv'";
    assert_eq!(test.db.count(lanes).await?, 1);
    let other = Lane { year: Some(2024), ..nulls.clone() };
    test.load(&other, entries(&["3"]), &CsvOptions::default()).await?;
    assert_eq!(test.quantities(&nulls).await?, ["2"], "another lane");
    Ok(())
}

#[tokio::test]
async fn columns_can_be_mapped_and_numbers_written_with_a_comma() -> Result<()> {
    let test = TestIngest::new().await?;
    let mut options = CsvOptions { decimal_comma: true, ..CsvOptions::default() };
    options.columns.insert("Menge".into(), "quantity".into());
    // windows-1252
    let text = [&b"unit;category;Menge;measure\nZ\xfcrich;flight;1234,5;km\n"[..]].concat();
    test.load(&lane(), text, &options).await?;
    let current = test.current(&lane()).await?.context("nothing is current")?;
    let (_, row) = &test.ingest.rows(current.id, 0, 1).await?[0];
    assert!(row.contains("Zürich") && row.contains("1234.5"), "{row}");
    Ok(())
}

/// The second batch waits here while the test holds the lock.
const GATE: &str = "
    create function gate() returns trigger language plpgsql as $$ begin
        if exists (select from ingest.entry) then perform pg_advisory_xact_lock_shared(1); end if;
        return null;
    end $$;
    create trigger gate before insert on ingest.entry for each statement execute function gate()";

#[tokio::test]
async fn a_file_of_many_batches_reports_progress_and_is_loaded_whole() -> Result<()> {
    let test = TestIngest::new().await?;
    let gate = test.db.client().await?;
    gate.batch_execute(GATE).await?;
    gate.batch_execute("select pg_advisory_lock(1)").await?;
    let row = "it,flight,1,km,2025-01-31,a name that has some length so that there are several batches\n";
    let text = format!("unit,category,quantity,measure,date,name\n{}", row.repeat(120_000));
    let id = test.upload(&lane(), text, &CsvOptions::default()).await?;
    let worker = test.start(WorkerOptions::default());
    wait_until("progress is reported", || async {
        let note = test.db.pitwheel().job(id).await?.summary.note;
        Ok(note.is_some_and(|note| note.contains("rows/s")))
    })
    .await?;
    gate.batch_execute("select pg_advisory_unlock(1)").await?;
    let job = test.ended(id).await?;
    worker.stop().await?;
    assert_eq!(job.summary.state, State::Done);
    assert_eq!(test.current(&lane()).await?.map(|current| current.rows), Some(120_000));
    let lines = "select count(distinct line) from ingest.current_entry where line between 2 and 120001";
    assert_eq!(test.db.count(lines).await?, 120_000);
    Ok(())
}
