-- Enqueue from plain SQL, in your own transaction. Any language can call `pitwheel.enqueue` in this way.
--
-- With `pitwheel dev` in another terminal, and the database URL that it prints:
--
-- ```text
-- psql -X postgres://… -f examples/sql/enqueue.sql
-- ```
--
-- It prints:
--
-- ```text
-- the same job: t
-- kind | queue | priority | is_due | payload
-- welcome_mail | default | 0 | t | {"name" : "Ada"}
-- newsletter | mail | 5 | f | {"issue": 7}
-- ```
\set ON_ERROR_STOP on
\set QUIET on
\pset format unaligned
\pset fieldsep ' | '
\pset footer off

create temporary table customer (name text);

-- The customer and the job are committed together.
begin;
insert into customer values ('Ada');
select pitwheel.enqueue('welcome_mail', json_build_object('name', name), key => 'customer-' || name) as first_id
from customer
\gset
commit;

-- This job never exists.
begin;
select pitwheel.enqueue('welcome_mail', '{"name": "Grace"}') as rolled_back_id
\gset
rollback;

-- A live job with this kind and key is there already: the call returns its id and enqueues nothing.
select pitwheel.enqueue('welcome_mail', '{"name": "Ada"}', key => 'customer-Ada') as second_id
\gset
select :first_id = :second_id as is_same
\gset
\echo the same job: :is_same

-- All that can be said about a job.
select pitwheel.enqueue(
    kind         => 'newsletter',
    payload      => '{"issue": 7}',
    queue        => 'mail',
    run_at       => now() + interval '1 hour',
    priority     => 5,                        -- -9 to 9, higher first
    max_attempts => 3,
    timeout      => interval '10 minutes',    -- of one attempt
    key          => 'issue-7',
    metadata     => '{"requested_by": "ada"}'
) as newsletter_id
\gset

-- Jobs are rows.
select kind, queue, priority, run_at <= now() as is_due, payload
from pitwheel.job
where id in (:first_id, :rolled_back_id, :second_id, :newsletter_id)
order by id;
