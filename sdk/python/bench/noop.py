"""Measures how many empty jobs per second one worker process runs.

Enqueues the jobs through the server, then runs them. The time is from the start of the first job to the end of the last
one. The shutdown is not included: it waits for a heartbeat, which the server delays to batch it with others.
"""

import argparse
import asyncio
import time
from typing import Any

from pitwheel import Client, Context, NewJob, Worker

# 100 bytes. The case `python` in bench/src enqueues the same jobs.
KIND = "quiet_mail"
PAYLOAD = {
    "user_id": 12345678,
    "email": "customer@example.com",
    "template": "welcome",
    "locale": "en_GB",
    "tries": 10,
}


async def main(address: str, jobs: int, slots: int, drain: bool) -> None:
    if not drain:
        async with Client(address) as client:
            await client.enqueue_many(NewJob(kind=KIND, payload=PAYLOAD) for _ in range(jobs))

    worker = Worker(address, slots=slots)
    done = 0
    started_at = ended_at = 0.0

    @worker.handler(KIND, history="failures_only")
    async def noop(payload: Any, context: Context) -> None:
        nonlocal done, started_at, ended_at
        if done == 0:
            started_at = time.monotonic()
        done += 1
        if done == jobs:
            ended_at = time.monotonic()
            worker.stop()

    await worker.run()
    print(f"{jobs / (ended_at - started_at):.0f} jobs/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", nargs="?", default="127.0.0.1:7475")
    parser.add_argument("jobs", nargs="?", type=int, default=20_000)
    parser.add_argument("--slots", type=int, default=500)
    parser.add_argument(
        "--drain", action="store_true", help="do not enqueue: another program enqueues the jobs"
    )
    asyncio.run(main(**vars(parser.parse_args())))
