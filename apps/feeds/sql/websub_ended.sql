-- websub_ended.sql: the hub confirmed the end of a subscription. Uses websub_token. Zero rows: it is wanted.
delete from feeds.websub
where token = $1
  and not wanted
returning source_id
