"""On CPUs bits do not depend on how a text was cut: calls for its pieces against a call for all of it."""

import random

import pytest
import torch

import statescan

DIM, DSTATE, HEADS, WIDTH = 21, 16, 3, 8


def selective_scan(steps, dtype):
    x, dt, z = torch.randn(3, 2, DIM, steps).to(dtype)
    A, (B, C) = -torch.rand(DIM, DSTATE), torch.randn(2, 2, DSTATE, steps).to(dtype)
    options = {"dt_softplus": True}
    return 2, lambda at, state: statescan.selective_scan(
        x[..., at], dt[..., at], A, B[..., at], C[..., at], z=z[..., at], initial_state=state, **options
    )


def ssd_as_a_selective_scan(steps, dtype):
    """A head's columns are channels that have its step size and its decay; sums of `ssd` itself go by chunks of a call."""
    x, dt = torch.randn(2, steps, HEADS * WIDTH).to(dtype), torch.rand(2, steps, HEADS).to(dtype)
    A, (B, C) = -torch.rand(HEADS), torch.randn(2, 2, DSTATE, steps).to(dtype)
    dt, A = dt.repeat_interleave(WIDTH, 2).mT, A.repeat_interleave(WIDTH)[:, None].expand(-1, DSTATE)
    x = x.mT
    return 2, lambda at, state: statescan.selective_scan(x[..., at], dt[..., at], A, B[..., at], C[..., at], initial_state=state)


def gated_delta_rule(steps, dtype):
    q, k, v = torch.randn(3, 2, steps, HEADS, WIDTH).to(dtype)
    g, beta = -torch.rand(2, steps, HEADS), torch.rand(2, steps, HEADS)
    return 1, lambda at, state: statescan.gated_delta_rule(
        q[:, at], k[:, at], v[:, at], g[:, at], beta[:, at], qk_l2norm=True, initial_state=state
    )


def simplified_scan(steps, dtype):
    u, delta = torch.randn(2, DIM, steps), torch.rand(2, DSTATE, steps)
    A = torch.complex(-torch.rand(DSTATE), torch.randn(DSTATE))
    B, C = torch.randn(DSTATE, DIM, dtype=torch.complex64), torch.randn(DIM, DSTATE, dtype=torch.complex64)
    return 2, lambda at, state: statescan.simplified_scan(
        u[..., at], delta[..., at], A, B, C, initial_state=state, return_last_state=True
    )


def linear_scan(steps, dtype):
    a, b = torch.rand(2, DIM, steps).to(dtype), torch.randn(2, DIM, steps).to(dtype)
    return 2, lambda at, state: statescan.linear_scan(a[..., at], b[..., at], state)


def causal_conv1d(steps, dtype):
    x, weight = torch.randn(2, DIM, steps).to(dtype), torch.randn(DIM, 4).to(dtype)
    return 2, lambda at, state: statescan.causal_conv1d(
        x[..., at], weight, activation="silu", initial_states=state, return_final_states=True
    )


MAKERS = [selective_scan, ssd_as_a_selective_scan, gated_delta_rule, simplified_scan, linear_scan, causal_conv1d]
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@each_dtype
@pytest.mark.parametrize("make", MAKERS)
def test_bits_do_not_depend_on_cuts(make, dtype):
    draw = random.Random(3)
    for steps in (1, 50, 333):
        axis, run = make(steps, dtype)
        y, last = run(slice(0, steps), None)
        for count in (0, 1, 5, 49):
            cuts = sorted(draw.sample(range(1, steps), min(count, steps - 1)))
            state, parts = None, []
            for start, end in zip([0, *cuts], [*cuts, steps], strict=True):
                part, state = run(slice(start, end), state)
                parts.append(part)
            assert torch.equal(torch.cat(parts, axis), y) and torch.equal(state, last), (steps, cuts)


@each_dtype
def test_steps_have_the_bits_of_their_scans(dtype):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 70, HEADS, WIDTH).to(dtype)
    g, beta = -torch.rand(2, 70, HEADS), torch.rand(2, 70, HEADS)
    x, weight = torch.randn(2, DIM, 70).to(dtype), torch.randn(DIM, 4).to(dtype)
    ruled, last = statescan.gated_delta_rule(q, k, v, g, beta, qk_l2norm=True)
    convolved, inputs = statescan.causal_conv1d(x, weight, activation="silu", return_final_states=True)
    state, before = torch.zeros_like(last), torch.zeros_like(inputs)
    for t in range(70):
        one = statescan.gated_delta_rule_update(state, q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t], qk_l2norm=True)
        assert torch.equal(one, ruled[:, t])
        assert torch.equal(statescan.causal_conv1d_update(x[..., t], before, weight, activation="silu"), convolved[..., t])
    assert torch.equal(state, last) and torch.equal(before, inputs)


def test_ssd_is_that_selective_scan():
    torch.manual_seed(0)
    x, dt, A = torch.randn(2, 70, HEADS, WIDTH), torch.rand(2, 70, HEADS), -torch.rand(HEADS)
    B, C = torch.randn(2, 2, 70, DSTATE)
    y, state = statescan.ssd(x, dt, A, B, C)
    wide, decays = dt.repeat_interleave(WIDTH, 2).mT, A.repeat_interleave(WIDTH)[:, None].expand(-1, DSTATE)
    other, left = statescan.selective_scan(x.flatten(2).mT, wide, decays, B.mT, C.mT)
    torch.testing.assert_close(other.mT.unflatten(2, (HEADS, WIDTH)), y, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(left.unflatten(1, (HEADS, WIDTH)), state, atol=1e-4, rtol=1e-4)
