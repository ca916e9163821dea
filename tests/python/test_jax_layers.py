"""What layers do behind their first projection, on JAX arrays: results and gradients are those of PyTorch's functions."""

import functools
import inspect

import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import test_inner  # noqa: E402
from jax_cases import to_jax  # noqa: E402
from statescan import jax as layers  # noqa: E402
from statescan._inner import mamba2_inner, mamba_inner  # noqa: E402
from statescan._inner.mamba import MAMBA  # noqa: E402
from statescan._inner.mamba2 import MAMBA2  # noqa: E402

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="tensors are compared on the CPU")
MAMBA_TENSORS, MAMBA2_TENSORS = ([name.rstrip("?") for name in inner.tensors] for inner in (MAMBA, MAMBA2))


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def of_mamba(name):
    """A case of PyTorch's function by the names of its tensors."""
    given = test_inner.arguments(**test_inner.CASES[name])
    renamed = {
        "delta_proj_weight": "dt_proj_weight",
        "out_proj_weight": "outproj_weight",
        "out_proj_bias": "outproj_bias",
        "delta_bias": "dt_bias",
        "B_proj_bias": "B_bias",
        "C_proj_bias": "C_bias",
        **{f"{letter}_rms_weight": f"{norm}_norm" for letter, norm in (("b", "B"), ("c", "C"), ("dt", "dt"))},
    }
    eps = given.pop("b_c_dt_rms_eps", 1e-6)
    tensors = {renamed.get(name, name): tensor for name, tensor in given.items()}
    tensors["xz"] = tensors["xz"].transpose(1, 2).contiguous()
    return tensors, {"eps": eps}


def of_mamba2(normed=True, unit=0, out=7, D="heads", groups=2, states=False, sequences=False, **options):
    generator = torch.Generator().manual_seed(5)
    nheads, headdim, dstate = 4, 3, 5

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    dim = nheads * headdim
    convolved = dim + 2 * groups * dstate
    tensors = {
        "zxbcdt": normal(2, 11, 2 * unit + dim + convolved + nheads),
        "conv1d_weight": normal(convolved, 1, 4),
        "conv1d_bias": normal(convolved),
        "dt_bias": normal(nheads),
        "A": -torch.rand(nheads, generator=generator, dtype=torch.float64) - 0.1,
        "D": normal(nheads) if D == "heads" else normal(nheads, headdim),
    }
    if normed:
        tensors["rmsnorm_weight"] = normal(dim)
    if out:
        tensors |= {"outproj_weight": normal(out, unit + dim), "outproj_bias": normal(out)}
    if states:
        tensors["initial_states"] = normal(2, nheads, headdim, dstate)
    if sequences:
        tensors["seq_idx"] = torch.tensor([[0] * 4 + [1] * 7, [0] * 9 + [1] * 2])
    return tensors, {"headdim": headdim, "ngroups": groups, **options}


OF_MAMBA = (
    "plain",
    "biases and norms",
    "C given, for all times",
    "groups",
    "complex, with norms and biases",
    "complex, B given",
)
CASES = {
    **{f"mamba, {name}": functools.partial(of_mamba, name) for name in OF_MAMBA},
    "mamba2": of_mamba2,
    "mamba2, norm before the gate": functools.partial(of_mamba2, norm_before_gate=True, eps=1e-3),
    "mamba2, gate alone": functools.partial(of_mamba2, normed=False, D="channels"),
    "mamba2, a unit beside": functools.partial(of_mamba2, unit=6, groups=1, activation=None),
    "mamba2, states": functools.partial(of_mamba2, states=True, dt_low=0.1, dt_high=0.9, out=None),
    "mamba2, sequences": functools.partial(of_mamba2, sequences=True, out=None, unit=2),
    "mamba2, logarithms": functools.partial(of_mamba2, A_log=True),
}
each_case = pytest.mark.parametrize("name", CASES)


def in_torch(name, tensors, options):
    """The results of PyTorch's function."""
    if name.startswith("mamba2"):
        _, *weights, states, sequences = (tensors.get(name) for name in MAMBA2_TENSORS)
        return mamba2_inner(tensors["zxbcdt"], tuple(weights), states, sequences, **options)
    _, *rest = (tensors.get(name) for name in MAMBA_TENSORS)
    return mamba_inner(tensors["xz"], tuple(rest[:9]), tuple(rest[9:]), **options)


def in_jax(name, options):
    return functools.partial(layers.mamba2_inner if name.startswith("mamba2") else layers.mamba_inner, **options)


