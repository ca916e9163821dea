"""JAX's transforms: results and gradients are those of PyTorch's tensors to the bit, on the same device."""

import functools
import importlib
import os
import subprocess
import sys

import numpy
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
jnp = jax.numpy

import statescan  # noqa: E402
from cases import CASES, Case, Random, conv, selective_scan, simplified, ssd  # noqa: E402
from jax_cases import ALL, check, check_gradient_of_one_result, narrow, of_arrays, to_jax  # noqa: E402
from statescan._jax import primitives  # noqa: E402

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="JAX has a GPU here: test_jax_cuda.py tests that")


@pytest.fixture(params=[False, True], ids=["32 bits", "64 bits"])
def x64(request):
    with jax.enable_x64(request.param):
        yield request.param


@pytest.mark.sampled(30)
@pytest.mark.parametrize("name", ALL)
def test_results_and_gradients(name, x64):
    check(ALL[name].to(torch.float64) if x64 else narrow(ALL[name].to(torch.float32)))


# one for each operation
ONE_EACH = [
    "selective_scan_everything",
    "ssd_everything",
    "simplified_scan_asynchronous",
    "s5_inner_real",
    "linear_scan_state",
    "causal_conv1d_everything",
    "norm",
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ONE_EACH)
def test_half_precision(name, dtype):
    check(narrow(ALL[name].to(dtype)))


@pytest.mark.parametrize("name", ONE_EACH)
def test_against_differences(name, x64):
    from jax.test_util import check_grads

    case = ALL[name].to(torch.float64 if x64 else torch.float32)
    function, floats = of_arrays(case), case.floats()
    tolerance = {"atol": 1e-6, "rtol": 1e-6, "eps": 1e-5} if x64 else {"atol": 5e-2, "rtol": 5e-2, "eps": 1e-2}
    check_grads(lambda arrays: function(arrays)[0], ({n: to_jax(case.tensors[n]) for n in floats},), 1, ["rev"], **tolerance)


def scan(arrays):
    return statescan.selective_scan(**arrays)[0]


@pytest.fixture
def arrays():
    return {n: to_jax(t.float()) for n, t in selective_scan().items()}


def loss(arrays):
    return jnp.sum(jnp.sin(scan(arrays)))


def close(got, expected):
    jax.tree.map(functools.partial(numpy.testing.assert_allclose, rtol=1e-5, atol=1e-5), got, expected)


def test_only_gradients_that_are_wanted_are_computed(arrays):
    text = str(jax.make_jaxpr(jax.grad(lambda x: loss({**arrays, "x": x})))(arrays["x"]))
    assert text.count("statescan_backward") == 1 and "wanted=(0,)" in text


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("name", ["selective_scan_everything", "ssd_everything", "linear_scan_state"])
def test_gradients_of_one_result(name, number):
    check_gradient_of_one_result(ALL[name].to(torch.float32), number)


@pytest.mark.parametrize("threads", [1, 3])
def test_numbers_below_the_smallest_normal_one(threads):
    """XLA's own threads take them for zero."""
    a, b = torch.ones(40, 70), torch.full((40, 70), 1e-40)
    statescan.set_num_threads(threads)
    try:
        found = jax.jit(statescan.linear_scan)(to_jax(a), to_jax(b))
        expected = statescan.linear_scan(a, b)
    finally:
        statescan.set_num_threads(None)
    assert expected[1].ne(0).all()
    for got, wanted in zip(found, expected):
        assert numpy.array_equal(numpy.asarray(got).view("int32"), wanted.view(torch.int32).numpy())


def test_without_jit(arrays):
    """Where JAX is told not to compile, as for debugging, passes are compiled all the same: one by one."""
    expected = jax.grad(loss)(arrays)
    with jax.disable_jit():
        jax.tree.map(numpy.testing.assert_array_equal, jax.grad(loss)(arrays), expected)


def test_checkpoint_and_loops(arrays):
    expected = jax.grad(loss)(arrays)
    jax.tree.map(numpy.testing.assert_array_equal, jax.grad(jax.checkpoint(loss))(arrays), expected)

    def looped(arrays):
        body = lambda x, _: (jnp.tanh(scan({**arrays, "x": x})), None)  # noqa: E731
        return jnp.sum(jax.lax.scan(body, arrays["x"], None, length=3)[0])

    def unrolled(arrays):
        x = arrays["x"]
        for _ in range(3):
            x = jnp.tanh(scan({**arrays, "x": x}))
        return jnp.sum(x)

    close(jax.grad(looped)(arrays), jax.grad(unrolled)(arrays))


r = Random(11)
MAPPED = {
    "selective_scan": Case("selective_scan", selective_scan(groups=2)),
    "ssd": Case("ssd", ssd()),
    "simplified_scan": Case("simplified_scan_fn", simplified()),
    "causal_conv1d": Case("causal_conv1d", conv()),
    "linear_scan": CASES["linear_scan_state"],
    "norm": Case("norm", {"x": r.real(3, 8), "weight": r.real(8), "residual": r.real(3, 8)}),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MAPPED)
