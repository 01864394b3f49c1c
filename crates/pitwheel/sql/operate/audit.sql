-- audit.sql: the audit log, newest first, one page at a time.
select audit.id, audit.at, audit.actor, audit.action, audit.subject, audit.job_ids
from pitwheel.audit
where audit.id < $1
order by audit.id desc
limit $2
