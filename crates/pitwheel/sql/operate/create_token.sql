-- create_token.sql: creates a token, of which only the hash is stored. A unique violation: a valid token has this name.
with created as (
    insert into pitwheel.token (name, role, hash, created_by, expires_at)
    values ($1, $2, $3, $5, $4)
    returning token.id, token.name, token.role, token.created_at, token.created_by, token.expires_at
),
audited as (
    insert into pitwheel.audit (actor, action, subject)
    select $5, 'token.create', created.name || ' (' || created.role || ')'
    from created
)
select created.id, created.name, created.role, created.created_at, created.created_by, created.expires_at
from created