@pytest.mark.parametrize("mapped", ["activations", "first", "everything"])
def test_vmap(name, mapped):
    """Over the batch alone, over one tensor that the others go along with, and over weights."""
    case = MAPPED[name].to(torch.float32)
    weights = ("A", "weight", "bias", "D") + (("B", "C") if name == "simplified_scan" else ())
    arrays = {n: to_jax(t) for n, t in case.tensors.items()}
    first = next(iter(arrays))
    chosen = {"first": [first], "everything": list(arrays), "activations": [n for n in arrays if n not in weights]}[mapped]
    many = {n: jnp.stack([a, 1.5 * a, 0.5 * a], -1) if n in chosen else a for n, a in arrays.items()}
    axes = {n: -1 if n in chosen else None for n in arrays}
    function = of_arrays(case)

    def value(arrays):
        return sum(jnp.sum(jnp.sin(abs(out))) for out in function(arrays))

    one_by_one = [{n: a[..., at] if n in chosen else a for n, a in many.items()} for at in range(3)]
    close(jax.vmap(function, (axes,))(many), jax.tree.map(lambda *parts: jnp.stack(parts), *map(function, one_by_one)))
    expected = [jax.grad(value)(one) for one in one_by_one]
    close(jax.vmap(jax.grad(value), (axes,))(many), jax.tree.map(lambda *parts: jnp.stack(parts), *expected))
    summed = jax.jit(jax.grad(lambda arrays: jnp.sum(jax.vmap(value, (axes,))(arrays))))(many)
    for at in arrays:
        parts = [gradient[at] for gradient in expected]
        close(summed[at], jnp.stack(parts, -1) if at in chosen else sum(parts))


def test_a_mapped_batch_is_one_call(arrays):
    axes = {n: None if n == "A" else 0 for n in arrays}
    many = {n: a if n == "A" else jnp.stack([a, a]) for n, a in arrays.items()}
    value = lambda arrays: jnp.sum(jax.vmap(loss, (axes,))(arrays))  # noqa: E731
    text = str(jax.make_jaxpr(jax.grad(value))(many))
    assert text.count("statescan_backward") == 1 and "f32[4,6,83]" in text and "scan[" not in text.replace("statescan", "")


def test_steps(arrays):
    def decode(arrays):
        def body(state, now):
            y, state = statescan.selective_state_update(state, *now[:2], arrays["A"], *now[2:])
            return state, y

        state = jnp.zeros((2, 6, 5))
        last, y = jax.lax.scan(body, state, tuple(jnp.moveaxis(arrays[n], -1, 0) for n in ("x", "dt", "B", "C")))
        return jnp.moveaxis(y, 0, -1), last

    for got in (decode(arrays), jax.jit(decode)(arrays)):
        close(got, statescan.selective_scan(**arrays))
    first = [arrays[n][..., 0] for n in ("x", "dt")] + [arrays["A"]] + [arrays[n][..., 0] for n in ("B", "C")]
    state = jnp.ones((2, 6, 5))
    expected = statescan.selective_state_update(state, *first)
    assert (state == 1).all(), "an array does not change"
    mapped = jax.vmap(statescan.selective_state_update, (0, 0, 0, None, 0, 0))
    rows = [a if at == 2 else a[:, None] for at, a in enumerate(first)]
    close(mapped(state[:, None], *rows), tuple(part[:, None] for part in expected))
    donated = jax.jit(lambda state: statescan.selective_state_update(state, *first), donate_argnums=0)
    close(donated(state), expected)
    assert state.is_deleted()
    with pytest.raises(TypeError, match="selective_state_update has no gradient: it changes its state in place"):
        jax.grad(lambda x: statescan.selective_state_update(jnp.ones((2, 6, 5)), x, *first[1:])[0].sum())(first[0])


def test_nothing_is_copied(arrays):
    """A compiled call is the custom call and nothing else."""
    text = jax.jit(lambda arrays: statescan.selective_scan(**arrays)).lower(arrays).compile().as_text()
    assert text.count("custom-call(") == 1 and "copy(" not in text and "fusion(" not in text


def test_lowering_twice_gives_the_same(arrays):
    texts = {jax.jit(jax.grad(loss)).lower(arrays).as_text() for _ in range(2)}
    assert len(texts) == 1


def test_export(arrays):
    from jax import export

    checks = [export.DisabledSafetyCheck.custom_call("statescan")]
    exported = export.export(jax.jit(scan), disabled_checks=checks)(arrays)
    numpy.testing.assert_array_equal(exported.call(arrays), scan(arrays))


def test_without_the_device_that_a_function_is_compiled_for(arrays):
    with pytest.raises(RuntimeError, match="selective_scan: a call is compiled for CUDA only where there is a CUDA device"):
        jax.jit(scan).trace(arrays).lower(lowering_platforms=("cuda",))


