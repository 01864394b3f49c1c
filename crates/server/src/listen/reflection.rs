//! Limits of reflection streams. Their bodies are not read before the handler runs, and a tool needs one for a moment only.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::{Stream, StreamExt};

use crate::auth::caller::Caller;
use crate::auth::middleware::refusal;
use crate::listen::admission::Admitted;
use crate::listen::lifetimes::{Place, Places};
use crate::problem::Problem;

/// The largest message to the reflection service: the name of a file or a symbol.
pub(crate) const REFLECTION_BYTES_MAX: usize = 1024;
/// Reflection streams of a node at a time.
const STREAMS_MAX: usize = 100;
/// A reflection stream is ended after this long; its client opens another one.
const STREAM_AGE_MAX: Duration = Duration::from_secs(60);

/// The reflection streams that are open.
pub(crate) struct Reflections {
    places: Places,
}

impl Default for Reflections {
    fn default() -> Reflections {
        Reflections { places: Places::new(STREAMS_MAX, STREAM_AGE_MAX) }
    }
}

/// Gives a reflection stream its place, or refuses it. The service reads the body until it ends, so the place belongs to the body.
pub(crate) async fn limit_reflection(
    State(reflections): State<Arc<Reflections>>,
    request: Request,
    next: Next,
) -> Response {
    if !request.uri().path().starts_with("/grpc.reflection.") {
        return next.run(request).await;
    }
    let connection = request.extensions().get::<Arc<Admitted>>();
    let token = request.extensions().get::<Caller>().and_then(Caller::token);
    let Some(place) = reflections.places.take(connection, token, Instant::now()) else {
        let problem = Problem::busy("this node or this token has too many reflection streams: retry later");
        return refusal(&request, problem);
    };
    next.run(request.map(|body| Body::from_stream(limited(body, place, STREAM_AGE_MAX)))).await
}

/// The body until it ends, or for so long.
fn limited(body: Body, place: Place, age_max: Duration) -> impl Stream<Item = Result<Bytes, axum::Error>> {
    let end = async move {
        tokio::time::sleep(age_max).await;
        drop(place);
    };
    body.into_data_stream().take_until(Box::pin(end))
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn a_reflection_stream_ends_and_frees_its_place() {
        let places = Places::new(1, STREAM_AGE_MAX);
        let take = || places.take(None, None, Instant::now());
        let place = || take().expect("room");
        let endless = Body::from_stream(stream::pending::<Result<Bytes, axum::Error>>());
        let mut ended = limited(endless, place(), Duration::from_millis(1));
        assert!(ended.next().await.is_none());
        drop(ended);
        let dropped = limited(Body::from("name"), place(), STREAM_AGE_MAX);
        assert!(take().is_none());
        drop(dropped);
        assert!(take().is_some());
    }
}
