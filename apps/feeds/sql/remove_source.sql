-- remove_source.sql: removes a source with all that belongs to it, and its recurring job. The caller has locked the source.
with gone as (
    delete from feeds.source
    where id = $1
    returning recurring_id
)
select count(*)
from gone
cross join lateral pitwheel.delete_recurring(gone.recurring_id)