def test_bad_arguments_while_tracing(arrays):
    def traced(function=scan, **changed):
        return jax.jit(function).trace({**arrays, **changed})

    with pytest.raises(ValueError, match="selective_scan: `dt` must have shape"):
        traced(dt=arrays["dt"][..., 1:])
    with pytest.raises(TypeError, match="selective_scan: `x` must be real .*, got int32"):
        traced(x=arrays["x"].astype("int32"))
    with pytest.raises(TypeError, match="`x` must have elements of type .*, got uint8"):
        traced(x=arrays["x"].astype("uint8"))
    with pytest.raises(ValueError, match="`discretization` must be"):
        traced(lambda arrays: statescan.selective_scan(**arrays, discretization="euler"))
    with pytest.raises(TypeError, match="`dt_softplus` must be a plain value, got one that JAX traces"):
        jax.jit(lambda flag: statescan.selective_scan(**arrays, dt_softplus=flag)).trace(True)
    with pytest.raises(TypeError, match="selective_scan: `A` must be .*, got Tensor"):
        traced(lambda arrays: scan({**arrays, "A": torch.ones(6, 5)}))
    with pytest.raises(ValueError, match="selective_state_update: `state` must have shape"):
        now = {n: a if n == "A" else a[..., 0] for n, a in arrays.items()}
        jax.jit(statescan.selective_state_update).trace(jnp.ones((2, 6, 4)), **now)


def test_derivatives_that_are_none(arrays):
    with pytest.raises(TypeError, match="selective_scan has no derivatives in forward mode"):
        jax.jvp(loss, (arrays,), (arrays,))
    with pytest.raises(TypeError, match="selective_scan has no derivatives in forward mode"):
        jax.jit(lambda arrays: jax.jvp(loss, (arrays,), (arrays,)))(arrays)
    with pytest.raises(TypeError, match="selective_scan has no second derivative"):
        jax.grad(lambda arrays: jnp.sum(jax.grad(loss)(arrays)["x"] ** 2))(arrays)


def test_bad_values_while_running(arrays):
    """What only the values of a tensor say is found when it is there."""
    one = {n: a if n == "A" else a[:1] for n, a in arrays.items()}
    bounds = jnp.array([0, 9, 5, 83], "int32")
    packed = jax.jit(lambda arrays, bounds: statescan.selective_scan(**arrays, cu_seqlens=bounds))
    with pytest.raises(RuntimeError, match="selective_scan: `cu_seqlens"):
        jax.block_until_ready(packed(one, bounds))


def test_an_unknown_interface(monkeypatch):
    """A sentence names the versions that work."""

    def refuse(*arguments, **options):
        raise RuntimeError("its version is another one")

    monkeypatch.setattr(statescan._jax.custom_calls.ffi, "register_ffi_target", refuse)
    with pytest.raises(RuntimeError, match=r"another interface .* JAX 0.10, 0.11 and 0.12 work \(its version is another one\)"):
        importlib.reload(statescan._jax)


SHARDED = """
import jax, numpy, statescan
from jax.sharding import PartitionSpec as P
r = numpy.random.default_rng(0)
x, dt = r.standard_normal((4, 6, 20), "f"), r.uniform(0.1, 0.3, (4, 6, 20)).astype("f")
A, B, C = -r.uniform(0.1, 1, (6, 5)).astype("f"), r.standard_normal((4, 5, 20), "f"), r.standard_normal((4, 5, 20), "f")
x, dt, A, B, C = map(jax.numpy.asarray, (x, dt, A, B, C))
mesh = jax.make_mesh((2,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
scan = lambda *arrays: statescan.selective_scan(*arrays)[0]
sharded = jax.shard_map(scan, mesh=mesh, in_specs=(P("batch"), P("batch"), P(), P("batch"), P("batch")), out_specs=P("batch"))
found = jax.jit(sharded)(x, dt, A, B, C)
print(len(found.sharding.device_set), bool((found == scan(x, dt, A, B, C)).all()))
loss = lambda run: jax.grad(lambda A: jax.numpy.sum(jax.numpy.sin(run(x, dt, A, B, C))))(A)
print(bool(jax.numpy.allclose(jax.jit(lambda: loss(sharded))(), loss(scan), rtol=1e-5, atol=1e-5)))
"""


def test_shards():
    """Each device has a part of the batch; the gradient by a weight, which all have, is summed."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run([sys.executable, "-c", SHARDED], env={**os.environ, **flags}, capture_output=True, text=True)
    assert ran.stdout.split() == ["2", "True", "True"], ran.stderr


def test_types_follow_the_arguments(arrays):
    out = jax.eval_shape(lambda x: statescan.linear_scan(x, x * 1j), arrays["x"])
    assert [o.dtype for o in out] == ["complex64", "complex64"]
    assert primitives.FORWARD.multiple_results
