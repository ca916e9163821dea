"""A gradient that was taken with `create_graph=True` is right, and no derivative of it is silently wrong: it is refused."""

import gc
import weakref

import pytest
import torch
from torch.autograd import forward_ad

import statescan
import test_compat_layers as layers
from cases import CASES, Random, results
from statescan.compat import causal_conv1d, lrnnx, mamba_ssm

REFUSED = "has no second derivative"


def first_cotangents(y):
    """Scalars to differentiate first. Only the last one's derivative by y requires a gradient."""
    y = torch.view_as_real(y) if y.is_complex() else y
    constant = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return {"sum": y.sum(), "element": y.flatten()[0], "constant": (constant * y).sum(), "square": y.square().sum()}


def by_products(call, tensors):
    """The leaves behind a call of products, `W u` for each tensor: all `W`, all `u`, and the results."""
    maps = {name: torch.ones_like(tensor, requires_grad=True) for name, tensor in tensors.items()}
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in tensors.items()}
    return maps, leaves, results(call(**{name: maps[name] * leaves[name] for name in tensors}))


def assert_refused(call, tensors, cotangent):
    maps, leaves, (y, *_) = by_products(call, tensors)
    loss = first_cotangents(y)[cotangent]
    options = {"retain_graph": True, "allow_unused": True}
    plain = torch.autograd.grad(loss, list(leaves.values()), **options)
    found = torch.autograd.grad(loss, list(leaves.values()), create_graph=True, **options)
    assert any(gradient is not None for gradient in found)
    for leaf, gradient, expected in zip(leaves.values(), found, plain):
        assert (gradient is None) == (expected is None)
        if gradient is None:
            continue
        assert torch.equal(gradient, expected)
        with pytest.raises(RuntimeError, match=REFUSED):
            gradient.abs().square().sum().backward(retain_graph=True)
        for wanted in (leaf, *maps.values()):
            # there is a way to each of them that does not lead through the operation
            other = sum(t.abs().sum() for t in (leaf, *maps.values()))
            with pytest.raises(RuntimeError, match=REFUSED):
                torch.autograd.grad(gradient.abs().square().sum() + other, wanted, retain_graph=True)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cotangent", ["sum", "element", "constant", "square"])
def test_operations(name, cotangent):
    assert_refused(CASES[name], CASES[name].floats(), cotangent)


def drop_ins():
    """The functions of other packages with their tensors and options."""
    r = Random(3)
    x, dt, A, maps = r.real(2, 6, 9), r.step(2, 6, 9), r.decay(6, 5), r.real(2, 5, 9)
    scan = {"u": x, "delta": dt, "A": A, "B": maps, "C": maps.flip(0)}
    heads = {"x": r.real(2, 9, 4, 3), "dt": r.step(2, 9, 4), "A": r.decay(4), "B": r.real(2, 9, 2, 5), "C": r.real(2, 9, 2, 5)}
    simple = {
        "u": r.complex(2, 3, 9),
        "delta": r.step(2, 5, 9),
        "A": r.oscillation(5),
        "B": r.complex(5, 3),
        "C": r.complex(3, 5),
    }
    split = layers.TestSplitConv1dScan
    return {
        "selective_scan_fn": (mamba_ssm.selective_scan_fn, scan, {}),
        "lrnnx.selective_scan_fn": (lrnnx.selective_scan_fn, scan, {"discretization": "zoh"}),
        "mamba_inner_fn": (mamba_ssm.mamba_inner_fn, layers.TestMambaInner().tensors(), {}),
        "mamba_chunk_scan_combined": (mamba_ssm.mamba_chunk_scan_combined, heads, {"chunk_size": 4}),
        "mamba_split_conv1d_scan_combined": (
            mamba_ssm.mamba_split_conv1d_scan_combined,
            split().tensors(),
            {"headdim": split.HEADDIM, "ngroups": split.NGROUPS, "chunk_size": 16},
        ),
        "causal_conv1d_fn": (causal_conv1d.causal_conv1d_fn, {"x": x, "weight": r.real(6, 4)}, {"activation": "silu"}),
        "simplified_scan_fn": (lrnnx.simplified_scan_fn, simple, {}),
        "s5_inner_fn": (lrnnx.s5_inner_fn, {**simple, "D": r.real(3)}, {}),
    }


