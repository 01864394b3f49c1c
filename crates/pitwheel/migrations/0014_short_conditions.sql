-- Postgres parses and plans the condition of a trigger again in every statement, so conditions are short: that of job_uses_priority
-- was almost a third of what the insert of a single job cost. The functions are plpgsql, because an SQL function would be parsed and
-- inlined every time.

-- is_first_use: whether this transaction has no job of this priority yet.
create function pitwheel.is_first_use(priority smallint) returns boolean
language plpgsql stable
as $$
begin
    return current_setting('pitwheel.uses_priority_' || (priority + 9), true) is distinct from 'on';
end
$$;
grant execute on function pitwheel.is_first_use to public;
drop trigger job_uses_priority on pitwheel.job;
create trigger job_uses_priority before insert on pitwheel.job
for each row when (new.priority <> 0 and pitwheel.is_first_use(new.priority)) execute function pitwheel.use_priority();

-- promotes_next: whether a job with this run_at leaves its lane as the head, and the next one is not promoted by done_in_lanes.
create function pitwheel.promotes_next(run_at timestamptz) returns boolean
language plpgsql stable
as $$
begin
    return run_at < 'infinity' and current_setting('pitwheel.promotes_in_batch', true) is distinct from 'on';
end
$$;
grant execute on function pitwheel.promotes_next to public;
drop trigger job_leaves_lane on pitwheel.job;
create trigger job_leaves_lane after delete on pitwheel.job
for each row when (old.lane is not null and pitwheel.promotes_next(old.run_at)) execute function pitwheel.leave_lane();
