-- already_settled.sql: which of these claims have ended in the history within a day, by a write of their own worker: a settle that
-- is repeated, or one in the handler's own transaction. What a sweep wrote is not the worker's: its last error is a crash.
-- Uses job_history_id of the partitions of two days, one probe per claim. A holder of 0 is not known, and then not compared.
-- `done` is whether the job is done.
-- Rows not returned: the claim ended in another way, or its job leaves no history, or waits again.
select claim.id, claim.fence, claim.holder, history.done
from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as claim(id, fence, holder)
cross join lateral (
    select history.state = 'done' as done
    from pitwheel.job_history as history
    where history.id >= claim.id
      and history.id <= claim.id
      and history.fence = claim.fence
      and history.worker = coalesce(nullif(claim.holder, 0), history.worker)
      and history.finished_at > now() - interval '1 day'
      and (history.state = 'done' or history.errors -> -1 ->> 'cause' is distinct from 'crash')
    order by history.id
    limit 1
) as history
