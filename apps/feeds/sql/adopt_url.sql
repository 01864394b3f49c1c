-- adopt_url.sql: the source has moved for good. Zero rows: another source has that URL.
update feeds.source
set url = $2, moved_to = null, moved_sightings = 0
where id = $1
  and not exists (select from feeds.source as other where other.url = $2)
returning id
