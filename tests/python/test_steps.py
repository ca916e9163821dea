"""Steps one after another give the scan's result, and change their state in place."""

import pytest
import torch

import statescan
import statescan.torch
from cases import Random

STEPS = 9


def selective(dtype, rule):
    r = Random(1)
    x, dt, A = r.real(2, 6, STEPS), r.step(2, 6, STEPS), r.decay(6, 5)
    B, C, z = r.real(2, 2, 5, STEPS), r.real(2, 2, 5, STEPS), r.real(2, 6, STEPS)
    D, bias = r.real(6), r.real(6)
    x, dt, B, C, z = (t.to(dtype) for t in (x, dt, B, C, z))
    options = {"dt_bias": bias, "dt_softplus": True, "dt_limit": (0.01, 2.0), "discretization": rule}
    y, last = statescan.selective_scan(x, dt, A, B, C, D, z=z, **options)
    state = torch.zeros_like(last)
    steps = [
        statescan.selective_state_update(state, x[..., t], dt[..., t], A, B[..., t], C[..., t], D, z=z[..., t], **options)
        for t in range(STEPS)
    ]
    return y, last, torch.stack(steps, -1), state


def heads(dtype, rule):
    r = Random(2)
    x, dt, A, D = r.real(2, STEPS, 4, 3).to(dtype), r.step(2, STEPS, 4), r.decay(4), r.real(4)
    B, C = r.real(2, STEPS, 2, 5), r.real(2, STEPS, 2, 5)
    y, last = statescan.ssd(x, dt, A, B, C, D=D)
    state = torch.zeros(2, 4, 3, 5, dtype=last.dtype)
    steps = [
        statescan.selective_state_update(
            state,
            x[:, t],
            dt[:, t, :, None].expand(-1, -1, 3),
            A[:, None, None].expand(-1, 3, 5),
            B[:, t],
            C[:, t],
            D[:, None].expand(-1, 3),
        )
        for t in range(STEPS)
    ]
    return y, last, torch.stack(steps, 1), state


def simplified(dtype, rule, real=False):
    r = Random(3)
    u, delta, A = r.real(2, 3, STEPS), r.step(2, 5, STEPS), r.oscillation(5)
    B, C, D = r.complex(5, 3), r.complex(3, 5), r.real(3)
    if real:
        y, last = statescan.s5_inner_fn(u, delta, A, B, C, D, discretization=rule, return_last_state=True)
    else:
        y, last = statescan.simplified_scan_fn(u, delta, A, B, C, None, True, rule)
    state, D = torch.zeros_like(last), D if real else None
    steps = [
        statescan.simplified_state_update(state, u[..., t], delta[..., t], A, B, C, D, discretization=rule) for t in range(STEPS)
    ]
    return y, last, torch.stack(steps, -1), state


def convolution(dtype, rule):
    r = Random(4)
    x, weight, bias = r.real(2, 6, STEPS).to(dtype), r.real(6, 4), r.real(6)
    y, last = statescan.causal_conv1d(x, weight, bias, activation="silu", return_final_states=True)
    state = x.new_zeros(2, 6, 3)
    steps = [statescan.causal_conv1d_update(x[..., t], state, weight, bias, activation="silu") for t in range(STEPS)]
    return y, last, torch.stack(steps, -1), state


def delta(dtype, rule):
    r = Random(4)
    q, k = (r.real(2, STEPS, 2, 5).to(dtype) for _ in range(2))
    v, g, beta = r.real(2, STEPS, 4, 3).to(dtype), -r.step(2, STEPS, 4), r.real(2, STEPS, 4)
    y, last = statescan.gated_delta_rule(q, k, v, g, beta, qk_l2norm=True)
    state = torch.zeros_like(last)
    now = [[tensor[:, t] for tensor in (q, k, v, g, beta)] for t in range(STEPS)]
    steps = [statescan.gated_delta_rule_update(state, *tensors, qk_l2norm=True) for tensors in now]
    return y, last, torch.stack(steps, 1), state


RULES = {
    selective: ("mamba", "zoh", "bilinear", "dirac"),
    heads: ("mamba",),
    simplified: ("bilinear", "zoh", "dirac"),
    convolution: ("none",),
    delta: ("none",),
}


