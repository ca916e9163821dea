"""Calls that go past PyTorch's dispatcher, and those that must not: whoever takes part in calls sees them, kinds of tensors that
only the dispatcher knows are left to it, and nothing runs twice."""

import contextlib
import subprocess
import sys

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import statescan
import statescan.torch  # registers torch.ops.statescan
from cases import CASES, Random
from test_results import gradients


def names(seen):
    return [str(function) for function in seen if "statescan" in str(function)]


class Observed:
    """Ways to take part in calls: each yields a list, or gives one, of what was called meanwhile."""

    @contextlib.contextmanager
    def dispatch_mode(self):
        seen = []

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, arguments=(), options=None):
                seen.append(function)
                return function(*arguments, **(options or {}))

        with Mode():
            yield seen

    @contextlib.contextmanager
    def function_mode(self):
        seen = []

        class Mode(TorchFunctionMode):
            def __torch_function__(self, function, types, arguments=(), options=None):
                seen.append(function)
                return function(*arguments, **(options or {}))

        with Mode():
            yield seen

    @contextlib.contextmanager
    def profiler(self):
        seen = []
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            yield seen
        seen += [event.name for event in profile.events()]


@pytest.mark.parametrize("way", ["dispatch_mode", "function_mode", "profiler"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_calls_are_seen(way, training):
    """Small calls may pass PyTorch's dispatcher by only where nobody listens to it."""
    r = Random()
    a, b, state = r.step(3, 20).requires_grad_(training), r.real(3, 20), r.real(2, 6, 3)
    with getattr(Observed(), way)() as seen:
        h, _ = statescan.linear_scan(a, b)
        statescan.causal_conv1d_update(r.real(2, 6), state, r.real(6, 4))
        if training:
            h.sum().backward()
    # a backward pass is none of a function mode's business
    expected = ["linear_scan_forward", "causal_conv1d_update"] + ["linear_scan_backward"] * (training and way != "function_mode")
    assert [name.split(".")[1] if "." in name else name.split("::")[1] for name in names(seen)] == expected


def test_a_subclass_sees_calls():
    seen = []

    class Kind(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, arguments=(), options=None):
            seen.append(function)
            return super().__torch_function__(function, types, arguments, options or {})

    a = Random().step(3, 20)
    h, _ = statescan.linear_scan(a, a.as_subclass(Kind))
    assert names(seen) and torch.equal(h, statescan.linear_scan(a, a)[0])


@pytest.mark.parametrize("name", CASES)
def test_both_ways_give_the_same_bits(name):
    """With and without the dispatcher."""
    case = CASES[name].to(torch.float32)
    expected = [*case(), *gradients(case, case).values()]
    with Observed().dispatch_mode():
        got = [*case(), *gradients(case, case).values()]
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_an_error_after_the_work_is_not_tried_again():
    """A native function that fails late has been called once, directly or by the dispatcher, and its words come through."""
    code = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from statescan import _native

calls = []

def failing_late(name):
    real = getattr(_native, name)

    def function(*arguments):
        calls.append(name)
        real(*arguments)
        raise RuntimeError(f"{name} failed after its work")

    return function

for name in ("forward", "backward", "update"):
    setattr(_native, name, failing_late(name))

import statescan.torch

class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        return function(*arguments, **(options or {}))

def fails(function, *arguments):
    calls.clear()
    try:
        function(*arguments)
    except RuntimeError as error:
        assert str(error) == f"{calls[0]} failed after its work", error
        print(*calls)

a, A, B = torch.rand(2, 4, 8), -torch.rand(4, 3), torch.rand(2, 3, 8)
state, expected = torch.zeros(2, 4, 3), torch.zeros(2, 4, 3)
for training in (False, True):
    fails(statescan.linear_scan, a.requires_grad_(training), a)
    fails(statescan.selective_scan, a, a, A, B, B)
with Mode():
    fails(statescan.linear_scan, a, a)
a.requires_grad_(False)
fails(statescan.torch._BACKWARD["linear_scan"], (True, True, False), (a, a, None, False, False, a, a, None))
step = a[..., 0], a[..., 0], A, B[..., 0], B[..., 0]
fails(statescan.selective_state_update, state, *step)
once = a[..., 0, None] * a[..., 0, None] * B[:, None, :, 0]
print(torch.allclose(state, once))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.split("\n") == [
        *["forward"] * 5,
        "backward",
        "update",
        "True",
        "",
    ], done.stderr


# tensors that the native functions leave to the dispatcher
UNKNOWN = {
    "conjugated": lambda a: torch.complex(a, a).conj(),
    "negated": lambda a: torch.complex(a, -a).conj().imag,
    "a zero without memory": lambda a: torch._efficientzerotensor(a.shape, dtype=a.dtype),
    "without data": lambda a: a.to("meta"),
}
# tensors that nobody reads, and what is said of them
REFUSED = {
    "sparse": (lambda a: a.to_sparse(), r"a dense tensor, got one of torch.sparse_coo; call to_dense\(\) first"),
    "sparse rows": (lambda a: a.to_sparse_csr(), r"a dense tensor, got one of torch.sparse_csr; call to_dense\(\) first"),
    "nested": (lambda a: torch.nested.nested_tensor([a]), "a dense tensor, got a nested one; pack its rows into one"),
    "jagged": (lambda a: torch.nested.nested_tensor([a, a], layout=torch.jagged), "a dense tensor, got a nested one"),
    "mkldnn": (lambda a: a.float().to_mkldnn(), r"a dense tensor, got one of torch._mkldnn; call to_dense\(\) first"),
    "quantized": (lambda a: torch.quantize_per_tensor(a.float(), 0.1, 0, torch.qint8), r" of qint8; call dequantize\(\) first"),
}


@pytest.mark.parametrize("kind", UNKNOWN)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_the_dispatcher_reads_other_tensors(kind, training):
    a = UNKNOWN[kind](Random().step(3, 20))
    b = torch.ones(3, 20, dtype=a.dtype, device=a.device, requires_grad=training)
    h, _ = statescan.linear_scan(a, b)
    assert h.shape == a.shape and h.device == a.device and h.requires_grad == training
    if not a.is_meta:
        plain = torch.zeros_like(b) + a
        assert torch.equal(h, statescan.linear_scan(plain, b)[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_other_kinds_are_refused_by_name(kind, training):
    make, words = REFUSED[kind]
    plain = Random().step(3, 20).float().requires_grad_(training)
    with torch.no_grad():
        other = make(plain)
    for name in ("a", "b", "initial_state"):
        arguments = {"a": plain, "b": plain, "initial_state": plain[:, 0], name: other}
        with pytest.raises(TypeError, match=f"^linear_scan: `{name}` must be .*{words}"):
            statescan.linear_scan(**arguments)
    with pytest.raises(TypeError, match=f"^causal_conv1d_update: `weight` must be .*{words}"):
        statescan.causal_conv1d_update(plain.detach(), torch.zeros(3, 20, 4), other)


def test_the_dispatcher_converts_options():
    a = Random().step(3, 20)
    assert torch.equal(statescan.linear_scan(a, a, reverse=1)[0], statescan.linear_scan(a, a, reverse=True)[0])


def test_a_state_that_cannot_be_written():
    """It is refused by name, before anything runs."""
    r = Random(7)
    state, u, A = r.complex(2, 5).conj(), r.complex(2, 3), r.oscillation(5)
    before = state.clone()
    with pytest.raises(ValueError, match=r"simplified_state_update: `state` is conjugated lazily; call resolve_conj\(\) first"):
        statescan.simplified_state_update(state, u, r.step(2, 5), A, r.complex(5, 3), r.complex(3, 5))
    assert torch.equal(state, before)
