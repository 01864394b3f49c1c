"""python bench/noop.py [address] [jobs] [slots]: how many jobs a second one worker process runs that do nothing.

Enqueues them through the server at that address, then drains them; only the drain is timed.
"""

import asyncio
import sys
import time
from typing import Any

from pitwheel import Client, Context, NewJob, Worker

KIND = "bench.noop"


async def main(address: str = "127.0.0.1:7475", jobs: str = "20000", slots: str = "500") -> None:
    left = int(jobs)
    async with Client(address) as client:
        await client.enqueue_many(NewJob(kind=KIND, queue=KIND) for _ in range(left))

    worker = Worker(address, queues=[KIND], slots=int(slots))

    @worker.handler(KIND, history="failures_only")
    async def noop(payload: Any, context: Context) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            worker.stop()

    started_at = time.monotonic()
    await worker.run()
    print(f"{int(jobs) / (time.monotonic() - started_at):.0f} jobs/s")


asyncio.run(main(*sys.argv[1:]))
