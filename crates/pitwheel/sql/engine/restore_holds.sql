-- restore_holds.sql: of the next $2 jobs above the id $1, those that run and that no hold of their holder names. A failover has lost their
-- settle, which the worker believes written, so it has deleted their hold since; or a person has emptied the table.
-- Inserts holds for them again, so that they are found: a worker that is alive releases what it does not know, the sweep what a dead
-- worker held. In one snapshot a claimed job has its hold. A hold that is one too many is deleted by its worker.
-- `last` is the id up to which this looked. One row for each such job whose worker is forgotten, which no hold would help; one row with
-- nulls if there is none. Zero rows: there are no more jobs. Uses job_pkey, hold_worker and worker_pkey.
with page as materialized (
    select job.id, job.fence, job.holder, job.crashes, job.attempt
    from pitwheel.job
    where job.id > $1
    order by job.id
    limit $2
),
running as materialized (
    select page.id, page.fence, page.holder, page.crashes, page.attempt
    from page
    where page.holder is not null
),
unheld as materialized (
    select running.id, running.fence, running.holder, running.crashes, running.attempt,
        exists (select from pitwheel.worker where worker.id = running.holder) as has_worker
    from running
    where ((running.holder, running.id) in (
        select hold.worker, unnest(hold.job_ids)
        from pitwheel.hold
        where hold.worker = any (array(select distinct running.holder from running))
    )) is not true
),
holds as (
    insert into pitwheel.hold (worker, job_ids)
    select numbered.holder, array_agg(numbered.id order by numbered.id)
    from (
        select unheld.id, unheld.holder, (row_number() over (partition by unheld.holder order by unheld.id) - 1) / 500 as part
        from unheld
        where unheld.has_worker
    ) as numbered
    group by numbered.holder, numbered.part
)
select whole.last, whole.restored, forgotten.id, forgotten.fence, forgotten.holder, forgotten.crashes, forgotten.attempt
from (
    select max(page.id) as last, (select count(*) from unheld where unheld.has_worker) as restored
    from page
    having count(*) > 0
) as whole
left join (
    select unheld.id, unheld.fence, unheld.holder, unheld.crashes, unheld.attempt
    from unheld
    where not unheld.has_worker
) as forgotten on true
