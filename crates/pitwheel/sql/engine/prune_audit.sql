-- prune_audit.sql: deletes audit entries that are older than a year, a limited number at a time.
delete from pitwheel.audit
where audit.id in (select oldest.id from pitwheel.audit as oldest order by oldest.id limit 10000)
  and audit.at < now() - interval '1 year'
