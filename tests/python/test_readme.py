"""The lines of the README and the guides run, and so do the examples of the reference; figures are those that were measured."""

import doctest
import functools
import importlib.util
import json
import pathlib
import re
import runpy

import pytest

import statescan

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [path for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))] if "```python" in path.read_text()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_lines_run(page, monkeypatch):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    distributed = torch.distributed
    if distributed.is_available():
        # one process is a group, too
        alone = functools.partial(distributed.init_process_group, store=distributed.HashStore(), rank=0, world_size=1)
        monkeypatch.setattr(distributed, "init_process_group", alone)
    # a line of `install()` holds for its block only
    compat = pytest.importorskip("statescan.compat")
    installed = []
    install = compat.install
    monkeypatch.setattr(compat, "install", lambda **options: installed.append(install(**options)) or installed[-1])
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        needed = re.findall(r"^(?:from|import) (\w+)", block, re.MULTILINE)
        if any(importlib.util.find_spec(name) is None for name in needed):
            continue
        if "distributed" not in block or distributed.is_available():
            exec(block, {})
        for one in installed:
            one.undo()
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def public():
    """The names of the reference, each with what it is."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from statescan import compat, derived, distributed, nn

    return {name: getattr(module, name) for module in (statescan, derived, nn, compat, distributed) for name in module.__all__}


def test_examples_of_the_reference_run():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.manual_seed(0)
    from statescan import compat, derived, nn

    ran, runner = set(), doctest.DocTestRunner()
    for name, value in public().items():
        known = {**vars(compat), **vars(derived), **vars(statescan), **vars(nn), "statescan": statescan, "torch": torch}
        for test in doctest.DocTestFinder(recurse=False).find(value, name, module=False, globs=known):
            assert runner.run(test).failed == 0
            ran |= {name} if test.examples else set()
    layers = {"Mamba", "Mamba2", "Mamba3", "S5", "S5Block", "parameter_groups"}
    assert ran >= {
        *statescan._operations.BY_NAME,
        "ssd_update",
        "linear_scan_update",
        *derived.__all__,
        "check",
        "install",
        "report",
        *layers,
    }


def test_the_example_of_layers_in_jax_runs():
    pytest.importorskip("jax", reason="JAX is not installed")
    from statescan import jax as layers

    assert doctest.testmod(layers).failed == 0
    assert len(layers.__doc__.split(">>>")) > 5


def test_the_guide_has_every_function():
    rows = re.findall(r"^\| `(\w+)` \|.*\| (?:`(\w+)` )?\|$", (ROOT / "docs/python.md").read_text(), re.MULTILINE)
    assert {name for row in rows for name in row if name} == {*statescan._operations.BY_NAME, "ssd_update", "linear_scan_update"}


def short(value):
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def test_the_picture_is_drawn_from_the_figures():
    folder = ROOT / "benches" / "figures"
    rows = json.loads((folder / "speed.json").read_text())
    draw = runpy.run_path(str(folder / "speed.py"))["draw"]
    assert draw(rows) == (ROOT / "docs" / "speed.svg").read_text()
    figures = re.compile(r"([0-9.]+) / ([0-9.]+) = ")
    layers = (ROOT / "docs" / "performance.md").read_text().partition("### Layers")[2].partition("###")[0]
    assert figures.findall(layers) == [(short(row["theirs"]), short(row["ours"])) for row in rows]
    # the README has some of the rows as they are
    table = [line for line in (ROOT / "README.md").read_text().splitlines() if figures.search(line)]
    assert table and all(line in layers.splitlines() for line in table)
    with pytest.raises(SystemExit, match="one card"):
        draw([*rows, {**rows[0], "card": "another"}])
