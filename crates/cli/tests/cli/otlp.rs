//! Spans reach a collector: a job belongs to the trace of the request that enqueued it.

use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use pitwheel::{Context, Worker};
use pitwheel_testkit::{Greet, Http, block_until};
use serde_json::json;
use tonic::{Request, Response, Status};

use crate::support::{Db, Node, Result};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// The received spans: name, trace id, span id, and id of the parent span.
type Spans = Arc<Mutex<Vec<(String, String, String, String)>>>;

#[derive(Clone, Default)]
struct Collector {
    spans: Spans,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> std::result::Result<Response<ExportTraceServiceResponse>, Status> {
        let scopes = request.into_inner().resource_spans.into_iter().flat_map(|spans| spans.scope_spans);
        let received = scopes
            .flat_map(|scope| scope.spans)
            .map(|span| (span.name, hex(&span.trace_id), hex(&span.span_id), hex(&span.parent_span_id)));
        self.spans.lock().map_err(|_| Status::internal("poisoned"))?.extend(received);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[test]
fn a_job_is_traced_from_its_enqueue_to_its_report() -> Result {
    let db = Db::migrated()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let collector = Collector::default();
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    drop(listener);
    let serving = tonic::transport::Server::builder().add_service(TraceServiceServer::new(collector.clone()));
    runtime.spawn(serving.serve(address));
    let node = Node::start(&db, "127.0.0.1:0", &["--otlp", &format!("http://{address}")])?;
    let seen = Arc::new(Mutex::new(None));
    let record = seen.clone();
    let greet = move |_: Greet, context: Context| {
        let record = record.clone();
        async move {
            *record.lock().map_err(|error| error.to_string())? = context.trace();
            Ok::<(), String>(())
        }
    };
    let worker = Worker::remote(&format!("http://{}", node.address)).queue("default", 1).handle(greet);
    runtime.spawn(worker.run(std::future::pending()));

    let http = Http::new(node.address).header("traceparent", &format!("00-{TRACE}-00f067aa0ba902b7-01"));
    let body = json!({ "jobs": [{ "kind": "greet" }] });
    let response = runtime.block_on(http.post("/api/v1/jobs", &body))?;
    assert_eq!(response.status, 201, "{}", response.text);

    let spans = || collector.spans.lock().map(|spans| spans.clone()).unwrap_or_default();
    block_until("both spans are received", || spans().len() >= 2)?;
    let spans = spans();
    let find = |name: &str| spans.iter().find(|span| span.0 == name).ok_or(format!("no {name}: {spans:?}"));
    let (sent, processed) = (find("send")?, find("process default")?);
    assert_eq!(
        (sent.1.as_str(), sent.3.as_str()),
        (TRACE, "00f067aa0ba902b7"),
        "the enqueue is a child of the request"
    );
    assert_eq!((&processed.1, &processed.3), (&sent.1, &sent.2), "the run is a child of the enqueue");
    let seen = seen.lock().map_err(|error| error.to_string())?.clone().ok_or("no trace at the handler")?;
    assert_eq!(seen.traceparent, format!("00-{TRACE}-{}-01", sent.2));
    Ok(())
}

#[test]
fn an_address_that_is_no_collector_is_refused() -> Result {
    let db = Db::migrated()?;
    db.run(&["serve", "--listen", "127.0.0.1:0", "--otlp", "nowhere"])?
        .with_code(2)?
        .assert_error("http://host:4317");
    Ok(())
}