@pytest.mark.parametrize("name", drop_ins())
@pytest.mark.parametrize("cotangent", ["sum", "square"])
def test_drop_ins(name, cotangent):
    function, tensors, options = drop_ins()[name]
    maps, leaves, (y, *_) = by_products(lambda **tensors: function(**tensors, **options), tensors)
    found = torch.autograd.grad(first_cotangents(y)[cotangent], list(leaves.values()), create_graph=True)
    loss = sum(gradient.abs().square().sum() for gradient in found)
    with pytest.raises(RuntimeError, match=REFUSED):
        loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=REFUSED):
        torch.autograd.grad(loss, next(iter(maps.values())))


@pytest.mark.parametrize("cotangent", ["sum", "element", "constant", "square"])
def test_compiled(cotangent):
    """The compiler refuses in its own words."""
    case = CASES["selective_scan_everything"]
    case()
    torch._dynamo.reset()
    compiled = torch.compile(lambda **leaves: case(**leaves), fullgraph=True, backend="aot_eager")
    maps, leaves, (y, *_) = by_products(compiled, case.floats())
    (gradient,) = torch.autograd.grad(first_cotangents(y)[cotangent], leaves["x"], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.square().sum().backward()


def scan_of_itself(a):
    return statescan.linear_scan(a, a)[0].sum()


@pytest.mark.parametrize("derivative", ["hessian", "jvp", "hvp", "vhp"])
def test_functions_that_differentiate_twice(derivative):
    a = Random().step(3, 8)
    vectors = () if derivative == "hessian" else (a,)
    with pytest.raises(RuntimeError, match=REFUSED):
        getattr(torch.autograd.functional, derivative)(scan_of_itself, a, *vectors)


def test_a_forward_derivative_of_the_cotangent():
    a = Random().step(3, 8).requires_grad_()
    h, _ = statescan.linear_scan(a, a)
    with forward_ad.dual_level():
        (gradient,) = torch.autograd.grad(h, a, torch.ones_like(h), retain_graph=True)
        assert gradient.shape == a.shape
        dual = forward_ad.make_dual(torch.ones_like(h), torch.ones_like(h))
        with pytest.raises(RuntimeError, match="linear_scan has no second derivative|forward mode"):
            torch.autograd.grad(h, a, dual)


def test_what_does_not_depend_on_the_gradient_has_its_own():
    a, other = Random().step(3, 8).requires_grad_(), torch.ones(2, requires_grad=True)
    (gradient,) = torch.autograd.grad(scan_of_itself(a), a, create_graph=True)
    assert torch.equal(torch.autograd.grad(gradient.sum() + other.sum(), other)[0], torch.ones(2))


def test_the_gradient_may_be_changed_and_detached():
    a = Random().step(3, 8).requires_grad_()
    (gradient,) = torch.autograd.grad(scan_of_itself(a), a, create_graph=True)
    expected = gradient.detach() + 1
    gradient += 1
    assert torch.equal(gradient, expected) and not gradient.detach().requires_grad


def test_nothing_is_kept_alive():
    """Without the collector: no references go in circles."""
    gc.collect()
    gc.disable()
    try:
        a = Random().step(3, 8).requires_grad_()
        x, state = 2 * a, torch.ones(3, dtype=a.dtype, requires_grad=True)
        h, _ = statescan.linear_scan(x, x, state)
        (gradient,) = torch.autograd.grad(h.sum(), x, create_graph=True)
        alive = [weakref.ref(tensor) for tensor in (a, x, state, h, gradient)]
        assert gradient.requires_grad
        del a, x, state, h, gradient, _
        assert all(reference() is None for reference in alive)
    finally:
        gc.enable()
