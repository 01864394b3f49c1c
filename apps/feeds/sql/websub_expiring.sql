-- websub_expiring.sql: sources whose hub is to be asked. To renew: the subscription expires within 24 hours. To ask again: the hub has
-- not confirmed it an hour after it was asked, or a week after it denied. To begin: there is none. At most 1,000 of each kind. Uses
-- websub_lease and source_hub.
(
    select websub.source_id, websub.wanted and source.disabled_because is null as renew
    from feeds.websub
    join feeds.source on source.id = websub.source_id
    where (
            websub.lease_until < clock_timestamp() + interval '24 hours'
            or websub.requested_at < clock_timestamp() - interval '1 hour'
                and (websub.lease_until is null or not websub.wanted or source.disabled_because is not null)
        )
      and (websub.denied is null or websub.requested_at < clock_timestamp() - interval '7 days')
    order by websub.lease_until nulls first, websub.source_id
    limit 1000
)
union all
(
    select source.id, true
    from feeds.source
    where source.hub_url is not null
      and source.disabled_because is null
      and not exists (select from feeds.websub where websub.source_id = source.id)
    order by source.id
    limit 1000
)
