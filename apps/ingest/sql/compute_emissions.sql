-- compute_emissions.sql: what the current entries of a module, entry type and year emit, by unit and category, as rows of a version.
-- Of several factors for a category and measure, the one for the entry type goes before the one for the module, then the one for the
-- year, then the newest. Reads entries by their primary key, and each version of them once.
with entries as materialized (
    select entry.unit, entry.category, entry.measure, count(*) as entries, sum(entry.quantity) as quantity
    from ingest.lane
    join ingest.entry on entry.version_id = lane.current_version
    where lane.target = 'entries'
      and lane.method <> 'computed'
      and lane.module is not distinct from $2
      and lane.entry_type is not distinct from $3
      and lane.year is not distinct from $4::smallint
    group by entry.unit, entry.category, entry.measure
), factors as materialized (
    select distinct on (factor.category, factor.measure) factor.category, factor.measure, factor.kg_co2e
    from ingest.lane
    join ingest.factor on factor.version_id = lane.current_version
    where lane.target = 'factors'
      and lane.module is not distinct from $2
      and (lane.entry_type is null or lane.entry_type = $3)
      and (lane.year is null or lane.year = $4::smallint)
    order by factor.category, factor.measure, lane.entry_type is null, lane.year is null, lane.current_version desc
), computed as (
    insert into ingest.emission (version_id, line, unit, category, measure, entries, quantity, kg_co2e)
    select $1, row_number() over (order by unit, category, measure), unit, category, measure, entries.entries, entries.quantity,
           entries.quantity * factors.kg_co2e
    from entries
    left join factors using (category, measure)
    returning kg_co2e
)
select count(*) as rows, count(*) filter (where kg_co2e is null) as without_factor
from computed
