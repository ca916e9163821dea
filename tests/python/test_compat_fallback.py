"""SSD's drop-ins on a device that has no kernel: plain operations of PyTorch, chosen before anything is called."""

import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import statescan
from cases import Random
from statescan import functions
from statescan.compat import fallback, mamba_ssm
from statescan.compat.shared import has_kernel
from statescan.operations import OPERATIONS, SSD
from test_results import assert_close


def tensors(dtype=torch.float64, seqlen=300):
    """Of a model's size in miniature, with steps that forget everything at once."""
    r = Random(20)
    found = {
        "x": r.real(2, 4, seqlen, 3),
        "dt": r.step(2, 4, seqlen) * torch.tensor([1.0, 1.0, 200.0, 0.01], dtype=torch.float64)[:, None],
        "A": 10 * r.decay(4),
        "B": r.real(2, seqlen, 2, 5),
        "C": r.real(2, seqlen, 2, 5),
        "D": r.real(4, 3),
        "initial_state": r.real(2, 4, 5, 3),
        "z": r.real(2, 4, seqlen, 3),
        "dt_bias": r.step(4),
    }
    return {name: tensor.to(dtype) for name, tensor in found.items()}


def results_and_gradients(function, tensors, **options):
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    y, state = function(**leaves, **options)
    loss = (y.double() * Random(21).real(*y.shape)).sum() + (state.double() * Random(22).real(*state.shape)).sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return {"y": y, "state": state, **dict(zip(leaves, gradients))}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(fallback, "warn", lambda device: None)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-4), (torch.bfloat16, 4e-2)], ids=str)
@pytest.mark.parametrize("chunk_size", [1, 64, 512])
@pytest.mark.parametrize("dt_softplus", [False, True])
@pytest.mark.parametrize("sequences", ["whole", "seq_idx"])
def test_agrees_with_the_kernel(dtype, tolerance, chunk_size, dt_softplus, sequences):
    options = {"chunk_size": chunk_size, "dt_softplus": dt_softplus, "dt_limit": (0.01, 20.0)}
    if sequences == "seq_idx":
        lengths = torch.tensor([100, 1, 63, 136]), torch.tensor([300, 0, 0, 0])
        options["seq_idx"] = torch.stack([torch.arange(4).repeat_interleave(length) for length in lengths])
    got = results_and_gradients(fallback.ssd, tensors(dtype), **options)
    expected = results_and_gradients(statescan.ssd, tensors(dtype), **options)
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype
        assert_close(got[name], tensor, tolerance, name)


def test_packed_sequences():
    packed = {name: tensor[:1] if name in ("x", "dt", "B", "C", "z") else tensor for name, tensor in tensors().items()}
    packed["initial_state"] = Random(23).real(4, 4, 5, 3)
    options = {"chunk_size": 16, "cu_seqlens": torch.tensor([0, 0, 90, 91, 300])}
    got = results_and_gradients(fallback.ssd, packed, **options)
    for name, tensor in results_and_gradients(statescan.ssd, packed, **options).items():
        assert_close(got[name], tensor, 1e-9, name)


def test_nothing_to_do():
    empty = tensors(seqlen=0)
    y, state = fallback.ssd(**empty, chunk_size=16)
    assert y.shape == (2, 4, 0, 3) and torch.equal(state, empty["initial_state"])


def test_layout_of_results_follows_the_input():
    """Models call view() on y with time before heads."""
    y, _ = fallback.ssd(**tensors(), chunk_size=64)
    assert y.transpose(1, 2).is_contiguous()


def test_second_derivatives():
    small = {name: tensor.detach().requires_grad_() for name, tensor in tensors(seqlen=5).items()}
    names = list(small)

    def call(*values):
        return fallback.ssd(**dict(zip(names, values, strict=True)), chunk_size=2)

    assert torch.autograd.gradgradcheck(call, list(small.values()), fast_mode=True, atol=1e-4)


def test_kernels_by_device():
    """The table says what the library has; the tests on a GPU call all of it."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        on = {device: torch.empty(1, device=device) for device in ("cpu", "cuda", "meta")}
        wide = {device: torch.empty(1, device=device, dtype=torch.float64) for device in ("cpu", "cuda")}
    assert all(has_kernel(op, on[device]) for op in OPERATIONS for device in on)
    assert has_kernel(SSD, wide["cpu"]) and not has_kernel(SSD, wide["cuda"])


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_a_gpu_is_never_asked_for_what_it_lacks(training, monkeypatch):
    """Tensors that have a device and no data: the choice is made without a GPU. Kernels there compute in f32."""
    called = []
    wide = {"device": "cuda", "dtype": torch.float64}
    monkeypatch.setattr(functions, "ssd", lambda *arguments, **options: called.append("ssd"))
    with FakeTensorMode():
        heads = torch.empty(2, 37, 4, 3, **wide, requires_grad=training)
        steps, A, maps = (torch.empty(*shape, **wide) for shape in ((2, 37, 4), (4,), (2, 37, 2, 5)))
        y, states = mamba_ssm.mamba_chunk_scan_combined(heads, steps, A, maps, maps, 16, return_final_states=True)
        assert y.shape == heads.shape and states.shape == (2, 4, 3, 5) and y.is_cuda and y.requires_grad == training
        projected = torch.empty(2, 37, 2 * 12 + 20 + 4, **wide, requires_grad=training)
        weight, vector = torch.empty(32, 4, **wide), torch.empty(32, **wide)
        arguments = (projected, weight, vector, A, A, A, 16)
        y = mamba_ssm.mamba_split_conv1d_scan_combined(*arguments, headdim=3, ngroups=2)
        assert y.shape == (2, 37, 12) and y.is_cuda
    assert called == []


def test_it_is_said_once(monkeypatch):
    monkeypatch.undo()
    fallback.warn.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            fallback.ssd(**tensors(seqlen=3), chunk_size=2)
    assert [str(warning.message) for warning in caught] == [
        "statescan: ssd has no kernel for this call on cpu; operations of PyTorch compute it, slower"
    ]
