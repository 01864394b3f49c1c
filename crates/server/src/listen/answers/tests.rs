//! What answers take, and what becomes of those that find no room.

use std::convert::Infallible;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::get;
use futures_util::stream;
use tonic::codegen::Service;

use super::*;
use crate::listen::admission::{Admission, Limits};

/// Two whole parts and a half of one.
const LARGE: usize = 2 * PART_BYTES + PART_BYTES / 2;

fn connection() -> Arc<Admitted> {
    let admission = Admission::new(Limits { total: 1, per_address: 1 });
    admission.admit("10.0.0.1".parse().expect("an address")).expect("room")
}

fn routes(answers: &Arc<Answers>) -> Router {
    let large = async || vec![0_u8; LARGE];
    let refused = async || http_refusal(Problem::unauthenticated("no token"));
    Router::new()
        .route("/", get(large).post(large))
        .layer(from_fn_with_state(answers.clone(), hold_answer))
        .route("/refused", get(refused))
        .layer(from_fn(hold_refusal))
}

async fn call(
    routes: &mut Router,
    (method, path): (Method, &str),
    caller: Option<Caller>,
    connection: &Arc<Admitted>,
) -> Response {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().expect("a path");
    request.extensions_mut().insert(connection.clone());
    if let Some(caller) = caller {
        request.extensions_mut().insert(caller);
    }
    routes.call(request).await.expect("an answer")
}

/// Takes the parts of a body, as HTTP/2 does before it writes them.
async fn parts(mut body: Body) -> Vec<Bytes> {
    let mut parts = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        parts.extend(frame.expect("a frame").into_data());
    }
    parts
}

#[tokio::test]
async fn an_answer_counts_until_its_bytes_are_dropped() {
    let answers = Arc::<Answers>::default();
    let (mut routes, connection) = (routes(&answers), connection());
    let room = answers.tokens.of(None, || Semaphore::new(TOKEN_BYTES_MAX));
    let taken = || TOKEN_BYTES_MAX - room.available_permits();
    let response = call(&mut routes, (Method::GET, "/"), Some(Caller::loopback()), &connection).await;
    assert_eq!(taken(), STREAM_BYTES + LARGE);
    assert_eq!(HttpBody::size_hint(response.body()).exact(), Some(LARGE as u64));
    let mut parts = parts(response.into_body()).await;
    assert_eq!(parts.iter().map(Bytes::len).collect::<Vec<_>>(), [PART_BYTES, PART_BYTES, PART_BYTES / 2]);
    assert_eq!(taken(), STREAM_BYTES + LARGE, "they are not written");
    parts.remove(0);
    assert_eq!(taken(), STREAM_BYTES + LARGE - PART_BYTES);
    assert!((0..3).all(|_| connection.ages().next_turn()));
    assert!(!connection.ages().next_turn(), "two parts wait");
    drop(parts);
    assert_eq!(taken(), 0);
    assert_eq!(answers.node.available_permits(), NODE_BYTES_MAX);
    assert!((0..4).all(|_| connection.ages().next_turn()));
}

