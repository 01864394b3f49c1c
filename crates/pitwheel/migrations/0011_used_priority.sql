-- The priorities that jobs have had. A claim reads one level of each queue for each of them, so a database whose jobs all have the
-- same priority pays for one of 19.
--
-- A claim that sees a job sees its priority here: the transaction that inserts a job has seen the row, or inserts it itself. For this
-- no row is ever deleted, and two transactions may both insert one: with a unique index the second would wait for the first.
create table pitwheel.used_priority (priority pitwheel.priority not null);
create index used_priority_order on pitwheel.used_priority (priority);
grant select on pitwheel.used_priority to public;

-- use_priority: remembers the priority of a new job, whoever writes it; with the rights of the owner, because a role that may only
-- enqueue has none to write the table. Once in a transaction for each priority: the setting is undone with the transaction or the
-- savepoint, as the row is.
create function pitwheel.use_priority() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pitwheel.used_priority (priority)
    select new.priority
    where not exists (select from pitwheel.used_priority where used_priority.priority = new.priority);
    perform set_config('pitwheel.uses_priority_' || (new.priority + 9), 'on', true);
    return new;
end
$$;
-- Locks the table against inserts until the priorities of its jobs are known.
create trigger job_uses_priority before insert or update of priority on pitwheel.job
for each row when (
    new.priority <> 0
    and current_setting('pitwheel.uses_priority_' || (new.priority + 9), true) is distinct from 'on'
)
execute function pitwheel.use_priority();

insert into pitwheel.used_priority (priority)
select 0 union select job.priority from pitwheel.job;
