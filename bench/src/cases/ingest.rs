//! The ingestion: a CSV file of a million rows and ten columns into the current data of a lane.

use std::fs::{self, File};
use std::io::{BufWriter, Write};

use anyhow::{Context as _, Result, ensure};
use pitwheel_ingest::{CsvOptions, Ingest, Lane, Method, Target, Uploads};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::child_process::ChildProcess;
use crate::engine::fresh;
use crate::loader::{ROWS, folder};
use crate::process_stats::peak_memory;
use crate::report::Row;

/// Rows per second, and the memory of the process that loads them.
pub(crate) async fn ingest(url: &str) -> Result<Vec<Row>> {
    let (_, session) = fresh(url).await?;
    session.client.batch_execute("drop schema if exists ingest cascade").await?;
    let _ = fs::remove_dir_all(folder());
    fs::create_dir_all(folder())?;
    let file = folder().join("rows.txt");
    write(BufWriter::new(File::create(&file)?))?;
    let ingest = Ingest::connect(url, Uploads::new(folder())).await?;
    ingest.migrate().await?;
    let lane = Lane {
        module: Some("travel".into()),
        entry_type: Some("flights".into()),
        target: Target::Entries,
        method: Method::Csv,
        year: Some(2025),
    };
    let upload = ingest.uploads().copy(&file).await?;
    ingest.load(&lane, upload, None, &CsvOptions::default(), "bench").await?;
    let mut loader = ChildProcess::start("ingest-process", url)?;
    let mut line = String::new();
    BufReader::new(loader.stdout()?).read_line(&mut line).await?;
    let (rows, seconds) = line.trim().split_once(' ').context("the loader failed")?;
    ensure!(rows == ROWS.to_string(), "{rows} of {ROWS} rows are current");
    let seconds: f64 = seconds.parse()?;
    let memory = peak_memory(loader.pid()?)?;
    loader.stop().await?;
    fs::remove_dir_all(folder())?;
    session.close().await?;
    Ok(vec![
        Row::new(
            "ingest: CSV of 1,000,000 rows, 10 columns, into current data",
            ROWS as f64 / seconds,
            "rows/s",
        )
        .at_least(100_000.0),
        Row::new("ingest: memory of the loader", memory, "MiB").at_most(150.0),
    ])
}

fn write(mut file: impl Write) -> Result<()> {
    writeln!(file, "unit,category,quantity,measure,date,name,supplier,location,reference,note")?;
    for n in 0..ROWS {
        let (unit, category, cents, day) = (n % 500, n % 40, n % 100_000, n % 28 + 1);
        writeln!(
            file,
            "unit-{unit},category-{category},{}.{:02},km,2025-03-{day:02},Entry number {n},Supplier {unit},Zurich,REF-{n},\"a note, quoted\"",
            cents / 100,
            cents % 100
        )?;
    }
    Ok(file.flush()?)
}
