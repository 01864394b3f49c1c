-- articles.sql: one page of articles, newest first: ids below $1, at most $2, of one source with $3, of one subscriber with $4.
-- Uses article_source or article_pkey.
select article.id, article.source_id, source.name as source, article.found_at, article.published_at, article.updated_at,
    article.url, article.title, article.author, article.content
from feeds.article
join feeds.source on source.id = article.source_id
where article.id < $1
  and ($3::bigint is null or article.source_id = $3)
  and ($4::text is null or exists (
      select from feeds.subscription
      where subscription.source_id = article.source_id and subscription.subscriber = $4
  ))
order by article.id desc
limit $2
