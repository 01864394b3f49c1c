-- progress.sql: writes the progress of the claimed jobs. Rows that no longer belong to the claim are not changed.
update pitwheel.job
set progress = report.progress, note = report.note
from unnest($1::bigint[], $2::bigint[], $3::real[], $4::text[]) as report(id, fence, progress, note)
where job.id = report.id
  and job.fence = report.fence
  and job.holder is not null
returning job.id, job.fence