@pytest.mark.parametrize("kind, rule", [(kind, rule) for kind, rules in RULES.items() for rule in rules])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_steps_give_the_scan(kind, rule, dtype):
    y, last, steps, state = kind(dtype, rule)
    assert steps.dtype == y.dtype
    # a rounding of the storage type may fall to either side
    tolerance = 1e-12 if y.dtype in (torch.float64, torch.complex128) else 1e-2
    torch.testing.assert_close(steps, y, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(state, last, rtol=tolerance, atol=tolerance)


def test_steps_of_s5_with_a_skip():
    y, last, steps, state = simplified(torch.float64, "zoh", real=True)
    torch.testing.assert_close(steps, y, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=1e-12, atol=1e-12)


def arguments(states=3):
    r = Random(5)
    return r.real(states, 6, 5), (r.real(2, 6), r.step(2, 6), r.decay(6, 5), r.real(2, 5), r.real(2, 5))


def test_rows_use_the_states_that_indices_name():
    state, tensors = arguments()
    before = state.clone()
    y = statescan.selective_state_update(state, *tensors, state_batch_indices=torch.tensor([2, -1]))
    assert (y[1] == 0).all() and (y[0] != 0).all()
    assert torch.equal(state[:2], before[:2]) and not torch.equal(state[2], before[2])


def test_circular_buffer_of_a_convolution():
    r = Random(6)
    x, weight = r.real(2, 6, 12), r.real(6, 4)
    expected = statescan.causal_conv1d(x, weight)
    state = torch.zeros(2, 6, 5, dtype=torch.float64)
    for t in range(12):
        y = statescan.causal_conv1d_update(x[..., t], state, weight, cache_seqlens=torch.tensor([t, t]))
        torch.testing.assert_close(y, expected[..., t])


def test_several_steps_of_a_convolution_at_once():
    r = Random(6)
    x, weight = r.real(2, 6, 5), r.real(6, 4)
    state = torch.zeros(2, 6, 3, dtype=torch.float64)
    torch.testing.assert_close(statescan.causal_conv1d_update(x, state, weight), statescan.causal_conv1d(x, weight))
    assert torch.equal(state, x[..., 2:])


def test_a_step_has_no_gradient_and_says_so():
    state, (x, *others) = arguments(states=2)
    y = statescan.selective_state_update(state, x.requires_grad_(), *others)
    with pytest.raises(RuntimeError, match="selective_state_update has no gradient"):
        y.sum().backward()
    with torch.no_grad():
        assert not statescan.selective_state_update(state, x, *others).requires_grad


def test_changing_a_state_that_a_gradient_needs_is_noticed():
    state, tensors = arguments(states=2)
    weight = torch.ones_like(state, requires_grad=True)
    loss = (weight * state).sum()
    statescan.selective_state_update(state, *tensors)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiled(dynamic):
    state, tensors = arguments(states=2)
    expected_state = state.clone()
    expected = statescan.selective_state_update(expected_state, *tensors)

    @torch.compile(fullgraph=True, dynamic=dynamic, backend="aot_eager")
    def call(state, tensors):
        return statescan.selective_state_update(state, *tensors) * 2

    assert torch.equal(call(state, tensors), 2 * expected) and torch.equal(state, expected_state)


def test_opcheck():
    state, tensors = arguments(states=2)
    torch.library.opcheck(torch.ops.statescan.selective_state_update.default, (state, *tensors))
    r = Random(7)
    simple = (r.complex(2, 5), r.complex(2, 3), r.step(2, 5), r.oscillation(5), r.complex(5, 3), r.complex(3, 5))
    torch.library.opcheck(torch.ops.statescan.simplified_state_update.default, simple)
    shift = (r.real(2, 6, 3), r.real(2, 6), r.real(6, 4))
    torch.library.opcheck(torch.ops.statescan.causal_conv1d_update.default, shift)


def test_state_of_another_precision_is_kept():
    state, tensors = arguments(states=2)
    low = [t.to(torch.bfloat16) for t in tensors]
    state = state.float()
    y = statescan.selective_state_update(state, *low)
    assert y.dtype == torch.bfloat16 and state.dtype == torch.float32
