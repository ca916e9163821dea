"""Transforms of functions (`torch.func`) and recorders of calls: first derivatives in reverse mode are those of `backward()`, and
all else is refused by a sentence that names the function."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import statescan
from cases import CASES, Random
from statescan import nn
from test_results import assert_close, gradients
from test_torch import each_case, one_each, small


def weighted(case, weights):
    """The combination of the results that `gradients` differentiates."""

    def loss(leaves):
        total = 0
        for result, parts in zip(case(**leaves), weights):
            real = (result.real, result.imag) if result.is_complex() else (result,)
            total = total + sum((part.double() * weight).sum() for part, weight in zip(real, parts))
        return total

    return loss


def weights_of(case):
    generator = torch.Generator().manual_seed(7)
    return [torch.randn((2, *result.shape), generator=generator, dtype=torch.float64) for result in case()]


@each_case
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_gradients(name, dtype):
    """Bits of `backward()`, whether the function is transformed or its derivative is pulled back."""
    case = CASES[name].to(dtype)
    expected = gradients(case, case)
    loss, leaves = weighted(case, weights_of(case)), case.floats()
    got, value = torch.func.grad_and_value(loss)(leaves)
    assert torch.equal(value, loss(leaves))
    _, pull_back = torch.func.vjp(loss, leaves)
    (pulled,) = pull_back(torch.ones((), dtype=torch.float64))
    for argument, gradient in expected.items():
        assert got[argument].dtype == gradient.dtype and not got[argument].requires_grad
        assert torch.equal(got[argument], gradient), argument
        assert torch.equal(pulled[argument], gradient), argument


@each_case
def test_gradients_of_few_arguments(name):
    case = CASES[name]
    expected, loss = gradients(case, case), weighted(case, weights_of(case))
    for argument, tensor in case.floats().items():
        got = torch.func.grad(lambda tensor, argument=argument: loss({argument: tensor}))(tensor)
        assert torch.equal(got, expected[argument]), argument


@one_each
def test_jacobians(name):
    """Each row is the gradient of one number of the results."""
    case = small(name)
    # PyTorch has no Jacobians by complex numbers
    leaves = {argument: tensor for argument, tensor in case.floats().items() if not tensor.is_complex()}
    expected = torch.autograd.functional.jacobian(
        lambda *values: case(**dict(zip(leaves, values)))[0], tuple(leaves.values()), vectorize=False
    )
    got = torch.func.jacrev(lambda leaves: case(**leaves)[0])(leaves)
    by_chunks = torch.func.jacrev(lambda leaves: case(**leaves)[0], chunk_size=5)(leaves)
    for argument, rows in zip(leaves, expected):
        assert_close(got[argument], rows, 1e-14, argument)
        assert torch.equal(by_chunks[argument], got[argument])


def test_older_ways_to_many_cotangents_are_refused():
    a = Random().step(3, 8).requires_grad_()
    h, _ = statescan.linear_scan(a, a)
    with pytest.raises(RuntimeError, match="linear_scan does not go over cotangents with is_grads_batched"):
        torch.autograd.grad(h, a, torch.ones(5, 3, 8, dtype=a.dtype), is_grads_batched=True)


def test_no_cotangents():
    a = torch.zeros(0, 8)
    assert torch.func.jacrev(lambda a: statescan.linear_scan(a, torch.ones(0, 8))[0])(a).shape == (0, 8, 0, 8)


def test_a_layer_by_functional_call():
    """Parameters as arguments, as meta-learning and influence functions have them."""
    layer = nn.Mamba2(16, d_state=8, headdim=8, chunk_size=16)
    x = torch.randn(2, 20, 16)
    layer(x).square().sum().backward()
    parameters = {name: parameter.detach() for name, parameter in layer.named_parameters()}
    got = torch.func.grad(lambda p: torch.func.functional_call(layer, p, (x,)).square().sum())(parameters)
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(got[name], parameter.grad)


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager", **options)


@pytest.mark.sampled(8)
@each_case
@pytest.mark.parametrize("transform", ["grad", "vjp", "jacrev"])
def test_compiled(name, transform):
    """In one graph, where the compiler sees the transform, and not what it does."""
    case = small(name)
    loss, leaves = weighted(case, weights_of(case)), case.floats()

    def derivative(leaves):
        if transform == "vjp":
            return torch.func.vjp(loss, leaves)[1](torch.ones((), dtype=torch.float64))[0]
        return getattr(torch.func, transform)(loss)(leaves)

    if transform == "jacrev":
        # PyTorch has no Jacobians by complex numbers
        leaves = {argument: tensor for argument, tensor in leaves.items() if not tensor.is_complex()}
    expected = derivative(leaves)
    assert any(gradient.any() for gradient in expected.values())
    for argument, gradient in compiled(derivative, fullgraph=True)(leaves).items():
        assert_close(gradient, expected[argument], 1e-13, argument)


@pytest.mark.parametrize("options", [{}, {"fullgraph": True}], ids=["graphs", "one graph"])
def test_compiled_jacobians(options):
    r = Random()
    x, weight = r.real(2, 3, 5), r.real(3, 4)

    def jacobian(x):
        return torch.func.jacrev(lambda x: statescan.causal_conv1d(x, weight))(x)

    assert torch.equal(compiled(jacobian, **options)(x), jacobian(x))


@pytest.mark.parametrize("kind", ["Mamba", "Mamba2", "S5"])
def test_a_compiled_layer_by_functional_call(kind):
    layer, x = LAYERS[kind](), torch.randn(2, 20, 16)
    parameters = {name: parameter.detach() for name, parameter in layer.named_parameters()}

    def loss(parameters):
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()

    expected = torch.func.grad(loss)(parameters)
    got = compiled(lambda parameters: torch.func.grad(loss)(parameters), fullgraph=True)(parameters)
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient)


def test_what_is_refused_is_refused_when_compiled():
    r = Random()
    a, x, weight = r.step(3, 8), r.real(2, 6), r.real(6, 4)

    def step(x):
        return statescan.causal_conv1d_update(x, torch.zeros(2, 6, 3, dtype=x.dtype), weight).sum()

    for function, argument, words in [
        (lambda a: torch.func.grad(lambda a: torch.func.grad(scan_of_itself)(a).sum())(a), a, "second derivative"),
        (lambda a: torch.func.jvp(scan_of_itself, (a,), (a,)), a, "derivatives in forward mode"),
        (lambda a: torch.vmap(scan_of_itself)(torch.stack([a, a])), a, "does not go under vmap"),
        (lambda x: torch.func.grad(step)(x), x, "causal_conv1d_update has no gradient"),
    ]:
        with pytest.raises(Exception, match=words):
            compiled(function, fullgraph=True)(argument)


def test_a_gradient_beside_another_graph():
    """What is not transformed keeps its graph, of which the second derivative is refused."""
    r = Random()
    a, b = r.step(3, 8).requires_grad_(), r.real(3, 8)
    gradient = torch.func.grad(lambda b: statescan.linear_scan(a, b)[0].sum())(b)
    assert gradient.requires_grad
    with pytest.raises(RuntimeError, match="linear_scan has no second derivative"):
        gradient.sum().backward()


def scan_of_itself(a):
    return statescan.linear_scan(a, a)[0].sum()


@pytest.mark.parametrize("transform", ["grad", "jacrev"])
def test_second_derivatives_are_refused(transform):
    a = Random().step(3, 8)
    with pytest.raises(RuntimeError, match="linear_scan has no second derivative"):
        getattr(torch.func, transform)(lambda a: torch.func.grad(scan_of_itself)(a).sum())(a)


@pytest.mark.parametrize("transform", ["jacfwd", "hessian"])
def test_forward_mode_is_refused(transform):
    with pytest.raises(
        RuntimeError, match="linear_scan (does not go under vmap|has no (derivatives in forward mode|second derivative))"
    ):
        getattr(torch.func, transform)(scan_of_itself)(Random().step(3, 8))
    with pytest.raises(RuntimeError, match=r"linear_scan has no derivatives in forward mode \(jvp, jacfwd\)"):
        torch.func.jvp(scan_of_itself, (Random().step(3, 8),), (Random().step(3, 8),))


@one_each
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_vmap_is_refused(name, training):
    case = CASES[name]
    leaves = {n: torch.stack([t, t]).requires_grad_(training) for n, t in case.floats().items()}
    with pytest.raises(RuntimeError, match=f"^{case.op.removesuffix('_fn')}.* does not go under vmap: put the mapped axis"):
        torch.vmap(lambda leaves: case(**leaves)[0])(leaves)


def test_vmap_of_gradients_is_refused():
    """Gradients for each sample, where inputs are mapped, and not cotangents."""
    a = torch.stack([Random().step(3, 8)] * 2)
    with pytest.raises(RuntimeError, match="linear_scan does not go under vmap"):
        torch.vmap(torch.func.grad(scan_of_itself))(a)
    h = statescan.linear_scan(a[0].requires_grad_(), a[0])[0]
    assert h.requires_grad


def test_a_step():
    r = Random()
    x, weight = r.real(2, 6), r.real(6, 4)

    def step(x):
        return statescan.causal_conv1d_update(x, torch.zeros(2, 6, 3, dtype=x.dtype), weight).sum()

    with pytest.raises(RuntimeError, match="causal_conv1d_update has no gradient"):
        torch.func.grad(step)(x)
    with pytest.raises(RuntimeError, match="causal_conv1d_update does not go under vmap"):
        torch.vmap(step)(torch.stack([x, x]))


LAYERS = {
    "Mamba": lambda: nn.Mamba(16),
    "Mamba2": lambda: nn.Mamba2(16, d_state=8, headdim=8, chunk_size=16),
    "S5": lambda: nn.S5(16, 8),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_older_ways_to_many_cotangents_of_a_layer_are_refused(kind):
    layer, x = LAYERS[kind](), torch.randn(2, 20, 16, requires_grad=True)
    y, words = layer(x), "^(mamba2?_inner|s5_inner) does not go over cotangents with is_grads_batched or vectorize=True"
    with pytest.raises(RuntimeError, match=words):
        torch.autograd.grad(y, x, torch.ones(3, *y.shape), is_grads_batched=True)
    with pytest.raises(RuntimeError, match=words):
        torch.autograd.functional.jacobian(lambda x: layer(x)[0, :2, :2], x.detach(), vectorize=True)
    rows = torch.func.jacrev(lambda x: layer(x)[0, :2, :2])(x.detach())
    assert_close(rows, torch.autograd.functional.jacobian(lambda x: layer(x)[0, :2, :2], x.detach()), 1e-6, "x")


@pytest.mark.parametrize("kind", LAYERS)
def test_a_recorded_gradient(kind):
    layer, x = LAYERS[kind](), torch.randn(2, 20, 16)

    def gradient(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(layer(x).square().sum(), x)[0]

    program = make_fx(gradient)(x)
    assert_close(program(x.flip(0)), gradient(x.flip(0)), 1e-6, "x")


@pytest.mark.filterwarnings("ignore:.*is deprecated", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("kind", LAYERS)
def test_a_recorded_layer(kind):
    """Weights that want gradients are refused; without gradients the record gives what the layer gives, at other lengths, too."""
    layer, x = LAYERS[kind](), torch.randn(2, 20, 16)
    with pytest.raises(RuntimeError, match=r"(mamba2?_inner|s5_inner): torch.jit.trace records no gradients; trace under"):
        torch.jit.trace(layer, (x,))
    with torch.no_grad():
        traced = torch.jit.trace(layer, (x,))
    with torch.no_grad():
        torch.testing.assert_close(traced(x.flip(0)), layer(x.flip(0)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", LAYERS)
def test_the_older_exporter_to_onnx(kind, tmp_path):
    if "dynamo" not in torch.onnx.export.__code__.co_varnames:
        pytest.skip("this PyTorch has one exporter only")
    with pytest.raises(RuntimeError, match=r"(mamba2?_inner|s5_inner): ONNX has no operation for it"):
        torch.onnx.export(LAYERS[kind]().eval(), (torch.randn(2, 20, 16),), tmp_path / "layer.onnx", dynamo=False)
