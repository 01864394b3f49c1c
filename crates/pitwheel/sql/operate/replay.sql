-- replay.sql: puts one page of delivered events back. Returns the last id and how many; null and 0: none is left.
select replayed.last_id, replayed.events
from pitwheel.replay($1, timestamptz 'epoch' + $2::bigint * interval '1 microsecond', $3, $4, $5) as replayed
