"""The package has no import cycles, no file above 400 lines and no function above 70."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src/pitwheel"
FILES = sorted(PACKAGE.glob("*.py"))
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70


def no_modules_import_each_other_in_a_cycle() -> None:
    modules = {file.stem for file in FILES}
    imports = {
        file.stem: {
            node.module
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module in modules
        }
        for file in FILES
    }
    assert "client" in imports["__init__"], "imports are found"

    TopologicalSorter(imports).prepare()  # Raises CycleError, which names the modules.


def files_and_functions_are_short() -> None:
    for file in FILES:
        text = file.read_text()
        assert len(text.splitlines()) <= FILE_LINES_MAX, file.name
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                assert lines <= FUNCTION_LINES_MAX, f"{file.name}: {node.name} has {lines} lines"
