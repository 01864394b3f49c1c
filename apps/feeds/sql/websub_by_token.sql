-- websub_by_token.sql: the subscription that a callback belongs to. Uses websub_token. Zero rows: no subscription has this token.
select websub.source_id, websub.wanted, websub.topic_url, websub.secret, source.url
from feeds.websub
join feeds.source on source.id = websub.source_id
where websub.token = $1
