-- done_in_lanes.sql: the fast path of done.sql and complete.sql for jobs of lanes: each is done, and the next of its lane is due. Those
-- with $6 move to the history. Holds that were emptied before are deleted.
-- Returns ids, as done.sql does. Uses the ctids of the claims, and job_lane once for each job.
with emptied as (
    delete from pitwheel.hold
    where hold.ctid = any (array(
        select hold.ctid from pitwheel.hold where hold.id = any($5::bigint[]) for update skip locked
    ))
)
select array_agg(done.id) as ids
from pitwheel.done_in_lanes($1::bigint[], $2::bigint[], $3::bigint[], $4::tid[], $6::bool[]) as done
where done.written
