-- What people see and do: workers, the audit log, kinds, tokens.

-- A worker's description of itself, and the commands to it.
alter table pitwheel.worker
    add column transport text    not null default 'direct', -- direct (to Postgres) or grpc
    add column queues    text[]  not null default '{}',
    add column kinds     text[]  not null default '{}',
    add column slots     integer not null default 0,
    add column token     bigint,      -- the token that it connected with
    add column quiet_at  timestamptz, -- since when it gets no more jobs
    add column drain_at  timestamptz; -- since when it is to end after its running jobs; it is quiet, too

-- Every change made by a person, written by the statement that made it. Kept for a year.
create table pitwheel.audit (
    id      bigint generated always as identity primary key,
    at      timestamptz not null default clock_timestamp(),
    actor   text        not null,
    action  text        not null, -- as job.cancel, queue.pause
    subject text,                 -- the name of what was changed, or what it was changed to
    job_ids bigint[]              -- the jobs that were changed
);

-- Kinds with settings; a kind needs no row.
create table pitwheel.kind (
    name     text primary key,
    redacted boolean not null default false -- payloads, metadata and results are hidden from viewers
);

-- Access from other machines. The secret itself is not stored.
create table pitwheel.token (
    id         bigint generated always as identity primary key,
    name       text        not null,
    role       text        not null constraint token_role check (role in ('viewer', 'operator', 'admin', 'worker', 'producer')),
    hash       bytea       not null unique, -- SHA-256
    created_at timestamptz not null default clock_timestamp(),
    created_by text        not null,
    expires_at timestamptz,
    revoked_at timestamptz
);
create unique index token_name on pitwheel.token (name) where revoked_at is null;
