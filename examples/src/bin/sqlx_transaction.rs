//! Enqueue and settle in your own sqlx transaction: the job is committed with your rows, or not at all.
//!
//! With `pitwheel dev` in another terminal, and the database URL that it prints:
//!
//! ```text
//! DATABASE_URL=postgres://… cargo run -p pitwheel-examples --bin sqlx_transaction
//! ```
//!
//! It prints:
//!
//! ```text
//! kettle: ordered
//! unicorn: not ordered, not in stock
//! kettle: shipped
//! ^C
//! settled 1, lost 0
//! ```

use anyhow::{Context as _, Result, ensure};
use pitwheel::{Context, Job, Pitwheel, Settled, Worker};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

/// A table of yours, in the database in which the jobs are.
const TABLE: &str = "create table if not exists example_order (
    id      bigint generated always as identity primary key,
    item    text not null,
    shipped boolean not null default false
)";

#[derive(Serialize, Deserialize)]
struct ShipOrder {
    order: i64,
}

impl Job for ShipOrder {
    const KIND: &str = "ship_order";
    const QUEUE: &str = "orders";
}

/// Stores an order together with the job that ships it.
async fn place_order(pool: &PgPool, item: &str) -> Result<()> {
    let mut transaction = pool.begin().await?;
    let insert = "insert into example_order (item) values ($1) returning id";
    let order = sqlx::query_scalar(insert).bind(item).fetch_one(&mut *transaction).await?;
    pitwheel::transaction::sqlx::enqueue(&mut transaction, [&ShipOrder { order }]).await?;
    // An error here rolls back both: no worker ever sees the job.
    ensure!(item != "unicorn", "not in stock");
    transaction.commit().await?;
    Ok(())
}

/// Marks the order as shipped in the transaction that completes the job.
async fn ship_order(pool: PgPool, job: ShipOrder, context: Context) -> Result<()> {
    let mut transaction = pool.begin().await?;
    // The settle comes first. `Lost` means that another worker has the job now, so nothing may be written.
    let settled = pitwheel::transaction::sqlx::complete(&mut transaction, &context).await?;
    ensure!(settled == Settled::Written, "the claim was lost");
    let update = "update example_order set shipped = true where id = $1 returning item";
    let item: String = sqlx::query_scalar(update).bind(job.order).fetch_one(&mut *transaction).await?;
    transaction.commit().await?;
    println!("{item}: shipped");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").context("set DATABASE_URL, as `pitwheel dev` prints it")?;
    let pitwheel = Pitwheel::connect(&url).await?;
    pitwheel.migrate().await?;
    let pool = PgPool::connect(&url).await?;
    sqlx::query(TABLE).execute(&pool).await?;

    for item in ["kettle", "unicorn"] {
        match place_order(&pool, item).await {
            Ok(()) => println!("{item}: ordered"),
            Err(error) => println!("{item}: not ordered, {error}"),
        }
    }

    let stats = Worker::new(&pitwheel)
        .queue(ShipOrder::QUEUE, 20)
        .handle(move |job: ShipOrder, context| ship_order(pool.clone(), job, context))
        .run(async { tokio::signal::ctrl_c().await.unwrap_or_default() })
        .await?;
    println!("settled {}, lost {}", stats.settled, stats.lost);
    Ok(())
}
