-- What people see and do: who works, who changed what, who may.

-- What a worker says of itself, and what it was told.
alter table pitwheel.worker
    add column transport text    not null default 'direct', -- direct (to Postgres) or grpc
    add column queues    text[]  not null default '{}',
    add column kinds     text[]  not null default '{}',
    add column slots     integer not null default 0,
    add column token     bigint,      -- with which it came in
    add column quiet_at  timestamptz, -- it is given nothing more
    add column drain_at  timestamptz; -- it shall end when it has nothing left; quiet, too

-- Every change that somebody made by hand, written by the statement that made it. Kept for a year.
create table pitwheel.audit (
    id      bigint generated always as identity primary key,
    at      timestamptz not null default clock_timestamp(),
    actor   text        not null,
    action  text        not null, -- as job.cancel, queue.pause
    subject text,                 -- the name of what was changed, or what it was changed to
    job_ids bigint[]              -- the jobs that were changed
);

-- Kinds with something said about them; a kind needs no row.
create table pitwheel.kind (
    name     text primary key,
    redacted boolean not null default false -- payloads and results are shown to those only who may change jobs
);

-- Who may come in from other machines. The secret itself is kept by nobody but its owner.
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
