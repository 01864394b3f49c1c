//! Limits the probes of a connection. They need no token, so they must cost little.

use std::sync::Arc;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;

use crate::auth::middleware::{is_probe, refusal};
use crate::listen::admission::Admitted;
use crate::problem::Problem;

/// Refuses a probe if its connection has too many under way. It is under way until its answer is written.
pub(crate) async fn limit_probes(mut request: Request, next: Next) -> Response {
    let admitted =
        request.extensions().get::<Arc<Admitted>>().filter(|_| is_probe(request.uri().path())).cloned();
    let Some(admitted) = admitted else { return next.run(request).await };
    let Some(probe) = admitted.begin_probe() else {
        return refusal(
            &request,
            Problem::busy("this connection has too many probes under way: send fewer at a time"),
        );
    };
    request.extensions_mut().insert(probe);
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::middleware::from_fn;
    use axum::routing::get;
    use tonic::codegen::Service;

    use super::*;
    use crate::listen::admission::{Admission, Limits};

    #[tokio::test]
    async fn probes_of_one_connection_are_limited() {
        let admission = Admission::new(Limits { total: 1, per_address: 1 });
        let admitted = admission.admit("127.0.0.1".parse().expect("an address")).expect("room");
        let probe = || admitted.begin_probe();
        let probes: Vec<_> = std::iter::from_fn(probe).collect();
        let mut routes = Router::new().route("/healthz", get(|| async {})).layer(from_fn(limit_probes));
        let mut status = async |path: &str| {
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = path.parse().expect("a path");
            request.extensions_mut().insert(admitted.clone());
            routes.call(request).await.expect("an answer").status().as_u16()
        };
        assert_eq!((status("/healthz").await, status("/other").await), (429, 404));
        drop(probes);
        assert_eq!(status("/healthz").await, 200);
    }
}
