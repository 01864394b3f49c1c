-- Each stream of a remote worker and each `run_job` is a worker, so there may be many that have ended. A sweep reads those that live,
-- and forgetting those that are dead reads the oldest; neither may read them all. A renewal changes none of these columns, so it
-- stays a HOT update.
create index worker_alive on pitwheel.worker (id) where dead_at is null;
create index worker_dead on pitwheel.worker (dead_at) where dead_at is not null;
