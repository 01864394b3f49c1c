//! The statements that find rows of `job` or `hold` by their id or ctid, or claim them, with parameters for worker 1.
//! The functions in the values are made by `by_id`.

use crate::explain::Statement;

macro_rules! statement {
    ($path:literal, $types:literal, $values:literal) => {
        Statement {
            name: $path,
            sql: include_str!(concat!("../../sql/", $path)),
            types: $types,
            values: $values,
        }
    };
}

/// All statements that `by_id` checks.
pub(crate) const STATEMENTS: [Statement; 35] = [
    statement!(
        "engine/done.sql",
        "bigint[], bigint[], bigint[], tid[], bigint[]",
        "ids(), fences(), of(1::bigint), ctids(), holds()"
    ),
    statement!(
        "engine/complete.sql",
        "bigint[], bigint[], bigint[], tid[], bigint[]",
        "ids(), fences(), of(1::bigint), ctids(), holds()"
    ),
    statement!(
        "engine/finish.sql",
        "bigint[], bigint[], text[], text[], text[], bigint[], bigint[], bigint[], text[], text[], text[], bigint[], bigint[],
            smallint[], int[], bigint[], text[], text[], bool[], bigint[], bigint[], text[], bool[], text[]",
        "ids(), fences(), of('done'::text), '{}', of('1'::text), holds(), ids(), fences(), of('next'::text), of('{}'::text),
            of('default'::text), of(0::bigint), '{}', of(0::smallint), of(1), '{}', '{}', ids()::text[], of(false),
            of(1::bigint), of(1::bigint), '{}', '{}', '{}'"
    ),
    statement!(
        "engine/put_back.sql",
        "bigint[], bigint[], bigint[], bigint[], bool[], bool[], text[]",
        "ids(), fences(), of(1::bigint), of(0::bigint), of(false), of(false), '{}'"
    ),
    statement!(
        "engine/progress.sql",
        "bigint[], bigint[], bigint[], real[], text[]",
        "ids(), fences(), of(1::bigint), of(0.5::real), of('half'::text)"
    ),
    statement!("engine/drop_holds.sql", "bigint[]", "holds()"),
    statement!("engine/abandoned_jobs.sql", "bigint, bigint", "20, 0"),
    statement!("engine/restore_holds.sql", "bigint, bigint", "(ids())[1] - 1, 20"),
    statement!("engine/held.sql", "bigint[]", "'{1}'"),
    statement!("engine/heartbeat.sql", "bigint[]", "'{1}'"),
    statement!("engine/cancel_requests.sql", "bigint[]", "'{1}'"),
    statement!("engine/unknown_holds.sql", "bigint[], bigint[]", "'{1}', '{}'"),
    statement!(
        "engine/already_settled.sql",
        "bigint[], bigint[], bigint[]",
        "ids(), fences(), of(1::bigint)"
    ),
    statement!("engine/attempts.sql", "bigint[], bigint[], bigint[]", "ids(), fences(), of(1::bigint)"),
    statement!(
        "engine/claims_of_token.sql",
        "bigint[], bigint[], bigint[], bigint",
        "ids(), fences(), of(1::bigint), 7"
    ),
    statement!("engine/claim_refusal.sql", "bigint, text[]", "(waiting())[1], '{test}'"),
    statement!("engine/lock_claim.sql", "bigint, bigint, bigint", "(ids())[1], (fences())[1], 1"),
    statement!("engine/lock_claims.sql", "bigint[], bigint[], bigint[]", "ids(), fences(), of(1::bigint)"),
    statement!(
        "engine/claim.sql",
        "bigint, text[], int[], int[], timestamptz[], bigint[], text[]",
        "1, '{default}', '{10}', '{1}',
            array_fill(now() - interval '10 minutes', array[19]), array_fill(0::bigint, array[19]), '{test}'"
    ),
    statement!(
        "engine/claim_for_workers.sql",
        "bigint[], bigint[], text[], int[], timestamptz[], bigint[], text[]",
        "array_fill(1::bigint, array[10]), '{1}', '{default}', '{1}',
            array_fill(now() - interval '10 minutes', array[19]), array_fill(0::bigint, array[19]), '{test}'"
    ),
    statement!("engine/claim_alone.sql", "bigint, text[], text[]", "1, '{default}', '{test}'"),
    statement!("engine/free_suspect.sql", "text[], text[]", "'{default}', '{test}'"),
    statement!("engine/claim_by_id.sql", "bigint, bigint, text[], text", "1, (waiting())[1], '{test}', 'ada'"),
    statement!(
        "engine/look_back.sql",
        "text[], smallint[], timestamptz[], bigint[], timestamptz[], bigint[], text[]",
        "'{default}', '{0}', array[now() - interval '10 minutes'], '{0}', array[now()], '{0}', '{test}'"
    ),
    statement!(
        "engine/first_free.sql",
        "text[], smallint[], timestamptz[], bigint[], timestamptz[], bigint[], text[]",
        "'{default}', '{0}', array[now() - interval '10 minutes'], '{0}', array[now()], '{0}', '{test}'"
    ),
    statement!(
        "engine/enqueue_keyed.sql",
        "text[], text[], text[], bigint[], bigint[], smallint[], int[], bigint[], text[], text[], text[], bool[], bool",
        "of('test'::text), of('{}'::text), of('default'::text), of(0::bigint), '{}', of(0::smallint), of(1), '{}', '{}',
            keys(), '{}', '{}', true"
    ),
    Statement {
        name: "pitwheel.complete",
        sql: "select pitwheel.complete($1, $2, holder => $3)",
        types: "bigint, bigint, bigint",
        values: "(ids())[1], (fences())[1], 1",
    },
    Statement {
        name: "pitwheel.fail",
        sql: "select pitwheel.fail($1, $2, 'no', holder => $3)",
        types: "bigint, bigint, bigint",
        values: "(ids())[2], (fences())[2], 1",
    },
    statement!("operate/cancel.sql", "bigint[], text", "ids() || waiting(), 'ada'"),
    statement!("operate/delete.sql", "bigint[], text", "waiting(), 'ada'"),
    statement!("operate/retry.sql", "bigint[], text", "dead(), 'ada'"),
    statement!("operate/reschedule.sql", "bigint[], timestamptz, text", "waiting(), now(), 'ada'"),
    statement!("operate/job.sql", "bigint", "(ids())[1]"),
    statement!("operate/jobs_by_id.sql", "bigint[]", "ids()"),
    statement!("operate/workers.sql", "bigint, bool, bigint", "1000, true, 10"),
];
