//! What a connection is told of its requests: that it has sent one, and which calls are under way.

use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::Version;
use axum::middleware::Next;
use axum::response::Response;

use crate::auth::caller::Caller;
use crate::listen::admission::Admitted;

/// Notes that a connection has sent a request. One of HTTP/1 is under way until its body is read and its answer is sent.
pub(crate) async fn note_request(request: Request, next: Next) -> Response {
    let Some(admitted) = request.extensions().get::<Arc<Admitted>>() else { return next.run(request).await };
    admitted.note_request();
    if request.version() == Version::HTTP_2 {
        return next.run(request).await;
    }
    let under_way = admitted.begin_request();
    let of_answer = under_way.clone();
    let request =
        if request.body().is_end_stream() { request } else { request.map(|body| held(body, under_way)) };
    next.run(request).await.map(|body| held(body, of_answer))
}

/// Counts the call of a caller who was authenticated as under way until the answer is sent: it may be a stream. Calls of others do not
/// keep the connection: a client that sends only a part of its request, or never reads the answer, would do so without a token.
pub(crate) async fn hold_call(request: Request, next: Next) -> Response {
    let admitted = request.extensions().get::<Arc<Admitted>>();
    let is_authenticated = request.extensions().get::<Caller>().is_some();
    let call = admitted.filter(|_| is_authenticated).map(Admitted::begin_call);
    let response = next.run(request).await;
    match call {
        Some(call) => response.map(|body| held(body, call)),
        None => response,
    }
}

/// The body, which holds a value until it is dropped.
fn held<T: Send + Unpin + 'static>(body: Body, value: T) -> Body {
    Body::new(Pin::new(HeldBody { body, _value: value }))
}

/// A pinned pointer to a body is a body too, so this only has to be such a pointer.
struct HeldBody<T> {
    body: Body,
    _value: T,
}

impl<T> Deref for HeldBody<T> {
    type Target = Body;

    fn deref(&self) -> &Body {
        &self.body
    }
}

impl<T> DerefMut for HeldBody<T> {
    fn deref_mut(&mut self) -> &mut Body {
        &mut self.body
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::middleware::from_fn;
    use axum::routing::get;
    use tonic::codegen::Service;

    use super::*;
    use crate::listen::admission::{Admission, Limits};

    /// The only connection that there is room for.
    fn only_connection() -> (Arc<Admission>, Arc<Admitted>) {
        let admission = Admission::new(Limits { total: 1, per_address: 1 });
        let admitted = admission.admit("127.0.0.1".parse().expect("an address")).expect("room");
        (admission, admitted)
    }

    fn is_room(admission: &Arc<Admission>) -> bool {
        admission.admit("127.0.0.1".parse().expect("an address")).is_some()
    }

    #[tokio::test]
    async fn a_call_without_a_caller_does_not_keep_its_connection_while_it_is_under_way() {
        let mut routes = Router::new()
            .route("/", get(std::future::pending::<()>))
            .layer(from_fn(hold_call))
            .layer(from_fn(note_request));
        let (admission, admitted) = only_connection();
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(admitted);
        let mut call = Box::pin(routes.call(request));
        assert!(futures_util::poll!(&mut call).is_pending());
        assert!(is_room(&admission));
    }

    #[tokio::test]
    async fn only_the_answer_to_an_authenticated_caller_keeps_a_connection() {
        let mut routes = Router::new()
            .route("/", get(|| async { "answer" }))
            .layer(from_fn(hold_call))
            .layer(from_fn(note_request));
        for (caller, keeps) in [(Some(Caller::loopback()), true), (None, false)] {
            let (admission, admitted) = only_connection();
            let mut request = Request::new(Body::empty());
            request.extensions_mut().insert(admitted);
            if let Some(caller) = caller {
                request.extensions_mut().insert(caller);
            }
            let response = routes.call(request).await.expect("an answer");
            let length = axum::body::HttpBody::size_hint(response.body()).exact();
            assert_eq!(length, Some(6), "its length is still known");
            assert_eq!(is_room(&admission), !keeps);
            if keeps {
                let answer = axum::body::to_bytes(response.into_body(), 6).await.expect("a body");
                assert_eq!(answer, "answer");
                assert!(is_room(&admission), "it was sent");
            }
        }
    }
}
