-- replay.sql: looks at one page ($4) of delivered events from the id $1 on, and puts back up to $5 of them. Returns the id to go on from, and how
-- many were put back. Zero rows: none is left.
select page.next_id, page.events
from pitwheel.replay_page($1, timestamptz 'epoch' + $2::bigint * interval '1 microsecond', $3, $4, $5, $6) as page
