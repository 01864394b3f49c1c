-- link.sql: the sources of fill.sql get their recurring jobs.
update feeds.source
set recurring_id = recurring.id, next_fetch_at = recurring.next_run_at
from pitwheel.recurring
where recurring.kind = 'fetch_feed'
  and recurring.key = source.id::text
