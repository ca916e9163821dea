"""The examples run, and do what they say."""

import functools
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import statescan.compat  # noqa: E402

for name in ("matplotlib", "tqdm"):
    pytest.importorskip(name, reason=f"{name} is not installed")

ROOT = pathlib.Path(__file__).parents[2]


def example(name, folder=ROOT / "examples"):
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def train_bytes():
    return example("train_bytes")


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_train_bytes(framework, tmp_path, capsys):
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    train_bytes, plot = example({"torch": "train_bytes", "jax": "train_bytes_jax"}[framework]), tmp_path / "loss.png"
    train_bytes.main(["--steps", "12", "--batch", "2", "--seqlen", "64", "--length", "20", "--plot", str(plot)])
    printed = capsys.readouterr().out
    first, last = map(float, re.search(r"loss: (\S+) bits for a byte at first, (\S+) at last", printed).groups())
    assert last < first - 1
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "sample: Alice was beginning" in printed


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_downloaded_file_is_enough(framework, tmp_path, capsys):
    """Without the repository it learns its own text."""
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    name = {"torch": "train_bytes", "jax": "train_bytes_jax"}[framework]
    shutil.copy(ROOT / f"examples/{name}.py", tmp_path)
    plot = str(tmp_path / "loss.png")
    example(name, tmp_path).main(["--steps", "1", "--batch", "1", "--seqlen", "8", "--length", "1", "--plot", plot])
    size = (tmp_path / f"{name}.py").stat().st_size
    assert f"{size} bytes of text" in capsys.readouterr().out


# examples whose numbers are looked at above, or that take part in a group of processes
OTHERS = ("train_bytes", "train_bytes_jax", "two_processes")
GALLERY = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if not path.stem.startswith("train_bytes"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in GALLERY if name not in OTHERS])
def test_gallery(name, tmp_path, capsys):
    text, plot = (ROOT / f"examples/{name}.py").read_text(), tmp_path / "picture.svg"
    for needed in re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE):
        pytest.importorskip(needed, reason=f"{needed} is not installed")
    module = example(name)
    try:
        module.main(["--steps", "2", "--plot", str(plot)])
    finally:
        # one of them installs stand-ins
        for made in list(statescan.compat._standins._WANTED):
            made.undo()
    assert "<svg" in plot.read_text()
    assert capsys.readouterr().out


@pytest.fixture
def alone(monkeypatch):
    """Makes a group of this process of whatever is initialised."""
    distributed = torch.distributed
    if not distributed.is_available():
        pytest.skip("PyTorch has no torch.distributed")
    made = functools.partial(distributed.init_process_group, store=distributed.HashStore(), rank=0, world_size=1)
    monkeypatch.setattr(distributed, "init_process_group", made)


SEVERAL = ["--steps", "2", "--seqlen", "101", "--plot"]
LOSSES = r"loss on . ranks: (\S+) at first, (\S+) at last"


def test_one_process_of_two(alone, tmp_path, capsys):
    example("two_processes").main([*SEVERAL, str(tmp_path / "loss.svg")])
    first, last = map(float, re.search(LOSSES, capsys.readouterr().out).groups())
    assert last < first


# its launcher imports PyTorch in three processes
@pytest.mark.sampled(0)
def test_two_processes(alone, tmp_path, capsys):
    """Two processes have the losses of one."""
    arguments = [*SEVERAL, str(tmp_path / "loss.svg")]
    example("two_processes").main(arguments)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    printed = subprocess.run(
        [*command, ROOT / "examples/two_processes.py", *arguments], capture_output=True, text=True, timeout=300
    )
    assert printed.returncode == 0, printed.stderr
    one, two = (re.search(LOSSES, text).groups() for text in (capsys.readouterr().out, printed.stdout))
    assert [float(loss) for loss in two] == pytest.approx([float(loss) for loss in one], abs=2e-6)


def test_the_page_shows_every_example():
    page = (ROOT / "docs/examples.md").read_text()
    for name in GALLERY:
        lines = (ROOT / f"examples/{name}.py").read_text().count("\n")
        assert f"examples/{name}.py)" in page and f"(examples/{name}.svg)" in page and lines < 100, name
        assert (ROOT / f"docs/examples/{name}.svg").is_file()


# its layers over ranks are those of test_distributed_layers.py
@pytest.mark.sampled(0)
def test_ranks_train_as_one_process(train_bytes, tmp_path, capsys):
    """Two processes with half of every sequence have the losses of one with all of it."""
    arguments = ["--steps", "4", "--batch", "2", "--seqlen", "65", "--length", "1", "--plot", str(tmp_path / "loss.png")]
    train_bytes.main(arguments)
    command = [sys.executable, ROOT / "examples/train_bytes.py", "--ranks", "2", *arguments]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert printed.returncode == 0, printed.stderr
    words = r"loss: (\S+) bits for a byte at first, (\S+) at last"
    one, two = (re.search(words, text).groups() for text in (capsys.readouterr().out, printed.stdout))
    assert [float(loss) for loss in two] == pytest.approx([float(loss) for loss in one], abs=1e-5)


def test_steps_are_the_scan_in_jax():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    train_bytes = example("train_bytes_jax")
    weights = train_bytes.model(jax.random.key(0), layers=1)
    tokens = jax.random.randint(jax.random.key(1), (2, 20), 0, 256)
    logits, states = train_bytes.forward(weights, tokens)[0], train_bytes.forward(weights, tokens[:, :18])[1]
    for at in (18, 19):
        found, states = train_bytes.step(weights, states, tokens[:, at])
        assert jax.numpy.allclose(found, logits[:, at], rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_steps_are_the_scan(train_bytes):
    """What the example writes byte by byte comes from the model that it trained."""
    torch.manual_seed(0)
    model, tokens = train_bytes.Model(width=16), torch.randint(256, (2, 20))
    cache = SimpleNamespace(key_value_memory_dict={}, seqlen_offset=0)
    model(tokens[:, :12], cache)
    steps = [model(tokens[:, t : t + 1], cache) for t in range(12, 20)]
    torch.testing.assert_close(torch.cat(steps, 1), model(tokens)[:, 12:])
