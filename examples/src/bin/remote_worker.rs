//! A worker without a database connection: it gets its jobs over gRPC from `pitwheel dev` or `pitwheel serve`.
//!
//! With `pitwheel dev` in another terminal, enqueue a job and run it:
//!
//! ```text
//! pitwheel jobs enqueue resize_image '{"image":"cat.png","widths":[320,640]}'
//! cargo run -p pitwheel-examples --bin remote_worker
//! ```
//!
//! It prints:
//!
//! ```text
//! cat.png: 320 px
//! cat.png: 640 px
//! ^C
//! settled 1, lost 0
//! ```

use std::time::Duration;

use anyhow::{Result, bail};
use pitwheel::{Completion, Context, Job, Verdict, Worker};
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Serialize, Deserialize)]
struct ResizeImage {
    image: String,
    widths: Vec<u32>,
}

impl Job for ResizeImage {
    const KIND: &str = "resize_image";
    /// One attempt may take this long; then its handler is dropped, and the attempt has failed.
    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));
}

/// The same function would work with `Worker::new(&pitwheel)`, in process.
async fn resize_image(job: ResizeImage, context: Context) -> Result<Completion> {
    let mut files = Vec::new();
    for width in &job.widths {
        // `pitwheel jobs cancel` ends the wait; an error then leaves the job cancelled.
        tokio::select! {
            file = resize(&job.image, *width) => files.push(file),
            () = context.cancelled() => bail!("cancelled before {width} px"),
        }
        println!("{}: {width} px", job.image);
        context.progress(files.len() as f32 / job.widths.len() as f32, format!("{width} px"));
    }
    // Stored with the job: `pitwheel jobs show ID` prints it.
    Ok(Verdict::complete_with(&json!({ "files": files }))?)
}

/// Stands for the real work.
async fn resize(image: &str, width: u32) -> String {
    tokio::time::sleep(Duration::from_millis(10)).await;
    format!("{width}/{image}")
}

#[tokio::main]
async fn main() -> Result<()> {
    // Warnings go to stderr. Without a subscriber, a server that cannot be reached is waited for in silence.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let server = std::env::var("PITWHEEL_SERVER").unwrap_or_else(|_| "127.0.0.1:7475".to_owned());

    // A server on another machine needs `https://` and `.token(…)`: see `pitwheel tokens create --help`.
    let stats = Worker::remote(&format!("http://{server}"))
        .queue("default", 20)
        .handle(resize_image)
        .run(async { tokio::signal::ctrl_c().await.unwrap_or_default() })
        .await?;
    println!("settled {}, lost {}", stats.settled, stats.lost);
    Ok(())
}
