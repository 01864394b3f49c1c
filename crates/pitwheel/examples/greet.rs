//! The program of the README: enqueues one job and runs it.

use pitwheel::{Context, Job, Pitwheel, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Greet {
    name: String,
}

impl Job for Greet {
    const KIND: &str = "greet";
}

async fn greet(job: Greet, _: Context) -> Result<(), std::io::Error> {
    println!("hello, {}", job.name);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), pitwheel::Error> {
    let pitwheel = Pitwheel::connect(&std::env::var("DATABASE_URL").unwrap_or_default()).await?;
    pitwheel.migrate().await?;
    pitwheel.enqueue(&Greet { name: "Ada".into() }).await?;

    Worker::new(&pitwheel)
        .queue("default", 20)
        .handle(greet)
        .run(async { tokio::signal::ctrl_c().await.unwrap_or_default() })
        .await?;
    Ok(())
}
