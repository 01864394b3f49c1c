-- token_hashes.sql: the valid tokens, as a server checks them, and in how many seconds each expires. Null: it does not.
select token.hash, token.id, token.name, token.role,
       case when isfinite(token.expires_at) then extract(epoch from token.expires_at - now())::float8 end as expires_in
from pitwheel.token
where token.revoked_at is null
  and (token.expires_at is null or token.expires_at > now())
limit 10000
