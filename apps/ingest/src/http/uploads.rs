//! Uploads over HTTP.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use pitwheel::Role;
use pitwheel_server::{Caller, ErrorResponses, Problem, Query};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::csv::CsvOptions;
use crate::http::problem::problem;
use crate::http::views::JobView;
use crate::ingest::Ingest;
use crate::lane::{Lane, Method, Target};

/// Where the file goes, and how it is read.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct UploadQuery {
    /// The module, such as `travel`.
    module: Option<String>,
    /// The data entry type, such as `flights`.
    entry_type: Option<String>,
    /// `entries` (default), `factors` or `units`.
    target: Option<Target>,
    /// The year.
    year: Option<i16>,
    /// The name of the file, for people.
    file_name: Option<String>,
    /// One character. Default: detected.
    delimiter: Option<char>,
    /// The name of the encoding. Default: detected.
    encoding: Option<String>,
    /// Numbers are written as in `1234,5`.
    #[serde(default)]
    decimal_comma: bool,
    /// Leaves out columns that are not known. Otherwise they are an error.
    #[serde(default)]
    ignore_unknown_columns: bool,
    /// Rejects wrong rows and loads the others. Otherwise one wrong row is an error, and nothing is loaded.
    #[serde(default)]
    skip_bad_rows: bool,
    /// Names in the header and the columns they stand for, as a JSON object.
    columns: Option<String>,
}

impl UploadQuery {
    fn options(&self) -> Result<CsvOptions, Problem> {
        let columns =
            self.columns.as_deref().map(serde_json::from_str::<BTreeMap<String, String>>).transpose();
        let columns = columns.map_err(|_| {
            Problem::invalid(
                "`columns` is not a JSON object of names: write it as in {\"Menge\": \"quantity\"}",
            )
        })?;
        Ok(CsvOptions {
            delimiter: self.delimiter,
            encoding: self.encoding.clone(),
            decimal_comma: self.decimal_comma,
            ignore_unknown_columns: self.ignore_unknown_columns,
            skip_bad_rows: self.skip_bad_rows,
            columns: columns.unwrap_or_default(),
        })
    }
}

/// Uploads a CSV file of any size. It becomes the current data of its lane when all of it is loaded; watch the job for that.
#[utoipa::path(post, path = "/api/v1/ingest/uploads", params(UploadQuery),
    request_body(content = String, content_type = "text/csv"),
    responses((status = 202, body = JobView), ErrorResponses))]
pub(crate) async fn upload_ingest_file(
    State(ingest): State<Ingest>,
    caller: Caller,
    Query(query): Query<UploadQuery>,
    body: Body,
) -> Result<(StatusCode, Json<JobView>), Problem> {
    caller.require(Role::Operator)?;
    let options = query.options()?;
    let lane = Lane {
        module: query.module.clone(),
        entry_type: query.entry_type.clone(),
        target: query.target.unwrap_or(Target::Entries),
        method: Method::Csv,
        year: query.year,
    };
    lane.check().map_err(problem)?;
    let upload = ingest.uploads().receive(body.into_data_stream()).await.map_err(problem)?;
    let loaded = ingest.load(&lane, upload, query.file_name.as_deref(), &options, caller.name()).await;
    let job = ingest.job(loaded.map_err(problem)?).await.map_err(problem)?;
    Ok((StatusCode::ACCEPTED, Json(job.into())))
}
