//! Extractors that refuse malformed requests with problem+json.

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::problem::Problem;

/// A JSON body.
pub(crate) struct Body<T>(pub(crate) T);

/// The parameters of the path.
pub(crate) struct Path<T>(pub(crate) T);

/// The parameters of the query string.
pub(crate) struct Query<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Body<T>, Problem> {
        let body = axum::Json::<T>::from_request(request, state).await;
        let refused = |error: JsonRejection| match error.status() {
            // JSON with other fields than the operation takes: 400, as for every other wrong request.
            StatusCode::UNPROCESSABLE_ENTITY => Problem::invalid(error.body_text()),
            status => Problem::refused(status, error.body_text()),
        };
        body.map(|axum::Json(body)| Body(body)).map_err(refused)
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Path<T>, Problem> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        let refused = |error: PathRejection| Problem::refused(error.status(), error.body_text());
        path.map(|axum::extract::Path(path)| Path(path)).map_err(refused)
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Query<T>, Problem> {
        let query = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        let refused = |error: QueryRejection| Problem::refused(error.status(), error.body_text());
        query.map(|axum::extract::Query(query)| Query(query)).map_err(refused)
    }
}
