//! A worker in your own process: it claims jobs from Postgres and runs them until Ctrl-C.
//!
//! With `pitwheel dev` in another terminal, and the database URL that it prints:
//!
//! ```text
//! DATABASE_URL=postgres://… cargo run -p pitwheel-examples --bin in_process_worker
//! ```
//!
//! It prints:
//!
//! ```text
//! invoice 1: sent to ada@example.com at attempt 1
//! invoice 2: attempt 1 failed
//! invoice 3: buried
//! invoice 2: sent to grace@example.com at attempt 2
//! ^C
//! settled 4, lost 0
//! ```

use anyhow::{Context as _, Result, bail};
use pitwheel::{Context, Job, Pitwheel, Verdict, Worker};
use serde::{Deserialize, Serialize};

/// A job is a serde type with a kind; its fields are the payload.
#[derive(Serialize, Deserialize)]
struct SendInvoice {
    number: u32,
    email: String,
}

impl Job for SendInvoice {
    /// The name in the database. Keep it when you rename the type: jobs with this name may be waiting.
    const KIND: &str = "send_invoice";
    const QUEUE: &str = "invoices";
    const MAX_ATTEMPTS: u32 = 5;
}

/// Jobs run at least once: after a crash this runs again, so it must be safe to repeat.
async fn send_invoice(job: SendInvoice, context: Context) -> Result<Verdict> {
    let SendInvoice { number, email } = &job;
    if !email.contains('@') {
        // No further attempt would help. `pitwheel jobs list --state dead` shows the job.
        println!("invoice {number}: buried");
        return Ok(Verdict::bury(format!("`{email}` is not an e-mail address")));
    }
    // An error is stored with the job, and the job runs again after a while.
    deliver(&job, context.attempt()).await.with_context(|| format!("cannot send invoice {number}"))?;
    println!("invoice {number}: sent to {email} at attempt {}", context.attempt());
    Ok(Verdict::complete().into())
}

/// Stands for a mail server that refuses one invoice at first.
async fn deliver(job: &SendInvoice, attempt: u32) -> Result<()> {
    if job.number == 2 && attempt == 1 {
        println!("invoice {}: attempt {attempt} failed", job.number);
        bail!("the mail server is busy");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").context("set DATABASE_URL, as `pitwheel dev` prints it")?;
    let pitwheel = Pitwheel::connect(&url).await?;
    // Creates or updates the tables. Safe at every start, on every machine.
    pitwheel.migrate().await?;

    let emails = ["ada@example.com", "grace@example.com", "nowhere"];
    let invoices = (1..).zip(emails).map(|(number, email)| SendInvoice { number, email: email.to_owned() });
    pitwheel.enqueue_many(&invoices.collect::<Vec<_>>()).await?;

    let stats = Worker::new(&pitwheel)
        // One job at a time, so that the output has one order. Most workers have more slots.
        .queue(SendInvoice::QUEUE, 1)
        .handle(send_invoice)
        // Running jobs may finish after Ctrl-C. A service waits for SIGTERM here, too.
        .run(async { tokio::signal::ctrl_c().await.unwrap_or_default() })
        .await?;
    println!("settled {}, lost {}", stats.settled, stats.lost);
    Ok(())
}
