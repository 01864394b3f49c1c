-- postponed.sql: the run of the source is snoozed, because its host asked for a pause. Uses source_pkey.
-- Zero rows: the source is disabled or was removed, or another worker has fetched it meanwhile and its next fetch is not due.
update feeds.source
set next_fetch_at = clock_timestamp() + $2::double precision * interval '1 second', next_fetch_reason = $3
where id = $1
  and disabled_because is null
  and next_fetch_at <= clock_timestamp()
returning id
