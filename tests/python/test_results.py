"""Results and gradients against plain loops in float64."""

import pytest
import torch

import statescan
from cases import CASES

# largest error, as a part of the largest number: a few roundings of the storage type, after sums over time
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
each_case = pytest.mark.parametrize("name", CASES)


def assert_close(got, expected, tolerance, what):
    assert got.shape == expected.shape, what
    assert torch.isfinite(torch.view_as_real(got) if got.is_complex() else got).all(), what
    limit = tolerance * max(1.0, expected.abs().max().item() if expected.numel() else 0.0)
    error = (got.to(expected.dtype) - expected).abs().max().item() if expected.numel() else 0.0
    assert error <= limit, f"{what}: {error:.2e} > {limit:.2e}"


def gradients(call, case):
    """The gradients of a fixed random combination of the results, by name."""
    leaves = {name: t.detach().clone().requires_grad_() for name, t in case.floats().items()}
    out = call(**leaves)
    generator = torch.Generator().manual_seed(7)
    loss = 0
    for result in out:
        weights = torch.randn((2, *result.shape), generator=generator, dtype=torch.float64).to(result.device)
        parts = (result.real, result.imag) if result.is_complex() else (result,)
        loss = loss + sum((part.double() * weight).sum() for part, weight in zip(parts, weights))
    # a loop does not touch dt where both of its uses are replaced; its gradient is zero then
    found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


@each_case
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_results(name, dtype):
    case = CASES[name].to(dtype)
    for i, (got, expected) in enumerate(zip(case(), case.double().reference(), strict=True)):
        assert_close(got, expected, TOLERANCE[dtype], f"result {i}")
    first = case()[0]
    streamed = next(iter(case.tensors.values()))
    if first.is_complex() == streamed.is_complex() and name != "linear_scan_complex":
        assert first.dtype == streamed.dtype


@each_case
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_gradients(name, dtype):
    case = CASES[name].to(dtype)
    got = gradients(case, case)
    expected = gradients(case.double().reference, case.double())
    for argument, gradient in got.items():
        tensor = case.tensors[argument]
        assert gradient.dtype == tensor.dtype and gradient.device == tensor.device
        tolerance = 10 * TOLERANCE[tensor.dtype if tensor.is_floating_point() else dtype]
        assert_close(gradient, expected[argument], tolerance if dtype != torch.bfloat16 else 0.2, f"gradient of {argument}")


@each_case
def test_layouts(name):
    """Transposed, sliced and expanded arguments give the bits of dense ones; results keep the order of axes of the input."""
    case = CASES[name]
    dense = {n: t.contiguous() for n, t in case.tensors.items()}
    expected = case(**dense)

    def strided(tensor):
        if tensor.dim() < 2:
            return torch.stack([tensor, tensor], -1)[..., 0]
        wide = tensor.transpose(-1, -2).contiguous().repeat_interleave(3, -1)
        return wide[..., 1::3].transpose(-1, -2)

    changed = {n: strided(t) for n, t in case.tensors.items()}
    assert not any(t.is_contiguous() for t in changed.values() if t.numel() > 1 and min(t.shape) > 1)
    for got, wanted in zip(case(**changed), expected, strict=True):
        assert torch.equal(got, wanted)
    by_gradient = gradients(lambda **leaves: case(**{**dense, **leaves}), case)
    again = gradients(lambda **leaves: case(**{**changed, **{n: strided(t) for n, t in leaves.items()}}), case)
    for argument in by_gradient:
        torch.testing.assert_close(again[argument], by_gradient[argument], rtol=1e-12, atol=1e-12)


@each_case
def test_threads_give_the_same_bits(name):
    case = CASES[name].to(torch.float32)
    found = []
    for threads in (1, 2, 3):
        statescan.set_num_threads(threads)
        try:
            found.append([*case(), *gradients(case, case).values()])
        finally:
            statescan.set_num_threads(None)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_layout_of_results_follows_the_input():
    case = CASES["ssd"]
    y, _ = case(x=case.tensors["x"].transpose(1, 2).contiguous().transpose(1, 2))
    assert y.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("name", ["selective_scan_everything", "ssd_everything", "s5_inner_real", "linear_scan_state"])
@pytest.mark.parametrize("axis", ["batch", "seqlen"])
def test_nothing_to_do(name, axis):
    """No rows and no steps are legal: the final state is the initial one."""
    case = CASES[name]

    def shortened(argument, tensor):
        if axis == "batch":
            return tensor[:0] if tensor.dim() > 2 or argument in ("initial_state",) else tensor
        if argument in ("A", "D", "dt_bias", "initial_state") or (argument in "BC" and tensor.dim() == 2):
            return tensor
        return tensor.narrow(1 if case.op == "ssd" else -1, 0, 0)

    tensors = {n: shortened(n, t).clone().requires_grad_() for n, t in case.tensors.items()}
    y, state = case(**tensors)
    assert y.numel() == 0
    if axis == "seqlen":
        assert torch.equal(state, tensors["initial_state"])
    (y.sum() + (state.real if state.is_complex() else state).sum()).backward()
    for argument, tensor in tensors.items():
        assert tensor.grad is not None and torch.isfinite(tensor.grad).all(), argument


def test_nan_stays_in_its_own_row():
    case = CASES["selective_scan"]
    x = case.tensors["x"].clone()
    x[0, 2, 10] = float("nan")
    y, _ = case(x=x)
    expected, _ = case()
    hurt = torch.zeros_like(y, dtype=torch.bool)
    hurt[0, 2, 10:] = True
    assert y[hurt].isnan().all() and torch.equal(y[~hurt], expected[~hurt])
