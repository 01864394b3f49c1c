-- lane_current.sql: the id of the current job of the lane $1. Zero rows: no job of it was claimed, or that was forgotten with its
-- history. Uses job_lane and the primary key of lane.
select current.job_id
from pitwheel.current
where current.lane = pitwheel.lane_text($1::text::jsonb)
