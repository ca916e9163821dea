"""The package needs no framework, and loads none; its folders stand on one another."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import statescan


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_loads_no_framework():
    loaded = run("import sys, statescan; print([m for m in ('torch', 'numpy', 'jax', 'cupy') if m in sys.modules])")
    assert loaded.strip() == "[]"


def test_numpy_alone():
    code = """
import sys
sys.modules["torch"] = None
import numpy, statescan
h, last = statescan.linear_scan(numpy.full(4, 0.5), numpy.ones(4))
print(*h, last, statescan.get_num_threads() >= 1)
"""
    assert run(code).split() == ["1.0", "1.5", "1.75", "1.875", "1.875", "True"]


def test_types_are_shipped():
    folder = statescan.__path__[0]
    assert {"py.typed", "_native.pyi"} <= {path.name for path in Path(folder).iterdir()}


FLOORS = ("_inner", "nn", "compat")


def folders(path, package):
    """The folders of the package that a file of it imports from, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            parents = path.relative_to(package).parts[: -node.level]
            yield from ((*parents, *(node.module or name.name).split("."))[0] for name in node.names)


def test_no_folder_imports_from_above():
    """Functions, what lies between projections, layers, drop-ins: each floor knows those below."""
    package = Path(statescan.__path__[0])
    for at, floor in enumerate(FLOORS):
        found = {folder for path in (package / floor).rglob("*.py") for folder in folders(path, package)}
        assert not found & set(FLOORS[at + 1 :]), (floor, found)
        # and the reader reads them
        assert set(FLOORS[:at]) <= found, (floor, found)
    below = {folder for name in ("functions.py", "torch.py") for folder in folders(package / name, package)}
    assert below and not below & set(FLOORS)


def test_what_there_is():
    assert all(callable(getattr(statescan, name)) or name == "__version__" for name in statescan.__all__)
    assert all(getattr(statescan, name).__doc__ for name in statescan.__all__ if name != "__version__")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("imports", ["import statescan, torch", "import torch, statescan"])
def test_the_compiler_may_make_the_first_call(imports):
    code = f"""
{imports}
call = torch.compile(statescan.linear_scan, fullgraph=True, backend="aot_eager")
print(*call(torch.full((4,), 0.5), torch.ones(4))[0].tolist())
"""
    assert run(code).split() == ["1.0", "1.5", "1.75", "1.875"]
