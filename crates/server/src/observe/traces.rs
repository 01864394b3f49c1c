//! Spans of the jobs that pass through a node, for the OpenTelemetry provider of the process.
//!
//! The spans of a job belong to the trace of the call that enqueued it: `send` is the enqueue, `process` lasts from the
//! time the job is sent to a worker until its result is written.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use axum::http::HeaderMap;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Span, SpanContext, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue, global};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use pitwheel::{Enqueued, Error, NewJob, Pitwheel, TraceContext};

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

static ON: AtomicBool = AtomicBool::new(false);

/// Starts to record spans. Before that they cost nothing.
pub(crate) fn enable() {
    ON.store(true, Ordering::Release);
}

fn on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// The trace context of a request.
pub(crate) fn context_of(headers: &HeaderMap) -> Option<TraceContext> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    TraceContext::new(text(TRACEPARENT)?, text(TRACESTATE))
}

/// Enqueues jobs as part of the caller's trace; without one, a new trace begins.
pub(crate) async fn enqueue(
    pitwheel: &Pitwheel,
    jobs: Vec<NewJob>,
    caller: Option<TraceContext>,
) -> Result<Vec<Enqueued>, Error> {
    let mut span = on().then(|| {
        let attributes =
            attributes("send", [KeyValue::new("messaging.batch.message_count", jobs.len() as i64)]);
        let builder = global::tracer("pitwheel")
            .span_builder("send")
            .with_kind(SpanKind::Producer)
            .with_attributes(attributes);
        builder.start_with_context(&global::tracer("pitwheel"), &parent(caller.as_ref()))
    });
    let own = span.as_ref().and_then(|span| context_under(span.span_context()));
    let traced = |job: NewJob| match own.as_ref().or(caller.as_ref()) {
        Some(trace) => job.trace(trace),
        None => job,
    };
    let enqueued = pitwheel.enqueue_many(jobs.into_iter().map(traced)).await;
    if let (Some(span), Err(error)) = (&mut span, &enqueued) {
        span.set_status(Status::error(error.code()));
    }
    enqueued
}

/// Records that a worker had a job from `since` until now. `job` is its id, queue and kind.
pub(crate) fn processed(trace: &TraceContext, job: (i64, &str, &str), since: SystemTime, failed: bool) {
    if !on() {
        return;
    }
    let (id, queue, kind) = job;
    let about = [
        KeyValue::new("messaging.destination.name", queue.to_owned()),
        KeyValue::new("messaging.message.id", id.to_string()),
        KeyValue::new("pitwheel.job.kind", kind.to_owned()),
    ];
    let tracer = global::tracer("pitwheel");
    let mut span = tracer
        .span_builder(format!("process {queue}"))
        .with_kind(SpanKind::Consumer)
        .with_start_time(since)
        .with_attributes(attributes("process", about))
        .start_with_context(&tracer, &parent(Some(trace)));
    if failed {
        span.set_status(Status::error("failed"));
    }
    span.end();
}

fn attributes<const N: usize>(operation: &'static str, more: [KeyValue; N]) -> Vec<KeyValue> {
    let common =
        [KeyValue::new("messaging.system", "pitwheel"), KeyValue::new("messaging.operation.name", operation)];
    common.into_iter().chain(more).collect()
}

/// The context to start a span in: a child of the span that `trace` names.
fn parent(trace: Option<&TraceContext>) -> Context {
    let Some(trace) = trace else { return Context::new() };
    let mut headers = HashMap::from([(TRACEPARENT.to_owned(), trace.traceparent.clone())]);
    headers.extend(trace.tracestate.clone().map(|state| (TRACESTATE.to_owned(), state)));
    TraceContextPropagator::new().extract_with_context(&Context::new(), &headers)
}

/// The trace context that names this span as the parent.
fn context_under(span: &SpanContext) -> Option<TraceContext> {
    let mut headers = HashMap::new();
    let context = Context::new().with_remote_span_context(span.clone());
    TraceContextPropagator::new().inject_context(&context, &mut headers);
    let state = headers.get(TRACESTATE).map(String::as_str).filter(|state| !state.is_empty());
    TraceContext::new(headers.get(TRACEPARENT)?, state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_context_keeps_its_ids_and_its_state() {
        let trace = TraceContext::new(
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            Some("vendor=value,other=1"),
        );
        let context = parent(trace.as_ref());
        assert_eq!(context_under(context.span().span_context()), trace);
        assert_eq!(context_under(parent(None).span().span_context()), None, "a new trace has no parent");
    }
}
