-- complete.sql: the jobs with these ids are done. Without a fence: this measures the limit of the server.
delete from raw_bench.job
where id = any ($1::bigint[])
