"""What tests share: devices, and closeness by type."""

import collections
import hashlib
import os
import pathlib

import pytest

# PyTorch's own bfloat16 products crash on virtual machines that announce AMX and do not have it
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
# on a GPU, JAX leaves memory to PyTorch
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

try:
    import torch
except ImportError:
    torch = None

HERE = pathlib.Path(__file__).parent
# these need PyTorch to be imported at all
NEEDING_TORCH = "results torch uses board dispatch second_derivatives steps vectors cuda norms derived".split()
collect_ignore = [] if torch else [f"test_{name}.py" for name in NEEDING_TORCH]
collect_ignore_glob = [] if torch else ["test_compat_*.py", "test_nn*.py", "test_transformers*.py"]


# tests that are marked `sampled` run only as many cases as they say, the same ones in every run
SAMPLE = bool(os.environ.get("STATESCAN_TEST_SAMPLE"))


def pytest_configure(config):
    config.addinivalue_line("markers", "sampled(cases): how many are enough for a change; the nightly run has all")


def sample(cases, most):
    """Some cases of a test, the same ones in every run, that differ in all of its parameters as soon as they can."""
    rest = sorted(cases, key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())
    met, found = collections.Counter(), []

    def words(item):
        return item.callspec.id.split("-")

    while rest and len(found) < most:
        found.append(min(rest, key=lambda item: sum(met[word] for word in words(item))))
        met.update(words(found[-1]))
        rest.remove(found[-1])
    return found


def pytest_collection_modifyitems(config, items):
    if not SAMPLE:
        return
    grids = collections.defaultdict(list)
    for item in items:
        if mark := item.get_closest_marker("sampled"):
            grids[item.nodeid.partition("[")[0], mark.args[0]].append(item)
    left_out = {item for (_, most), cases in grids.items() for item in set(cases) - set(sample(cases, most))}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def pytest_report_header():
    if torch is None:
        return "PyTorch is not installed: its tests are left out"
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device: its tests are skipped"
    return f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads, {cuda}"


@pytest.fixture
def vectors():
    """The folder of results that other implementations computed."""
    folder = pathlib.Path(os.environ.get("STATESCAN_VECTORS", HERE.parents[2] / "shared" / "vectors"))
    if not folder.is_dir():
        pytest.skip(f"there is no folder {folder}; STATESCAN_VECTORS names it")
    return folder
