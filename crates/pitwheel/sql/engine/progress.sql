-- progress.sql: writes the progress of the claimed jobs. A row that another transaction has locked is skipped: the next report
-- will be written. Returns the claims that still hold; the other rows were not changed.
-- A holder of 0 is not known, and then not compared.
-- Each job is found by one probe of job_pkey: with `limit 1` the planner cannot join the batch with a scan of the whole index.
-- The update adds 0 to the id, so that no plan joins by a scan of job_pkey: the rows are those of the ctids.
with report as materialized (
    select report.id, report.fence, report.holder, report.progress, report.note
    from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::real[], $5::text[])
        as report(id, fence, holder, progress, note)
),
free as materialized (
    select job.tid
    from report
    cross join lateral (
        select job.ctid as tid
        from pitwheel.job
        where job.id = report.id
          and job.fence = report.fence
          and job.holder = coalesce(nullif(report.holder, 0), job.holder)
        limit 1
        for no key update skip locked
    ) as job
),
written as (
    update pitwheel.job
    set progress = report.progress, note = report.note
    from report
    where job.ctid = any (array(select free.tid from free))
      and job.id + 0 = report.id
      and job.fence = report.fence
      and job.holder = coalesce(nullif(report.holder, 0), job.holder)
)
select report.id, report.fence, report.holder
from report
cross join lateral (
    select job.id
    from pitwheel.job
    where job.id = report.id
      and job.fence = report.fence
      and job.holder = coalesce(nullif(report.holder, 0), job.holder)
    limit 1
) as job
