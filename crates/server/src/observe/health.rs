//! Health checks of gRPC. They need no token, so the number and the age of watches are limited.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt, stream};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::listen::admission::{Admitted, Probe};
use crate::listen::lifetimes::Places;

/// Watches of a node at a time.
const WATCHES_MAX: usize = 1000;
/// A watch is ended after this long; its client opens another one.
const WATCH_AGE_MAX: Duration = Duration::from_secs(600);

/// Answers that the services are served, as long as this node runs.
pub(crate) struct HealthChecks {
    services: Vec<&'static str>,
    watches: Places,
}

/// The health checks of these services. The empty name stands for the node.
pub(crate) fn service(services: &[&'static str]) -> HealthServer<HealthChecks> {
    let services = services.iter().copied().chain([""]).collect();
    HealthServer::new(HealthChecks { services, watches: Places::new(WATCHES_MAX, WATCH_AGE_MAX) })
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Health for HealthChecks {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !self.services.contains(&request.get_ref().service.as_str()) {
            return Err(Status::not_found("there is no such service"));
        }
        Ok(Response::new(response(ServingStatus::Serving)))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let connection = request.extensions().get::<Arc<Admitted>>();
        // One connection has places for a few probes, and cannot take the watches of all others.
        let probe = request.extensions().get::<Probe>().cloned();
        let watch = self.watches.take(connection, None, Instant::now()).ok_or_else(|| {
            Status::resource_exhausted("this node has too many health watches: use Check, or retry later")
        })?;
        let is_known = self.services.contains(&request.get_ref().service.as_str());
        let status = if is_known { ServingStatus::Serving } else { ServingStatus::ServiceUnknown };
        let end = async move {
            tokio::time::sleep(WATCH_AGE_MAX).await;
            drop((watch, probe));
            Err(Status::unavailable("the watch has reached its maximum age: open another one"))
        };
        let statuses = stream::iter([Ok(response(status))]).chain(stream::once(end));
        Ok(Response::new(Box::pin(statuses)))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};
    use tonic::Code;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_watch_ends_at_its_maximum_age() {
        let watches = Places::new(1, WATCH_AGE_MAX);
        let checks = HealthChecks { services: vec![""], watches };
        let watch = async || checks.watch(Request::new(HealthCheckRequest::default())).await;
        let mut first = watch().await.expect("there is room").into_inner();
        let serving = first.next().await.and_then(Result::ok).expect("a status");
        assert_eq!(serving, response(ServingStatus::Serving));
        assert_eq!(watch().await.err().map(|refused| refused.code()), Some(Code::ResourceExhausted));
        let begun = Instant::now();
        let end = timeout(2 * WATCH_AGE_MAX, first.next()).await.expect("it ends");
        assert_eq!(begun.elapsed().as_secs(), 600);
        assert_eq!(end.and_then(Result::err).map(|end| end.code()), Some(Code::Unavailable));
        assert!(watch().await.is_ok(), "its place is free");
    }
}
