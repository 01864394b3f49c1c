-- A claim updates jobs, so an update of a job fires no trigger for each row. Postgres locks and reads every updated row once more for
-- such a trigger, also for one that is for another column: 5 % of what a claim costs.
drop trigger job_uses_priority on pitwheel.job;
create trigger job_uses_priority before insert on pitwheel.job
for each row when (
    new.priority <> 0
    and current_setting('pitwheel.uses_priority_' || (new.priority + 9), true) is distinct from 'on'
)
execute function pitwheel.use_priority();

-- use_every_priority: the engine never changes a priority. When someone does, every priority counts as one that jobs have had,
-- because a trigger for a statement does not know which the jobs have now. Claims read more levels from then on.
create function pitwheel.use_every_priority() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pitwheel.used_priority (priority)
    select every.priority
    from generate_series(-9, 9) as every(priority)
    where not exists (select from pitwheel.used_priority where used_priority.priority = every.priority);
    return null;
end
$$;
create trigger job_changes_priority before update of priority on pitwheel.job
for each statement execute function pitwheel.use_every_priority();
