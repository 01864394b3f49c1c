//! Spans of the jobs that pass through a node, for the OpenTelemetry provider of the process.
//!
//! The spans of a job belong to the trace of the call that enqueued it: `send` is the enqueue, `process` lasts from the
//! time the job is sent to a worker until its result is written.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use axum::http::HeaderMap;
use opentelemetry::trace::{
    Span, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer,
};
use opentelemetry::{Context, KeyValue, global};
use pitwheel::{Enqueued, Error, NewJob, Pitwheel, TraceContext};

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
    TraceContext::new(text("traceparent")?, text("tracestate"))
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
    let own = span.as_ref().and_then(|span| ours(span.span_context()));
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

fn parent(trace: Option<&TraceContext>) -> Context {
    trace.and_then(theirs).map_or_else(Context::new, |span| Context::new().with_remote_span_context(span))
}

fn theirs(trace: &TraceContext) -> Option<SpanContext> {
    let parts: Vec<&str> = trace.traceparent.split('-').collect();
    let [_, trace_id, span_id, flags] = parts[..] else { return None };
    let state = trace.tracestate.as_deref().and_then(|state| state.parse::<TraceState>().ok());
    Some(SpanContext::new(
        TraceId::from_hex(trace_id).ok()?,
        SpanId::from_hex(span_id).ok()?,
        TraceFlags::new(u8::from_str_radix(flags, 16).ok()?),
        true,
        state.unwrap_or_default(),
    ))
}

fn ours(span: &SpanContext) -> Option<TraceContext> {
    let (trace, id, flags) = (span.trace_id(), span.span_id(), span.trace_flags().to_u8());
    let state = span.trace_state().header();
    let state = Some(state.as_str()).filter(|state| !state.is_empty());
    span.is_valid().then(|| TraceContext::new(&format!("00-{trace:032x}-{id:016x}-{flags:02x}"), state))?
}
