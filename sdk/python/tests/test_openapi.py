"""The description of the HTTP API is valid, and a client that is generated from it works.

Needs `pitwheel serve` at PITWHEEL_SERVER (host:port).
"""

import importlib
import json
import os
import subprocess
import sys
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate

SERVER = os.environ.get("PITWHEEL_SERVER", "")
pytestmark = pytest.mark.skipif(not SERVER, reason="needs PITWHEEL_SERVER")


@pytest.fixture
def document() -> Any:
    with urllib.request.urlopen(f"http://{SERVER}/api/openapi.json", timeout=30) as response:
        return json.load(response)


def the_description_is_valid_openapi(document: Any) -> None:
    validate(document)


def a_generated_client_enqueues_and_reads_a_job(
    document: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    description, config = tmp_path / "openapi.json", tmp_path / "config.yml"
    description.write_text(json.dumps(document))
    # No formatting of the generated code.
    config.write_text("post_hooks: []")
    generate = [sys.executable, *"-m openapi_python_client generate --fail-on-warning --meta none".split()]
    options = ["--path", description, "--config", config, "--output-path", tmp_path / "generated_client"]
    subprocess.run([*generate, *map(str, options)], check=True, timeout=120)
    monkeypatch.syspath_prepend(tmp_path)
    package = importlib.import_module("generated_client")
    models = importlib.import_module("generated_client.models")
    jobs = {
        name: importlib.import_module(f"generated_client.api.jobs.{name}")
        for name in ("enqueue_jobs", "list_jobs", "show_job")
    }

    queue = f"openapi-{uuid.uuid4().hex[:12]}"
    with package.Client(base_url=f"http://{SERVER}/api/v1") as client:
        job = models.JobToEnqueue(kind="greet", queue=queue, payload=["any", {"json": 1}])
        request = models.EnqueueRequest(jobs=[job])
        enqueued = jobs["enqueue_jobs"].sync(client=client, body=request).jobs[0]
        shown = jobs["show_job"].sync(enqueued.id, client=client)
        listed = jobs["list_jobs"].sync(client=client, queue=queue, state=models.JobState.WAITING)
        refused = jobs["show_job"].sync(0, client=client)

    assert (shown.state, shown.payload) == (models.JobState.WAITING, ["any", {"json": 1}])
    assert shown.run_at.tzinfo is not None
    assert [line.id for line in listed.jobs] == [enqueued.id]
    assert refused.title == "not_found"
