//! The metrics of a node in Prometheus' text format: counters of this process, and gauges read from the database.

use std::fmt::Write;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use pitwheel::engine::{InFlight, Pool, WorkerCount, in_flight, worker_counts};
use pitwheel::{Error, OutboxStatus, Pitwheel, QueueSummary};

use crate::observe::database_check::{PROBE_MAX, no_answer};
use crate::observe::queue_gauges::{Gauges, fold};
use crate::observe::shared::Shared;

/// Buckets of durations, in seconds: from the delay of a hint to the longest jobs.
const BUCKETS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0, 3600.0];
/// Buckets of the number of jobs that one claim returns.
const BATCHES: [f64; 8] = [0.0, 1.0, 5.0, 20.0, 50.0, 100.0, 250.0, 500.0];

/// Time between two upkeeps: histograms collect samples until one runs.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// The counters of this process. All nodes of a process share one recorder.
fn recorder() -> &'static PrometheusHandle {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    RECORDER.get_or_init(|| {
        let builder = PrometheusBuilder::new()
            .set_buckets(&BUCKETS)
            .and_then(|builder| {
                builder.set_buckets_for_metric(Matcher::Full(pitwheel::metrics::CLAIM_BATCH.into()), &BATCHES)
            })
            .unwrap_or_default();
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        // A program that embeds the server may have set a recorder of its own: then that one has the counters.
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("this process already has a metrics recorder: /metrics shows gauges only");
        }
        pitwheel::metrics::enable();
        handle
    })
}

/// What the node counts at the moment of a scrape.
pub(crate) struct NodeGauges {
    /// Open streams of remote workers.
    pub(crate) streams: usize,
    /// Open streams of events.
    pub(crate) watchers: usize,
}

pub(crate) struct Metrics {
    recorder: &'static PrometheusHandle,
    /// With connections of its own, as `probe_pool` has.
    probes: Pitwheel,
    probe_pool: Pool,
    /// The connections for claims and reports.
    pool: Pool,
    of_database: Shared<Arc<str>>,
}

impl Metrics {
    pub(crate) fn new(probes: Pitwheel, pool: Pool) -> Result<Metrics, Error> {
        let probe_pool = probes.pool_for_loops(1, PROBE_MAX)?;
        Ok(Metrics { recorder: recorder(), probes, probe_pool, pool, of_database: Shared::default() })
    }

    /// All metrics as text. Without the database, or while it does not answer, only those of this process. However many scrape, the
    /// database is read once a second.
    pub(crate) async fn render(&self, node: NodeGauges) -> String {
        let of_database = self.of_database.get(async { self.render_database().await.into() }).await;
        let mut text = self.recorder.render();
        let version = labels(&[("version", env!("CARGO_PKG_VERSION"))]);
        gauge(&mut text, "pitwheel_build_info", "The version of this node.", [(version, 1.0)]);
        let help = "Streams of remote workers that are open on this node.";
        one(&mut text, "pitwheel_grpc_streams", help, node.streams as f64);
        let help = "Streams of events that are open on this node.";
        one(&mut text, "pitwheel_sse_clients", help, node.watchers as f64);
        let (used, idle, waiting) = self.pool.usage();
        let states = [("used", used), ("idle", idle), ("waited_for", waiting)];
        let states = states.map(|(state, count)| (labels(&[("state", state)]), count as f64));
        gauge(&mut text, "pitwheel_db_pool_connections", "Connections for claims and reports.", states);
        process_metrics(&mut text);
        text + &of_database
    }

    async fn render_database(&self) -> String {
        let mut text = String::new();
        let outbox = self.probes.outbox();
        let (database, outbox, schema) = tokio::join!(
            answer("queues", self.read_database()),
            answer("outbox", outbox.status()),
            answer("schema", self.probes.migration_status()),
        );
        if let Some((queues, running, worker_counts)) = database {
            queue_gauges(&mut text, &fold(&queues, &running, SystemTime::now()));
            worker_gauges(&mut text, &worker_counts);
        }
        if let Some(status) = outbox {
            outbox_gauges(&mut text, &status);
        }
        if let Some(schema) = schema {
            one(&mut text, "pitwheel_schema_version", "The version of the schema.", f64::from(schema.found));
        }
        text
    }

    async fn read_database(&self) -> Result<(Vec<QueueSummary>, Vec<InFlight>, Vec<WorkerCount>), Error> {
        let queues = self.probes.queues().await?;
        let running = self.probe_pool.run(async |client| in_flight(&client).await).await?;
        let worker_counts = self.probe_pool.run(async |client| worker_counts(&client).await).await?;
        Ok((queues, running, worker_counts))
    }
}

/// What is read from the database for a scrape, unless it fails or takes too long.
async fn answer<T>(what: &'static str, read: impl Future<Output = Result<T, Error>>) -> Option<T> {
    let read = tokio::time::timeout(PROBE_MAX, read).await.unwrap_or_else(|_| Err(no_answer()));
    read.inspect_err(|error| tracing::warn!(%error, what, "cannot read gauges of the database")).ok()
}

/// Keeps the samples between two scrapes few. Never returns; safe to drop at any point.
pub(crate) async fn run_upkeep() {
    loop {
        tokio::time::sleep(UPKEEP_EVERY).await;
        recorder().run_upkeep();
    }
}

