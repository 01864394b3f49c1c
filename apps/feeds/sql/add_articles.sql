-- add_articles.sql: stores the articles that their sources do not have yet. Returns those, in the order of their ids.
-- An article is also known under its other identity, if it has the same link there. Uses article_identity; the limit keeps the
-- planner from hashing the whole table.
with given as materialized (
    select given.*
    from unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::text[], $5::text[], $6::text[], $7::text[], $8::timestamptz[],
        $9::timestamptz[]) with ordinality
        as given(source_id, identity, other, url, title, author, content, published_at, updated_at, n)
),
added as (
    insert into feeds.article (source_id, identity, url, title, author, content, published_at, updated_at)
    select given.source_id, given.identity, given.url, given.title, given.author, given.content, given.published_at,
        given.updated_at
    from given
    left join lateral (
        select true as known
        from feeds.article
        where article.source_id = given.source_id
          and article.identity = given.other
          and regexp_replace(article.url, '^https?:', '', 'i') = regexp_replace(given.url, '^https?:', '', 'i')
        limit 1
    ) as other on true
    where other.known is null
    -- One order for all, so that two transactions cannot wait for each other. The oldest article gets the lowest id.
    order by given.source_id, given.n desc
    on conflict (source_id, identity) do nothing
    returning id, source_id, identity
)
select added.id, added.source_id, added.identity
from added
order by added.id
