-- redact.sql: redacts a kind, or reveals it. docs/glossary.md says what servers hide of a redacted kind, and from whom.
with said as (
    insert into pitwheel.kind (name, redacted)
    values ($1, $2)
    on conflict (name) do update
    set redacted = excluded.redacted
    where kind.redacted <> excluded.redacted
    returning kind.name, kind.redacted
)
insert into pitwheel.audit (actor, action, subject)
select $3, case when said.redacted then 'kind.redact' else 'kind.reveal' end, said.name
from said
