-- steps.sql: the steps of a pipeline in their order, with the results of their last jobs. Results are left out beyond 1 MiB: those of all
-- steps can have 2.5 GB. What is beyond it by its stored size alone is not even read: that is the size of the text, plus at most 4
-- bytes, or less if it is compressed. Uses step_pkey. Zero rows: no pipeline has this id.
with listed as (
    select step.n, step.name, step.state, step.parents, step.kind, step.queue, step.job_id, step.ended_at, step.result,
        sum(greatest(pg_column_size(step.result) - 4, 0)) over (order by step.n) as stored
    from pitwheel.step
    where step.pipeline = $1
),
measured as (
    select listed.n, listed.name, listed.state, listed.parents, listed.kind, listed.queue, listed.job_id, listed.ended_at,
        listed.result, listed.stored,
        sum(case when listed.stored <= 1048576 then octet_length(listed.result::text) end) over (order by listed.n) as bytes
    from listed
)
select measured.name, measured.state, measured.parents, measured.kind, measured.queue, measured.job_id, measured.ended_at,
    case when measured.stored <= 1048576 and measured.bytes <= 1048576 then measured.result::text end as result,
    measured.result is not null and (measured.stored > 1048576 or measured.bytes > 1048576) as result_left_out,
    exists (select from pitwheel.kind where kind.name = measured.kind and kind.redacted) as redacted
from measured
order by measured.n
limit 10000
