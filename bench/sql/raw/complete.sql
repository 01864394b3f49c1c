-- complete.sql: the jobs with these ids are done. No fence: this is the limit, not the promise.
delete from raw_bench.job
where id = any ($1::bigint[])
