-- promote_lanes.sql: promotes these lanes, if they have no head. A lane that another transaction promotes is left to it. Returns the
-- queues of the new heads.
-- Uses job_lane. Always one row.
select pitwheel.promote_lanes(array(select distinct pitwheel.lane_text(lane::jsonb) from unnest($1::text[]) as lane)) as queues
