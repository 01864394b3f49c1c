//! `pitwheel-ingest upload`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use pitwheel_app::output::OutputFormat;
use pitwheel_ingest::{CsvOptions, Ingest, Method};

use super::lane_args::LaneArgs;
use super::wait;

#[derive(Debug, Args)]
pub(crate) struct UploadArgs {
    /// The file
    file: PathBuf,
    #[command(flatten)]
    lane: LaneArgs,
    /// One character, such as `;`; detected without it
    #[arg(long, value_name = "CHARACTER")]
    delimiter: Option<char>,
    /// The encoding, such as windows-1252; detected without it
    #[arg(long, value_name = "NAME")]
    encoding: Option<String>,
    /// Numbers are written as in 1234,5
    #[arg(long)]
    decimal_comma: bool,
    /// Leave out columns that are not known; otherwise they are an error
    #[arg(long)]
    ignore_unknown_columns: bool,
    /// Reject wrong rows and load the others; otherwise one wrong row is an error
    #[arg(long)]
    skip_bad_rows: bool,
    /// A name in the header and the column that it stands for, as in Menge=quantity; may be repeated
    #[arg(long = "column", value_name = "NAME=COLUMN", value_parser = column)]
    columns: Vec<(String, String)>,
    /// Only enqueue the job; a server runs it
    #[arg(long)]
    no_wait: bool,
}

fn column(text: &str) -> Result<(String, String), String> {
    let (name, column) = text.split_once('=').ok_or("write it as in Menge=quantity")?;
    Ok((name.to_owned(), column.to_owned()))
}

pub(crate) async fn run(ingest: &Ingest, args: UploadArgs, output: OutputFormat) -> anyhow::Result<()> {
    let options = CsvOptions {
        delimiter: args.delimiter,
        encoding: args.encoding,
        decimal_comma: args.decimal_comma,
        ignore_unknown_columns: args.ignore_unknown_columns,
        skip_bad_rows: args.skip_bad_rows,
        columns: args.columns.into_iter().collect::<BTreeMap<_, _>>(),
    };
    let lane = args.lane.lane(Method::Csv);
    let name = args.file.file_name().map(|name| name.to_string_lossy().into_owned());
    let upload = ingest.uploads().copy(&args.file).await?;
    let id = ingest.load(&lane, upload, name.as_deref(), &options, "cli").await?;
    wait::until_ended(ingest, id, args.no_wait, output).await
}