def outcome(name):
    """Results and gradients by name of PyTorch, where the sum of results with weights is asked for."""
    tensors, options = CASES[name]()
    leaves = {name: t.clone().requires_grad_() for name, t in tensors.items() if t.is_floating_point() or t.is_complex()}
    y, state = in_torch(name, {**tensors, **leaves}, options)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    gradients = torch.autograd.grad((y * weights).sum() + state.real.sum(), list(leaves.values()))
    return (y.detach(), state.detach(), weights), dict(zip(leaves, gradients, strict=True))


def loss(function, floats, others, weights):
    y, state = function(**floats, **others)
    return (y * weights).sum() + state.real.sum(), (y, state)


@pytest.mark.sampled(6)
@each_case
def test_results_and_gradients(name):
    (y, state, weights), gradients = outcome(name)
    tensors, options = CASES[name]()
    arrays = {name: to_jax(tensor) for name, tensor in tensors.items()}
    floats = {name: arrays.pop(name) for name in gradients}
    call = functools.partial(loss, in_jax(name, options))
    found, results = jax.jit(jax.grad(call, has_aux=True))(floats, arrays, to_jax(weights))
    for got, wanted in zip(results, (y, state), strict=True):
        torch.testing.assert_close(torch.from_dlpack(got), wanted)
    for at, wanted in gradients.items():
        # JAX's gradient by a complex number is the conjugate of PyTorch's
        got = torch.from_dlpack(found[at].conj())
        torch.testing.assert_close(got.resolve_conj(), wanted, msg=lambda words, at=at: f"{at}: {words}")


@pytest.mark.parametrize("name", ["mamba, plain", "mamba2, states"])
def test_vmap(name):
    """A mapped axis is as calls one by one."""
    tensors, options = CASES[name]()
    arrays, function = {name: to_jax(tensor) for name, tensor in tensors.items()}, in_jax(name, options)
    first = "zxbcdt" if name.startswith("mamba2") else "xz"
    one = arrays.pop(first)
    several = jax.numpy.stack([one * factor for factor in (1, 0.5, -1)])
    mapped = jax.vmap(lambda each: function(each, **arrays))(several)
    for number, each in enumerate(several):
        for got, wanted in zip(mapped, function(each, **arrays), strict=True):
            torch.testing.assert_close(torch.from_dlpack(got[number]), torch.from_dlpack(wanted))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["mamba, plain", "mamba2"])
def test_16_bits(name, dtype):
    tensors, options = CASES[name]()
    wide = {"A", "D", "dt_bias"}
    arrays = {at: to_jax(tensor).astype("float32" if at in wide else dtype) for at, tensor in tensors.items()}
    y, _ = in_jax(name, options)(**arrays)
    assert y.dtype == dtype
    (expected, *_), _ = outcome(name)
    error = (torch.from_dlpack(y.astype("float64")) - expected).abs().max() / expected.abs().max()
    assert error < (3e-2 if dtype == "bfloat16" else 4e-3)


@pytest.mark.parametrize("inner, function", [(MAMBA, layers.mamba_inner), (MAMBA2, layers.mamba2_inner)])
def test_arguments_are_those_of_the_table(inner, function):
    parameters = inspect.signature(function).parameters
    names = [name.rstrip("?") for name in inner.tensors]
    assert list(parameters) == names + [schema.split()[-1] for schema, _ in inner.options]
    for schema, default in inner.options:
        assert parameters[schema.split()[-1]].default == default


def test_bad_shapes_are_named():
    tensors, options = CASES["mamba2"]()
    arrays = {name: to_jax(tensor) for name, tensor in tensors.items()}
    with pytest.raises(ValueError, match="`weight` must be of a width"):
        layers.mamba2_inner(**{**arrays, "conv1d_weight": arrays["conv1d_weight"][:, :, :1]}, **options)


@pytest.mark.parametrize("name", ["plain", "C given, for all times", "complex, B given"])
@pytest.mark.parametrize("argument, axis", [("xz", -1), ("x_proj_weight", 0)])
def test_nothing_is_left_out(name, argument, axis):
    """Channels and rows that are too many are refused where PyTorch's function refuses them, not cut off."""
    tensors, options = of_mamba(name)
    tensors[argument] = torch.cat([tensors[argument]] * 2, axis)
    words = f"mamba_inner: `{argument}` must have "
    with pytest.raises(ValueError, match=words):
        in_torch("mamba", tensors, options)
    with pytest.raises(ValueError, match=words):
        layers.mamba_inner(**{at: to_jax(tensor) for at, tensor in tensors.items()}, **options)
