"""RG-LRU and S7 of lrnnx on ours: against its own loops, which are read from its source, results and every gradient."""

import ast
import math
import typing

import pytest
import torch
import torch.nn.functional as F

import origins
from cases import Random
from statescan.compat import lrnnx, lrnnx_rules

einops = pytest.importorskip("einops", reason="einops is not installed")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"))]
BATCH, DIM, SEQLEN, DSTATE = 2, 6, 41, 3


def theirs(module, *names):
    """Functions of their source, the last one of them."""
    origin = origins.Origin()
    nodes = [origin.find(module, name) for name in names]
    if None in nodes:
        pytest.skip(f"there is no lrnnx in {origins.FOLDER}: .ci/peers.sh fetches it")
    known = {"torch": torch, "F": F, "rearrange": einops.rearrange}
    exec(compile(ast.Module(nodes, []), module, "exec"), known)
    return known[names[-1]]


def agree(ours, expected, tensors, device, **options):
    def run(function):
        leaves = {name: t.to(device, torch.float32).requires_grad_() for name, t in tensors.items()}
        results = function(**leaves, **options)
        results = results if isinstance(results, tuple) else (results,)
        loss = sum((t * torch.linspace(-1, 1, t.numel(), device=device).view_as(t)).sum() for t in results)
        return (*results, *torch.autograd.grad(loss, list(leaves.values())))

    for got, wanted in zip(run(ours), run(expected), strict=True):
        assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def rglru(r):
    delta = 8 * r.real(BATCH, DIM, SEQLEN).sigmoid()
    return {"u": r.real(BATCH, DIM, SEQLEN), "delta": delta, "A": 0.9 + 0.09 * r.real(DIM, DSTATE).sigmoid()}


def s7(r):
    B, C = r.real(BATCH, DSTATE, DIM, SEQLEN), r.real(BATCH, DIM, DSTATE, SEQLEN)
    state = (BATCH, DSTATE, SEQLEN)
    return {"u": r.real(BATCH, DIM, SEQLEN), "A": 2 + r.real(*state).sigmoid(), "B": B, "C": C, "bias": r.real(*state)}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["rglru", "s7"])
def test_scans(name, device):
    tensors = {"rglru": rglru, "s7": s7}[name](Random(40))
    expected = theirs(f"lrnnx.ops.{name}_scan", f"{name}_scan_ref")
    agree(getattr(lrnnx_rules, f"{name}_scan_fn"), expected, tensors, device, return_last_state=True)


@pytest.mark.parametrize("device", DEVICES)
def test_the_layer_of_rglru(device):
    r = Random(41)
    tensors = {
        "x": r.real(BATCH, DIM, SEQLEN),
        "conv1d_weight": r.real(DIM, 1, 4),
        "conv1d_bias": r.real(DIM),
        "a": 0.9 + 0.09 * r.real(DIM).sigmoid(),
        # small enough that no decay is so near to 1 that 1 - a^2, as their loop has it, loses digits
        "recurrent_gate_weight": 0.2 * r.real(DIM, DIM),
        "recurrent_gate_bias": r.real(DIM),
        "input_gate_weight": r.real(DIM, DIM),
        "input_gate_bias": r.real(DIM),
        "out_proj_weight": r.real(5, DIM),
        "out_proj_bias": r.real(5),
        "gate": r.real(BATCH, SEQLEN, DIM),
    }
    expected = theirs("lrnnx.ops.rglru_scan", "rglru_scan_ref", "rglru_inner_ref")
    agree(lrnnx_rules.rglru_inner_fn, expected, tensors, device)


@pytest.mark.parametrize("device", DEVICES)
def test_the_layer_of_s7(device):
    r = Random(42)
    tensors = {
        "hidden_states": r.real(BATCH, SEQLEN, DIM),
        "in_proj_weight": r.real(DIM, DIM),
        "x_proj_weight": 0.1 * r.real(2 * DSTATE + 2 * DIM * DSTATE + DIM, DIM),
        "gate_proj_weight": r.real(DIM, DIM),
        "base_params": 2 + r.real(DSTATE).sigmoid(),
    }
    agree(lrnnx_rules.s7_inner_fn, theirs("lrnnx.ops.s7_scan", "s7_scan_ref", "s7_inner_ref"), tensors, device, d_state=DSTATE)


@pytest.mark.parametrize("device", DEVICES)
def test_the_layer_lru(device):
    """Their layer computes by Fourier transforms: its method `forward` is the one that is replaced."""

    class Base(torch.nn.Module):
        def __init__(self, discretization):
            super().__init__()

    origin = origins.Origin()
    nodes = [origin.find("lrnnx.core.convolution", name) for name in ("fft_conv", "opt_ssm_forward")]
    nodes.append(origin.find("lrnnx.models.lti.lru", "LRU"))
    if None in nodes:
        pytest.skip(f"there is no lrnnx in {origins.FOLDER}: .ci/peers.sh fetches it")
    found = vars(typing) | {"torch": torch, "nn": torch.nn, "math": math, "Tensor": torch.Tensor, "LTI_LRNN": Base}
    exec(compile(ast.Module(nodes, []), "lru", "exec"), found)
    torch.manual_seed(0)
    # their powers of a decay, and the transforms, lose digits where it turns far in a step
    layer = found["LRU"](DIM, 8, r_max=0.9, max_phase=0.1).to(device)
    x = Random(45).real(BATCH, SEQLEN, DIM).to(device, torch.float32).requires_grad_()

    def run(forward):
        y = forward(layer, x)
        weights = torch.linspace(-1, 1, y.numel(), device=device).view_as(y)
        return (y, *torch.autograd.grad((y * weights).sum(), [x, *layer.parameters()]))

    for got, wanted in zip(run(lrnnx_rules.lru_forward), run(found["LRU"].forward), strict=True):
        assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_steps_are_the_scans():
    u, delta, A = (t.float() for t in rglru(Random(43)).values())
    y, last = lrnnx_rules.rglru_scan_fn(u, delta, A, return_last_state=True)
    state, ones = torch.zeros(BATCH, DIM, DSTATE), torch.ones(BATCH, DSTATE)
    update = lrnnx.selective_state_update
    steps = [update(state, u[..., t], delta[..., t], A, ones, ones, discretization="rglru") for t in range(SEQLEN)]
    torch.testing.assert_close(torch.stack(steps, -1), y)
    torch.testing.assert_close(state, last)

    u, A, B, C, bias = (t.float() for t in s7(Random(44)).values())
    y, last = lrnnx_rules.s7_scan_fn(u, A, B, C, bias, return_last_state=True)
    inputs, state, ones = torch.einsum("bnhl,bhl->bnl", B, u) + bias, torch.zeros(BATCH, DSTATE, 1), torch.ones(BATCH, 1)
    steps = [
        torch.einsum("bhn,bn->bh", C[..., t], update(state, inputs[..., t], A[..., t], 0 * ones, ones, ones, discretization="s7"))
        for t in range(SEQLEN)
    ]
    torch.testing.assert_close(torch.stack(steps, -1), y)
    torch.testing.assert_close(state[..., 0], last)
    with pytest.raises(NotImplementedError, match="has no `dt_softplus` with 's7'"):
        update(state, inputs[..., 0], A[..., 0], 0 * ones, ones, ones, dt_softplus=True, discretization="s7")
