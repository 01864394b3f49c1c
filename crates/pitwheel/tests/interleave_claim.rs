//! Claims against everything that may happen beside them, in every order of their statements.

use anyhow::Result;
use pitwheel::Settled;
use pitwheel_testkit::{Explorer, Run, Session, Stage, TestDb};

#[tokio::test]
async fn a_lost_lease_cannot_complete() -> Result<()> {
    let db = TestDb::new().await?;
    db.job().insert().await?;
    let first = db.claim_one().await?;
    db.expire_holder(&first).await?;
    db.sweep().await?;
    let second = db.claim_one().await?;

    assert_eq!(db.complete(&first).await?, Settled::Lost);
    assert_eq!(db.complete(&second).await?, Settled::Written);
    Ok(())
}

#[tokio::test]
async fn two_claims_never_take_one_job() -> Result<()> {
    let db = TestDb::new().await?;
    let setup = "
        insert into pitwheel.worker (id, name, lease, lease_until) overriding system value
        values (1, 'a', '1 hour', now() + interval '1 hour'), (2, 'b', '1 hour', now() + interval '1 hour');
        insert into pitwheel.job (id, run_at, enqueued_at, max_attempts, priority, queue, kind, payload)
        values (1, now(), now(), 20, 0, 'default', 'test', '{}'), (2, now(), now(), 20, 0, 'default', 'test', '{}')";
    let end = "select string_agg(id || ' by ' || coalesce(holder::text, 'nobody'), ' ' order by id) from pitwheel.job";
    let found = Explorer::new(&db, "claim x claim", setup)
        .session(Session::transaction("a", "claim", async |stage: &mut Stage| stage.claim(1, 2).await))
        .session(Session::transaction("b", "claim", async |stage: &mut Stage| stage.claim(2, 2).await))
        .end(end)
        .explore()
        .await?;
    println!("{found}");
    found.never(|run: &Run| run.failed());
    Ok(())
}
