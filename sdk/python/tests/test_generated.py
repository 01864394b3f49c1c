"""The generated files are up to date."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SDK = Path(__file__).parent.parent


def the_generated_files_match_the_contract(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="needs pip install '.[test]'")
    subprocess.run([SDK / "generate.sh", tmp_path], check=True, env={**os.environ, "PYTHON": sys.executable})

    made = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert len(made) == 3
    for name, text in made.items():
        kept = (SDK / "src/pitwheel/_proto" / name).read_text()
        assert kept == text, f"{name} is out of date: run generate.sh"
