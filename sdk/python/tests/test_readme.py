"""The example of the README runs as it is."""

import asyncio
import re
import signal
import sys
from pathlib import Path

from fake_server import TIMEOUT, assignment, fake_server

README = Path(__file__).parent.parent / "README.md"


async def the_example_runs_and_ends_at_sigterm(tmp_path: Path) -> None:
    example = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    program = tmp_path / "worker.py"
    async with fake_server() as server:
        program.write_text(example.replace("127.0.0.1:7475", server.address))
        process = await asyncio.create_subprocess_exec(
            sys.executable, program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            (await server.stream()).assign(assignment(1, '{"name":"Ada"}'))
            assert (await server.result(1)).complete.result == '{"greeted":"Ada"}'
            process.send_signal(signal.SIGTERM)
            output, errors = await asyncio.wait_for(process.communicate(), TIMEOUT)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    assert (process.returncode, errors) == (0, b"")
    assert output == b"job 1\nhello, Ada\n"
