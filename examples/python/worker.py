"""A worker in Python: an async function per kind, over gRPC, without a database connection.

With `pitwheel dev` in another terminal:

```text
scripts/venv target && target/python/bin/python examples/python/worker.py
```

It prints:

```text
May: attempt 1, no numbers yet
May: attempt 2, total 42
^C
done: {'total': 42}
```
"""

import asyncio
import os

from pitwheel import Client, Context, Retry, Worker

SERVER = os.environ.get("PITWHEEL_SERVER", "127.0.0.1:7475")

worker = Worker(SERVER, queues=["reports"], slots=20)


@worker.handler("monthly_report")
async def monthly_report(payload: dict, context: Context) -> dict:
    month, sales = payload["month"], payload["sales"]
    if context.attempt == 1:
        print(f"{month}: attempt 1, no numbers yet")
        # Runs again after half a second. Any other exception fails the attempt, too; then a backoff decides when.
        raise Retry(0.5, "no numbers yet")
    # Blocking code belongs in a thread: heartbeats need the event loop.
    total = await asyncio.to_thread(sum, sales)
    print(f"{month}: attempt {context.attempt}, total {total}")
    return {"total": total}  # stored as the result of the job


async def main() -> None:
    async with Client(SERVER) as client:
        report = await client.enqueue("monthly_report", {"month": "May", "sales": [12, 30]}, queue="reports")
        await worker.run()  # until Ctrl-C or SIGTERM; running jobs may finish
        job = await client.get(report.id)
        print(f"{job.state}: {job.result}" if job else "the job was deleted")


asyncio.run(main())
