-- revoke_token.sql: the token of this name is no longer valid. Zero rows: there is no such token.
with revoked as (
    update pitwheel.token
    set revoked_at = clock_timestamp()
    where token.name = $1
      and token.revoked_at is null
    returning token.name
)
insert into pitwheel.audit (actor, action, subject)
select $2, 'token.revoke', revoked.name
from revoked
returning audit.subject
