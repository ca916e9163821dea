"""The README's lines run."""

import functools
import pathlib
import re

import pytest


def test_readme(monkeypatch):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    distributed = torch.distributed
    if distributed.is_available():
        # one process is a group, too
        alone = functools.partial(distributed.init_process_group, store=distributed.HashStore(), rank=0, world_size=1)
        monkeypatch.setattr(distributed, "init_process_group", alone)
    text = (pathlib.Path(__file__).parents[2] / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        if "distributed" not in block or distributed.is_available():
            exec(block, {})
    if distributed.is_available():
        distributed.destroy_process_group()
