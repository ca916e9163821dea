"""JAX's transforms on a GPU: results and gradients are those of PyTorch's tensors there to the bit, and nothing waits."""

import functools

import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
jnp = jax.numpy

import numpy  # noqa: E402

import statescan  # noqa: E402
from cases import Case, Random  # noqa: E402
from jax_cases import ALL, check, check_gradient_of_one_result, dense, narrow, of_arrays, same, to_jax  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.skipif(
        jax.default_backend() != "gpu", reason="JAX has no GPU here: it needs its plugin, jax[cuda12] or jax[cuda13]"
    ),
]

# one for each operation, and those with states and packed rows
FEW = ["selective_scan_everything", "ssd_everything", "s5_inner_real", "linear_scan_state", "causal_conv1d_everything", "norm"]


def on_gpu(name, dtype=torch.float32):
    return narrow(dense(ALL[name].to(dtype, "cuda")))


def arrays_of(case):
    return {name: to_jax(tensor) for name, tensor in case.tensors.items()}


@pytest.mark.parametrize("name", ALL)
def test_results_and_gradients(name):
    check(on_gpu(name))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FEW)
def test_half_precision(name, dtype):
    check(on_gpu(name, dtype))


MODELS = {
    "selective_scan": lambda r: {
        "x": r.real(2, 256, 1000),
        "dt": r.step(2, 256, 1000),
        "A": r.decay(256, 16),
        "B": r.real(2, 16, 1000),
        "C": r.real(2, 16, 1000),
        "D": r.real(256),
        "z": r.real(2, 256, 1000),
        "dt_bias": r.real(256),
    },
    "ssd": lambda r: {
        "x": r.real(2, 700, 8, 64),
        "dt": r.step(2, 700, 8),
        "A": r.decay(8),
        "B": r.real(2, 700, 1, 128),
        "C": r.real(2, 700, 1, 128),
        "D": r.real(8),
        "initial_state": r.real(2, 8, 64, 128),
    },
    "simplified_scan_fn": lambda r: {
        "u": r.complex(2, 128, 900),
        "delta": r.step(2, 64, 900),
        "A": r.oscillation(64),
        "B": r.complex(64, 128),
        "C": r.complex(128, 64),
    },
    "causal_conv1d": lambda r: {"x": r.real(2, 256, 1000), "weight": r.real(256, 4), "bias": r.real(256)},
    "norm": lambda r: {"x": r.real(64, 768), "weight": r.real(768), "residual": r.real(64, 768)},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", MODELS)
def test_sizes_of_models(op, dtype):
    """They go the ways of large calls: clusters, tensor maps, scratch memory that XLA has planned."""
    options = {"dt_softplus": True} if op == "selective_scan" else {}
    check(Case(op, MODELS[op](Random(2)), options).to(dtype, "cuda"))


@pytest.mark.parametrize("name", FEW)
def test_vmap(name):
    """Of the first tensor alone, of which PyTorch does one after another."""
    case = on_gpu(name)
    arrays, first = arrays_of(case), next(iter(case.tensors))
    many = jnp.stack([arrays[first], 0.5 * arrays[first], 2 * arrays[first]])
    mapped = jax.jit(jax.vmap(lambda one: of_arrays(case)({**arrays, first: one})))(many)
    for at in range(3):
        one = Case(case.op, {**case.tensors, first: case.tensors[first] * (1, 0.5, 2)[at]}, case.options)
        for array, wanted in zip(mapped, one(), strict=True):
            numpy.testing.assert_allclose(array[at], wanted.cpu(), rtol=1e-4, atol=1e-4)


def test_loops_and_checkpoint():
    """A body of `lax.scan`, forward and with gradients, computed again or not."""
    case = on_gpu("selective_scan")
    arrays, tensors = arrays_of(case), case.tensors

    def value(arrays, wrap):
        body = wrap(lambda x, _: (jnp.tanh(statescan.selective_scan(**{**arrays, "x": x})[0]), None))
        return jnp.sum(jax.lax.scan(body, arrays["x"], None, length=4)[0])

    kept, again = (jax.jit(jax.grad(lambda a, wrap=wrap: value(a, wrap)))(arrays) for wrap in (lambda f: f, jax.checkpoint))
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    x = leaves["x"]
    for _ in range(4):
        x = torch.tanh(statescan.selective_scan(**{**leaves, "x": x})[0])
    expected = dict(zip(leaves, torch.autograd.grad(x.sum(), list(leaves.values())), strict=True))
    for name, wanted in expected.items():
        assert numpy.array_equal(kept[name], again[name]), name
        numpy.testing.assert_allclose(kept[name], wanted.cpu(), rtol=1e-4, atol=1e-4)


def test_steps():
    """Decoding within `lax.scan` is the scan."""
    case = on_gpu("selective_scan")
    arrays = arrays_of(case)

    @jax.jit
    def decode(arrays):
        def body(state, now):
            y, state = statescan.selective_state_update(state, *now[:2], arrays["A"], *now[2:])
            return state, y

        times = tuple(jnp.moveaxis(arrays[name], -1, 0) for name in ("x", "dt", "B", "C"))
        last, y = jax.lax.scan(body, jnp.zeros((2, 6, 5)), times)
        return jnp.moveaxis(y, 0, -1), last

    for got, wanted in zip(decode(arrays), case(), strict=True):
        numpy.testing.assert_allclose(got, wanted.cpu(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FEW)
def test_nothing_waits(name):
    """A compiled call is behind long work of its stream, returns before that is done, and moves nothing to or from the host."""
    case = on_gpu(name)
    arrays, first = arrays_of(case), next(iter(case.tensors))
    call = jax.jit(of_arrays(case))

    @jax.jit
    def late(square, array):
        for _ in range(60):
            square = square @ square / 8192
        return array + 0 * square[0, 0].astype(array.dtype)

    square = jnp.ones((8192, 8192))
    expected = jax.block_until_ready(call({**arrays, first: late(square, arrays[first])}))
    with jax.transfer_guard("disallow"):
        got = call({**arrays, first: late(square, arrays[first])})
        assert not any(array.is_ready() for array in got), "the call waited"
    for array, wanted in zip(got, expected, strict=True):
        assert numpy.array_equal(array, wanted)


@pytest.mark.parametrize("name", FEW)
def test_recorded_calls(name):
    """Many calls in one function, forward and backward, which XLA records and replays, on other numbers and memory."""
    case = on_gpu(name)
    first = next(iter(case.tensors))

    def chain(arrays, x):
        for _ in range(6):
            x = x + 0.1 * of_arrays(case)({**arrays, first: x})[0].astype(x.dtype)
        return jnp.sum(abs(x) ** 2)

    arrays = arrays_of(case)
    both = jax.value_and_grad(chain, 1)
    call = jax.jit(both)
    for factor in (1.0, 0.5, 2.0, 1.0):
        x = factor * arrays[first]
        with jax.disable_jit():
            expected = both(arrays, x)
        jax.tree.map(functools.partial(numpy.testing.assert_allclose, rtol=1e-3, atol=1e-3), call(arrays, x), expected)


def test_another_device():
    if jax.device_count() < 2 or torch.cuda.device_count() < 2:
        pytest.skip("there is one CUDA device")
    case = on_gpu("ssd_everything")
    device = jax.devices()[1]
    arrays = jax.device_put(arrays_of(case), device)
    for array, wanted in zip(jax.jit(of_arrays(case))(arrays), case(), strict=True):
        assert array.devices() == {device} and same(array, wanted)


def test_double_precision_is_refused_when_a_function_is_compiled():
    with jax.enable_x64(True):
        case = on_gpu("selective_scan", torch.float64)
        arrays = arrays_of(case)
        with pytest.raises(RuntimeError, match="selective_scan in float64 .* compute in float32"):
            jax.jit(of_arrays(case)).lower(arrays)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("name", ["selective_scan_everything", "ssd_everything", "linear_scan_state"])
def test_gradients_of_one_result(name, number):
    check_gradient_of_one_result(on_gpu(name), number)
