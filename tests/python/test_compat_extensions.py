"""The compiled modules of other packages, and SSD in parts, are what the functions above them say."""

import pytest
import torch

import statescan
from statescan.compat import causal_conv1d_cuda, selective_scan_cuda, selective_scan_cuda_core, ssd_parts

BATCH, DIM, SEQLEN, STATES = 2, 6, 9, 4


def tensors():
    torch.manual_seed(0)
    x, z, dt = torch.randn(3, BATCH, DIM, SEQLEN)
    B, C = torch.randn(2, BATCH, 2, STATES, SEQLEN)
    return x, dt, -torch.rand(DIM, STATES), B, C, torch.randn(DIM), z, torch.randn(DIM)


def gated(x, dt, A, B, C, D, z, bias):
    return statescan.selective_scan(x, dt, A, B, C, D, z=z, dt_bias=bias, dt_softplus=True)


@pytest.mark.parametrize("has_gate", [False, True])
def test_the_scan(has_gate):
    *first, z, bias = tensors()
    z = z if has_gate else None
    expected, state = gated(*first, z, bias)
    out, x, *rest = selective_scan_cuda.fwd(*first, z, bias, True)
    torch.testing.assert_close(rest[0] if has_gate else out, expected)
    torch.testing.assert_close(x[:, :, -1, 1::2], state)
    given = [None if t is None else t.clone().requires_grad_() for t in (*first, z, bias)]
    by_y = torch.randn_like(expected)
    gated(*given)[0].backward(by_y)
    *first, z, bias = (None if t is None else t.detach() for t in given)
    by_z = torch.empty_like(by_y)
    found = selective_scan_cuda.bwd(*first, z, bias, by_y, x, out, by_z if has_gate else None, True, True)
    *wanted, gate, by_bias = [None if t is None else t.grad for t in given]
    wanted = [*wanted, by_bias, *([gate, expected] if has_gate else [])]
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, other)
    if has_gate:
        torch.testing.assert_close(by_z, gate)


@pytest.mark.parametrize("in_float", [False, True])
def test_the_scan_of_image_models(in_float):
    *first, _, bias = tensors()
    first[0] = first[0].bfloat16()
    expected, _ = gated(*first, None, bias)
    y, x = selective_scan_cuda_core.fwd(*first, bias, True, 1, in_float)
    assert y.dtype == (torch.float32 if in_float else torch.bfloat16)
    torch.testing.assert_close(y.to(expected.dtype), expected)
    found = selective_scan_cuda_core.bwd(*first, bias, y, x, True, 1)
    assert [t.shape for t in found] == [t.shape for t in (*first, bias)]


def test_the_convolution():
    torch.manual_seed(0)
    x, weight, bias, before = torch.randn(2, 5, 7), torch.randn(5, 4), torch.randn(5), torch.randn(2, 5, 3)
    given = [t.clone().requires_grad_() for t in (x, weight, bias, before)]
    options = {"activation": "silu", "return_final_states": True}
    expected, states = statescan.causal_conv1d(*given[:3], initial_states=given[3], **options)
    y, last = torch.empty_like(x), torch.empty_like(before)
    causal_conv1d_cuda.causal_conv1d_fwd(x, weight, bias, None, before, y, last, True)
    torch.testing.assert_close(y, expected.detach())
    torch.testing.assert_close(last, states.detach())
    (expected.sum() + states.square().sum()).backward()
    places = [torch.empty_like(t) for t in given]
    cotangents = (torch.ones_like(y), None, before, 2 * last)
    causal_conv1d_cuda.causal_conv1d_bwd(x, weight, bias, *cotangents, *places, True)
    for place, one in zip(places, given):
        torch.testing.assert_close(place, one.grad)
    state, y = before.clone(), torch.empty_like(x[..., 0])
    causal_conv1d_cuda.causal_conv1d_update(x[..., 0], state, weight, bias, y, True, None, None)
    torch.testing.assert_close(y, expected[..., 0].detach())


def test_ssd_in_parts():
    torch.manual_seed(0)
    x, dt, A = torch.randn(2, 8, 4, 3), torch.rand(2, 8, 4), -torch.rand(4)
    B, C = torch.randn(2, 2, 8, 4, 5)
    state = torch.randn(2, 1, 4, 3, 5)
    y, last = ssd_parts.ssd_minimal_discrete(x * dt[..., None], A * dt, B, C, 4, state)
    expected, final = statescan.ssd(x, dt, A, B, C, initial_state=state[:, 0])
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(last, final)
    # from a state of zeros, a single chunk's is the last state
    chunked = dt.transpose(1, 2)[:, :, None]
    arguments = (B, x, chunked, (chunked * A[:, None, None]).cumsum(-1))
    _, final = statescan.ssd(x, dt, A, B, C)
    for states in (ssd_parts.chunk_state(*arguments), ssd_parts.chunk_state_ref(*arguments)):
        torch.testing.assert_close(states[:, 0], final)
    sums = ssd_parts.segsum(torch.tensor([1.0, 2.0, 4.0]))
    assert sums.tolist() == [[0, -torch.inf, -torch.inf], [2, 0, -torch.inf], [6, 4, 0]]
