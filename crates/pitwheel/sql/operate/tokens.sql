-- tokens.sql: the tokens that are not revoked, by name.
select token.id, token.name, token.role, token.created_at, token.created_by, token.expires_at
from pitwheel.token
where token.revoked_at is null
order by token.name
limit 1000
