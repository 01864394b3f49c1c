//! The time that lists take when the tables are large.

use std::time::Instant;

use anyhow::{Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::child_process::ChildProcess;
use crate::engine::fresh;
use crate::report::Row;

/// 1,000,000 live jobs in twenty queues, 20,000 of them running, and 10,000,000 finished jobs of a week.
const FILL: &str = "
    insert into pitwheel.worker (id, name, lease, lease_until) overriding system value
    values (1, 'elsewhere', '1 hour', now() + interval '1 hour');
    insert into pitwheel.job_history (id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority,
        crashes, state, queue, kind, payload)
    select n, now() + n % 7 * interval '1 day', now(), now(), 1, 1, 20, 0, 0,
        case when n % 1000 = 0 then 'dead' else 'done' end, 'queue-' || n % 20, 'kind-' || n % 50, '{}'
    from generate_series(1, 10000000) as n;
    insert into pitwheel.job (id, run_at, enqueued_at, max_attempts, priority, queue, kind, payload, holder, claimed_at)
    select n, now(), now(), 20, 0, 'queue-' || n % 20, 'kind-' || n % 50, '{}',
        case when n <= 10020000 then 1 end, case when n <= 10020000 then now() end
    from generate_series(10000001, 11000000) as n;
    insert into pitwheel.hold (worker, job_ids)
    select 1, array_agg(n) from generate_series(10000001, 10020000) as n group by n / 500;
    analyze pitwheel.job, pitwheel.job_history";

const LISTS: [&str; 14] = [
    "jobs",
    "jobs?limit=1000",
    "jobs?queue=queue-3",
    "jobs?kind=none",
    "jobs?key=none",
    "jobs?state=waiting&kind=kind-7",
    "jobs?state=running",
    "jobs?state=dead",
    "jobs?state=cancelled",
    "jobs?state=done&kind=none",
    "history",
    "history?kind=kind-3&before=5000000",
    "queues",
    "workers",
];
const SAMPLES: usize = 40;

/// The slowest list, by its 95th percentile.
pub(crate) async fn lists(url: &str) -> Result<Vec<Row>> {
    let (_, session) = fresh(url).await?;
    session.client.batch_execute(FILL).await?;
    let (server, address) = ChildProcess::serve(url).await?;
    let client = http_client();
    let mut slowest = ("", 0.0);
    for list in LISTS {
        let mut waits = Vec::new();
        for _ in 0..SAMPLES {
            let asked = Instant::now();
            get(&client, &format!("{address}/api/v1/{list}")).await?;
            waits.push(asked.elapsed().as_secs_f64() * 1000.0);
        }
        waits.sort_unstable_by(f64::total_cmp);
        let p95 = waits[SAMPLES * 95 / 100];
        eprintln!("  {list}: p50 {:.0} ms, p95 {p95:.0} ms", waits[SAMPLES / 2]);
        if p95 > slowest.1 {
            slowest = (list, p95);
        }
    }
    server.stop().await?;
    session.close().await?;
    let (list, p95) = slowest;
    let case = format!("slowest list (/{list}), 1,000,000 live, 10,000,000 finished, p95");
    Ok(vec![Row::new(case, p95, "ms").at_most(150.0)])
}

type HttpClient = Client<HttpConnector, Empty<Bytes>>;

/// Opens a connection for each request.
fn http_client() -> HttpClient {
    Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http()
}

async fn get(client: &HttpClient, url: &str) -> Result<()> {
    let response = client.get(url.parse()?).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    ensure!(status.is_success(), "{url}: {status}: {}", String::from_utf8_lossy(&body));
    Ok(())
}

/// One request.
pub(super) async fn get_ok(url: &str) -> Result<()> {
    get(&http_client(), url).await
}
