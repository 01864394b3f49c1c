-- claim_refusal.sql: why the job $1 cannot be claimed: `taken`, `lane_busy`, `out_of_attempts`, `paused`, `other_kind`, or
-- `finished`. `none`: nothing is against it now.
-- Uses job_pkey and job_history_id. Zero rows: there is no such job.
(select case
        when job.holder is not null then 'taken'
        when job.run_at = 'infinity' then 'lane_busy'
        when job.attempt >= job.max_attempts then 'out_of_attempts'
        when job.kind <> all ($2::text[]) then 'other_kind'
        when exists (
            select from pitwheel.queue where queue.name in (job.queue, '*') and queue.paused_at is not null
        ) then 'paused'
        else 'none'
    end as reason
from pitwheel.job
where job.id = $1)
union all
(select 'finished' from pitwheel.job_history where job_history.id = $1 limit 1)
limit 1