fn queue_gauges(text: &mut String, queues: &[Gauges]) {
    let named = |queue: &Gauges| labels(&[("queue", &queue.name)]);
    let real = || queues.iter().filter(|queue| queue.name != "*");
    let states = real().flat_map(|queue| {
        let count =
            |state: &str, jobs: i64| (labels(&[("queue", &queue.name), ("state", state)]), jobs as f64);
        [
            count("waiting", queue.waiting),
            count("running", queue.running),
            count("later", queue.later),
            count("blocked", queue.blocked),
        ]
    });
    gauge(text, "pitwheel_jobs", "Live jobs; the count stops at 10,000 in total.", states);
    gauge(
        text,
        "pitwheel_queue_oldest_ready_seconds",
        "How long the oldest due job has waited.",
        real().map(|queue| (named(queue), queue.oldest_seconds)),
    );
    gauge(
        text,
        "pitwheel_queue_paused",
        "1 while the queue is paused.",
        queues.iter().map(|queue| (named(queue), f64::from(u8::from(queue.paused)))),
    );
    let busy = || real().filter(|queue| queue.in_flight > 0);
    gauge(
        text,
        "pitwheel_jobs_in_flight",
        "Running jobs; the count stops at 50,000 in total.",
        busy().map(|queue| (named(queue), queue.in_flight as f64)),
    );
    let in_use: i64 = queues.iter().map(|queue| queue.in_flight).sum();
    one(text, "pitwheel_worker_slots_in_use", "Slots of workers that are running a job.", in_use as f64);
    gauge(
        text,
        "pitwheel_longest_running_seconds",
        "How long the job has run that has run longest.",
        busy().map(|queue| (named(queue), queue.longest_seconds)),
    );
}

fn worker_gauges(text: &mut String, worker_counts: &[WorkerCount]) {
    let all = ["direct", "grpc"].into_iter().flat_map(|transport| {
        ["alive", "quiet", "draining"].into_iter().map(move |state| (transport, state))
    });
    let counted = all.map(|(transport, state)| {
        let found = worker_counts.iter().find(|count| count.transport == transport && count.state == state);
        let workers = found.map_or(0, |count| count.workers);
        (labels(&[("state", state), ("transport", transport)]), workers as f64)
    });
    gauge(text, "pitwheel_workers", "Workers that are alive.", counted);
    let slots: i64 = worker_counts.iter().map(|count| count.slots).sum();
    one(text, "pitwheel_worker_slots", "Jobs that all workers together can run at a time.", slots as f64);
    let oldest = worker_counts.iter().map(|count| count.silent_seconds).fold(0.0, f64::max);
    let help = "The age of the oldest last heartbeat of a worker that is alive.";
    one(text, "pitwheel_worker_heartbeat_age_seconds", help, oldest);
}

fn outbox_gauges(text: &mut String, status: &OutboxStatus) {
    let help = "Events that wait; the count stops at 1,000 per shard.";
    one(text, "pitwheel_outbox_events_waiting", help, status.waiting as f64);
    let help = "How long the oldest event has waited.";
    one(text, "pitwheel_outbox_oldest_seconds", help, status.oldest_seconds.unwrap_or(0.0));
    one(text, "pitwheel_outbox_entities_parked", "Entities that are parked.", status.parked as f64);
    one(text, "pitwheel_outbox_relays", "Relays that are alive.", status.relays.len() as f64);
    let lags = status
        .shards
        .iter()
        .map(|shard| (labels(&[("shard", &shard.shard.to_string())]), shard.oldest_seconds.unwrap_or(0.0)));
    let help = "How long the oldest event of each shard has waited.";
    gauge(text, "pitwheel_outbox_shard_oldest_seconds", help, lags);
}

/// The standard process metrics of Prometheus, as far as the system has them. Rendered here and not through the recorder,
/// which would round the processor time to whole seconds.
fn process_metrics(text: &mut String) {
    let process = metrics_process::collector::collect();
    if let Some(seconds) = process.cpu_seconds_total {
        let name = "process_cpu_seconds_total";
        series(text, name, "counter", "User and system time on a processor.", [(String::new(), seconds)]);
    }
    let gauges = [
        ("process_resident_memory_bytes", "Resident memory.", process.resident_memory_bytes),
        ("process_virtual_memory_bytes", "Virtual memory.", process.virtual_memory_bytes),
        (
            "process_virtual_memory_max_bytes",
            "Limit of virtual memory; 0: none.",
            process.virtual_memory_max_bytes,
        ),
        ("process_open_fds", "Open file descriptors.", process.open_fds),
        ("process_max_fds", "Limit of open file descriptors; 0: none.", process.max_fds),
        ("process_start_time_seconds", "Start of the process, since 1970.", process.start_time_seconds),
        ("process_threads", "Threads of the operating system.", process.threads),
    ];
    for (name, help, value) in gauges {
        if let Some(value) = value {
            one(text, name, help, value as f64);
        }
    }
}

fn one(text: &mut String, name: &str, help: &str, value: f64) {
    gauge(text, name, help, [(String::new(), value)]);
}

fn gauge(text: &mut String, name: &str, help: &str, values: impl IntoIterator<Item = (String, f64)>) {
    series(text, name, "gauge", help, values);
}

/// One metric with its values, each with its labels. By hand: values that are read at a scrape would stay in a recorder
/// after their queue or worker is gone.
fn series(
    text: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    values: impl IntoIterator<Item = (String, f64)>,
) {
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    for (labels, value) in values {
        let _ = writeln!(text, "{name}{labels} {value}");
    }
    text.push('\n');
}

fn labels(labels: &[(&str, &str)]) -> String {
    let escape = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let pairs: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
    format!("{{{}}}", pairs.join(","))
}
