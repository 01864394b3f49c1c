//! Extractors that refuse malformed requests with problem+json.

use std::fmt;
use std::marker::PhantomData;

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::{DeserializeOwned, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::problem::Problem;

/// A JSON body. A malformed one is refused with a [`Problem`].
#[derive(Debug)]
pub struct Body<T>(pub T);

/// The parameters of the path. Malformed ones are refused with a [`Problem`].
#[derive(Debug)]
pub struct Path<T>(pub T);

/// The parameters of the query string. Malformed ones are refused with a [`Problem`].
#[derive(Debug)]
pub struct Query<T>(pub T);

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

/// A list of at most `MAX` items. It is refused at the first item above that: a small item has many times its size in
/// memory. For `deserialize_with`.
pub(crate) fn limited<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Limited<T, const MAX: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Limited<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(formatter, "a list of at most {MAX} items")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = list.next_element()? {
                if items.len() == MAX {
                    return Err(A::Error::custom(format_args!("the list has more than {MAX} items")));
                }
                items.push(item);
            }
            Ok(items)
        }
    }

    deserializer.deserialize_seq(Limited::<T, MAX>(PhantomData))
}

/// The number of rows of a page. A page without any would look like the last one. For `deserialize_with`.
pub(crate) fn page_limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    match Option::<u32>::deserialize(deserializer)? {
        Some(0) => Err(D::Error::custom("a page has 1 to 1,000 rows, not 0")),
        limit => Ok(limit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_refused_at_the_first_item_that_is_too_many() {
        let read = |json: &str| limited::<_, u8, 2>(&mut serde_json::Deserializer::from_str(json));
        assert_eq!(read("[1,2]").expect("two items"), [1, 2]);
        // What follows the third item is not even read.
        let refused = read("[1,2,3,no JSON").expect_err("three items").to_string();
        assert!(refused.starts_with("the list has more than 2 items"), "{refused}");
    }
}
