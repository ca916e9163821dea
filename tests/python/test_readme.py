"""The lines of the README and the guides run, and their figures are those that were measured."""

import functools
import importlib.util
import json
import pathlib
import re
import runpy

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGES = ["README.md", "docs/README.md", "docs/python.md", "docs/distributed.md"]


@pytest.mark.parametrize("page", PAGES)
def test_lines_run(page, monkeypatch):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    distributed = torch.distributed
    if distributed.is_available():
        # one process is a group, too
        alone = functools.partial(distributed.init_process_group, store=distributed.HashStore(), rank=0, world_size=1)
        monkeypatch.setattr(distributed, "init_process_group", alone)
    text = (ROOT / page).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        if "import jax" in block and importlib.util.find_spec("jax") is None:
            continue
        if "distributed" not in block or distributed.is_available():
            exec(block, {})
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def short(value):
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def test_the_picture_is_drawn_from_the_figures():
    folder = ROOT / "benches" / "figures"
    rows = json.loads((folder / "speed.json").read_text())
    draw = runpy.run_path(str(folder / "speed.py"))["draw"]
    assert draw(rows) == (ROOT / "docs" / "speed.svg").read_text()
    figures = re.findall(r"([0-9.]+) / ([0-9.]+) =", (ROOT / "README.md").read_text())
    assert figures == [(short(row["theirs"]), short(row["ours"])) for row in rows]
    with pytest.raises(SystemExit, match="one card"):
        draw([*rows, {**rows[0], "card": "another"}])
