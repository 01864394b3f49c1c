// A client that is generated from the description of the HTTP API works: see scripts/test-typescript.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";

import createClient from "openapi-fetch";

import type { components, paths } from "./api.js";

type Job = components["schemas"]["JobToEnqueue"];

const server = process.env["PITWHEEL_SERVER"];
assert(server, "needs PITWHEEL_SERVER (host:port)");
const client = createClient<paths>({ baseUrl: `http://${server}/api/v1` });

// Fails if the call was answered with an error.
function expectData<T>(answer: { data?: T; error?: unknown }): T {
  assert.equal(answer.error, undefined);
  assert(answer.data !== undefined);
  return answer.data;
}

test("jobs are enqueued, listed, shown and cancelled", async () => {
  const queue = `typescript-${randomUUID().slice(0, 12)}`;
  const job: Job = { kind: "greet", queue, payload: ["any", { json: 1 }], delay_ms: 3_600_000 };
  const enqueued = expectData(await client.POST("/jobs", { body: { jobs: [job, job] } }));
  const ids = enqueued.jobs.map((job) => job.id);
  assert.equal(ids.length, 2);

  const listed = expectData(await client.GET("/jobs", { params: { query: { queue, state: "waiting" } } }));
  assert.deepEqual(listed.jobs.map((job) => job.id).sort(), [...ids].sort());

  const [id] = ids;
  assert(id !== undefined);
  const cancelled = expectData(await client.POST("/jobs/cancel", { body: { ids: [id] } }));
  assert.deepEqual(cancelled.jobs, [{ id, outcome: "done" }]);

  const shown = expectData(await client.GET("/jobs/{id}", { params: { path: { id } } }));
  assert.equal(shown.state, "cancelled");
  assert.deepEqual(shown.payload, ["any", { json: 1 }]);
  assert(Date.parse(shown.run_at) > Date.now());
});

test("an error is answered as a typed problem", async () => {
  const { data, error, response } = await client.GET("/jobs/{id}", { params: { path: { id: 0 } } });
  assert.equal(data, undefined);
  assert.equal(response.status, 404);
  assert.equal(response.headers.get("content-type"), "application/problem+json");
  assert(error);
  assert.equal(error.title, "not_found");
  assert.equal(error.status, 404);
  assert.match(error.detail, /`0`|0/);
});

test("what the description forbids does not compile", async () => {
  // @ts-expect-error: no such state
  await client.GET("/jobs", { params: { query: { state: "asleep" } } });
  // @ts-expect-error: a job needs a kind
  const { response } = await client.POST("/jobs", { body: { jobs: [{ queue: "default" }] } });
  assert.equal(response.status, 400);
});
