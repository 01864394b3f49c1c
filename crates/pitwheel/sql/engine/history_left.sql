-- history_left.sql: how many days of the history a prune should have dropped, because they are older than $1 seconds, or should have
-- created, and did not: a reader had locked the history. A day stays in the default partition if that has rows of it. Zero rows: another
-- node prunes.
with part as materialized (
    select to_date(right(child.relname, 8), 'YYYYMMDD') as day
    from pg_catalog.pg_inherits as inherits
    join pg_catalog.pg_class as child on child.oid = inherits.inhrelid
    where inherits.inhparent = 'pitwheel.job_history'::regclass
      and child.relname ~ '^job_history_[0-9]{8}$'
)
select (
        select count(*)
        from part
        where part.day + 1 <= ((now() - make_interval(secs => $1)) at time zone 'utc')::date
    ) + (
        select count(*)
        from generate_series(0, 7) as n
        cross join lateral (select (now() at time zone 'utc')::date + n as day) as wanted
        where not exists (select from part where part.day = wanted.day)
          and not exists (
              select
              from pitwheel.job_history_default as history
              where history.finished_at >= wanted.day::timestamp at time zone 'utc'
                and history.finished_at < (wanted.day + 1)::timestamp at time zone 'utc'
          )
    ) as days
where pg_try_advisory_xact_lock(hashtextextended('pitwheel.prune_history', 0))
