-- The workers that another transaction had locked at the last sweep: they could not renew their leases meanwhile (sweep.sql).
alter table pitwheel.sweep_tick add column locked bigint[] not null default '{}';