#[tokio::test]
async fn the_messages_of_a_stream_count_for_it_until_their_bytes_are_dropped() {
    let unwritten = Unwritten::default();
    let messages = unwritten.clone();
    let stream = async move || {
        let chunk = || Ok::<_, Infallible>(Bytes::from(vec![0_u8; LARGE]));
        let mut response = Response::new(Body::from_stream(stream::iter([chunk(), chunk()])));
        response.extensions_mut().insert(messages);
        response
    };
    let mut routes = Router::new()
        .route("/", get(stream))
        .layer(from_fn_with_state(Arc::<Answers>::default(), hold_answer));
    let response = call(&mut routes, (Method::GET, "/"), Some(Caller::loopback()), &connection()).await;
    let mut parts = parts(response.into_body()).await;
    assert_eq!(parts.len(), 6);
    assert_eq!(unwritten.bytes(), LARGE, "the second message; the first has room as an answer");
    parts.truncate(5);
    assert_eq!(unwritten.bytes(), 2 * PART_BYTES);
    drop(parts);
    assert_eq!(unwritten.bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_room_is_refused_and_one_to_a_change_ends_its_connection() {
    let answers = Arc::<Answers>::default();
    let (mut routes, connection) = (routes(&answers), connection());
    let room = answers.tokens.of(None, || Semaphore::new(TOKEN_BYTES_MAX));
    let most = room.clone().acquire_many_owned((TOKEN_BYTES_MAX - STREAM_BYTES) as u32).await;
    let mut status = async |method: Method, caller| {
        call(&mut routes, (method, "/"), Some(caller), &connection).await.status()
    };
    assert_eq!(status(Method::GET, Caller::loopback()).await, StatusCode::TOO_MANY_REQUESTS);
    let other = Caller::with_token(1, "other", pitwheel::Role::Viewer);
    assert_eq!(status(Method::GET, other).await, StatusCode::OK);
    let rest = room.clone().acquire_owned().await;
    assert_eq!(status(Method::POST, Caller::loopback()).await, StatusCode::TOO_MANY_REQUESTS);
    assert!(!connection.evicted().is_cancelled(), "the call did not run");
    drop(rest);
    status(Method::POST, Caller::loopback()).await;
    assert!(connection.evicted().is_cancelled(), "what it did, its caller does not learn");
    drop(most);
    assert_eq!(status(Method::GET, Caller::loopback()).await, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn the_unread_answers_of_all_tokens_together_are_limited() {
    let answers = Arc::<Answers>::default();
    let (mut routes, connection) = (routes(&answers), connection());
    let caller = |token| Caller::with_token(token, "a token", pitwheel::Role::Viewer);
    let mut unread = Vec::new();
    for token in 1..=8 {
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(caller(token));
        let room = answers.room(&request);
        for _ in 0..2 {
            unread.push(room.take(ANSWER_BYTES_MAX).await.expect("the room of this token"));
        }
    }
    let mut status =
        async || call(&mut routes, (Method::GET, "/"), Some(caller(9)), &connection).await.status();
    assert_eq!(status().await, StatusCode::TOO_MANY_REQUESTS);
    unread.pop();
    assert_eq!(status().await, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn answers_without_a_caller_that_are_not_read_end_their_connection() {
    let answers = Arc::<Answers>::default();
    let mut routes = routes(&answers);
    for path in ["/", "/refused"] {
        let connection = connection();
        let mut unread = Vec::new();
        while !connection.evicted().is_cancelled() {
            let response = call(&mut routes, (Method::GET, path), None, &connection).await;
            unread.push(parts(response.into_body()).await);
            assert!(unread.len() < 100, "{path}");
        }
        drop(unread);
        for _ in 0..100 {
            let response = call(&mut routes, (Method::GET, path), None, &connection).await;
            assert_ne!(response.status(), StatusCode::TOO_MANY_REQUESTS, "{path}: they were read");
        }
    }
}

#[tokio::test]
async fn a_probe_is_under_way_until_its_answer_is_written() {
    let answers = Arc::<Answers>::default();
    let connection = connection();
    let mut routes = Router::new()
        .route("/healthz", get(async || "alive"))
        .layer(from_fn_with_state(answers, hold_answer))
        .layer(from_fn(crate::listen::probes::limit_probes));
    let mut unread = Vec::new();
    let refused = loop {
        let response = call(&mut routes, (Method::GET, "/healthz"), None, &connection).await;
        if response.status() != StatusCode::OK {
            break response;
        }
        unread.push(parts(response.into_body()).await);
    };
    assert_eq!((refused.status(), unread.len()), (StatusCode::TOO_MANY_REQUESTS, 16));
    drop(unread);
    let again = call(&mut routes, (Method::GET, "/healthz"), None, &connection).await;
    assert_eq!(again.status(), StatusCode::OK);
}
