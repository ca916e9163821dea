"""The README's lines run."""

import pathlib
import re

import pytest


def test_readme():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    text = (pathlib.Path(__file__).parents[2] / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})
