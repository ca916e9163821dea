"""NumPy and JAX arrays give the numbers that PyTorch tensors give, or without PyTorch, those of each other."""

import numpy
import pytest

import statescan


def arguments(dtype=numpy.float32):
    r = numpy.random.default_rng(0)
    batch, dim, seqlen, dstate = 2, 6, 83, 5
    return {
        "x": r.standard_normal((batch, dim, seqlen)).astype(dtype),
        "dt": r.uniform(0.02, 0.3, (batch, dim, seqlen)).astype(dtype),
        "A": -r.uniform(0.1, 1, (dim, dstate)).astype(numpy.float32),
        "B": r.standard_normal((batch, dstate, seqlen)).astype(dtype),
        "C": r.standard_normal((batch, dstate, seqlen)).astype(dtype),
    }


def loop(x, dt, A, B, C):
    h, y = numpy.zeros((*x.shape[:2], A.shape[1])), []
    for t in range(x.shape[2]):
        h = numpy.exp(dt[:, :, t, None] * A) * h + dt[:, :, t, None] * B[:, None, :, t] * x[:, :, t, None]
        y.append((h * C[:, None, :, t]).sum(-1))
    return numpy.stack(y, -1), h


@pytest.mark.parametrize("dtype, tolerance", [("float16", 3e-3), ("float32", 1e-5), ("float64", 1e-12)])
def test_numpy(dtype, tolerance):
    tensors = arguments(dtype)
    y, state = statescan.selective_scan(**tensors)
    expected, expected_state = loop(**{n: t.astype(numpy.float64) for n, t in tensors.items()})
    assert type(y) is numpy.ndarray and y.dtype == dtype
    assert state.dtype == ("float64" if dtype == "float64" else "float32")
    numpy.testing.assert_allclose(y, expected, rtol=0, atol=tolerance * abs(expected).max())
    numpy.testing.assert_allclose(state, expected_state, rtol=0, atol=tolerance * abs(expected_state).max())


def test_numpy_strides():
    tensors = arguments()
    expected = statescan.selective_scan(**tensors)
    reversed_twice = {n: t[..., ::-1].copy()[..., ::-1] for n, t in tensors.items()}
    assert min(reversed_twice["x"].strides) < 0
    fortran = {n: numpy.asfortranarray(t) for n, t in tensors.items()}
    for changed in (reversed_twice, fortran):
        for got, wanted in zip(statescan.selective_scan(**changed), expected, strict=True):
            numpy.testing.assert_array_equal(got, wanted)
    assert statescan.selective_scan(**fortran)[0].flags.f_contiguous


def test_numpy_inputs_may_be_read_only():
    tensors = arguments()
    expected = statescan.selective_scan(**tensors)[0]
    for tensor in tensors.values():
        tensor.flags.writeable = False
    numpy.testing.assert_array_equal(statescan.selective_scan(**tensors)[0], expected)


def test_numpy_every_function():
    r = numpy.random.default_rng(1)
    x, weight = r.standard_normal((2, 6, 20)), r.standard_normal((6, 4))
    y, last = statescan.causal_conv1d(x, weight, activation="silu", return_final_states=True)
    numpy.testing.assert_array_equal(last, x[..., -3:])
    h, final = statescan.linear_scan(numpy.full((2, 6, 20), 0.5), x)
    numpy.testing.assert_array_equal(h[..., -1], final)
    complex_h, _ = statescan.linear_scan(numpy.full((2, 6, 20), 0.5j), x)
    assert complex_h.dtype == "complex128"
    heads, _ = statescan.ssd(
        x.transpose(0, 2, 1)[..., None], abs(x).transpose(0, 2, 1), -numpy.ones(6), *[x.transpose(0, 2, 1)[..., :3]] * 2
    )
    assert heads.shape == (2, 20, 6, 1)
    a, b, c = -numpy.ones(4) + 1j, r.standard_normal((4, 6)) + 0j, r.standard_normal((6, 4)) + 0j
    y = statescan.simplified_scan_fn(x, numpy.ones(4), a, b, c)
    inner = statescan.s5_inner_fn(x, numpy.ones(4), a, b, c, numpy.zeros(6), conj_sym=False)
    assert y.dtype == "complex128" and inner.dtype == "float64"
    numpy.testing.assert_allclose(inner, y.real, rtol=1e-12, atol=1e-12)
    state = numpy.zeros((2, 4), numpy.complex128)
    numpy.testing.assert_allclose(statescan.simplified_state_update(state, x[..., 0], numpy.ones(4), a, b, c), y[..., 0])
    state = numpy.zeros((2, 6, 3))
    step = statescan.causal_conv1d_update(x[..., 0], state, weight)
    numpy.testing.assert_allclose(step, x[..., 0] * weight[:, 3])
    numpy.testing.assert_array_equal(state[..., 2], x[..., 0])


def test_numpy_step_changes_its_state():
    tensors = arguments()
    y, last = statescan.selective_scan(**tensors)
    state = numpy.zeros_like(last)
    for t in range(y.shape[2]):
        at = {n: tensors[n][..., t] for n in ("x", "dt", "B", "C")}
        step = statescan.selective_state_update(state, at["x"], at["dt"], tensors["A"], at["B"], at["C"])
    numpy.testing.assert_allclose(step, y[..., -1], rtol=1e-4, atol=1e-6)
    numpy.testing.assert_allclose(state, last, rtol=1e-4, atol=1e-6)


def test_number_of_threads():
    statescan.set_num_threads(3)
    try:
        assert statescan.get_num_threads() == 3
        three = statescan.selective_scan(**arguments())
        statescan.set_num_threads(1)
        for got, expected in zip(statescan.selective_scan(**arguments()), three, strict=True):
            numpy.testing.assert_array_equal(got, expected)
    finally:
        statescan.set_num_threads(None)
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(ValueError, match="threads"):
            statescan.set_num_threads(wrong)


class TestJax:
    """JAX arrays, on its default device."""

    jax = staticmethod(lambda: pytest.importorskip("jax", reason="JAX is not installed"))

    def test_results(self):
        jax = self.jax()
        tensors = arguments()
        expected = statescan.selective_scan(**tensors)
        got = statescan.selective_scan(**{n: jax.numpy.asarray(t) for n, t in tensors.items()})
        for array, wanted in zip(got, expected, strict=True):
            assert isinstance(array, jax.Array)
            numpy.testing.assert_allclose(numpy.asarray(array), wanted, rtol=1e-5, atol=1e-5)

    def test_bfloat16(self):
        jax = self.jax()
        tensors = {n: jax.numpy.asarray(t) for n, t in arguments().items()}
        y, state = statescan.selective_scan(**{**tensors, "x": tensors["x"].astype(jax.numpy.bfloat16)})
        assert y.dtype == jax.numpy.bfloat16 and state.dtype == jax.numpy.float32
        expected = statescan.selective_scan(**tensors)[0]
        assert abs(y - expected).max() < 2e-2 * abs(expected).max()

    @pytest.mark.parametrize("of_jax", ["A", "dt", "x", "C"])
    def test_beside_arrays_of_numpy(self, of_jax):
        """Data in front and weights behind, or the other way round: any array of JAX's makes the call one of its."""
        jax = self.jax()
        tensors = arguments()
        expected = statescan.selective_scan(**{n: jax.numpy.asarray(t) for n, t in tensors.items()})

        def call(traced):
            return statescan.selective_scan(**{**tensors, of_jax: traced})

        traced = jax.numpy.asarray(tensors[of_jax])
        for got, wanted in zip((*call(traced), *jax.jit(call)(traced)), (*expected, *expected), strict=True):
            assert isinstance(got, jax.Array)
            numpy.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)
        gradient = jax.grad(lambda traced: call(traced)[0].sum())(traced)
        assert gradient.shape == traced.shape and gradient.any()

    def test_a_step_beside_arrays_of_numpy(self):
        jax = self.jax()
        tensors, state = arguments(), numpy.zeros((2, 6, 5), numpy.float32)
        first = {n: t if n == "A" else t[..., 0] for n, t in tensors.items()}
        expected = state.copy()
        y = statescan.selective_state_update(expected, **first)
        step = jax.jit(lambda A: statescan.selective_state_update(state, **{**first, "A": A}))
        got, new = step(jax.numpy.asarray(first["A"]))
        numpy.testing.assert_allclose(got, y, rtol=1e-6, atol=1e-6)
        numpy.testing.assert_allclose(new, expected, rtol=1e-6, atol=1e-6)
        assert not state.any()

    def test_step_gives_the_new_state(self):
        jax = self.jax()
        tensors = {n: jax.numpy.asarray(t) for n, t in arguments().items()}
        first = {n: t if n == "A" else t[..., 0] for n, t in tensors.items()}
        state = jax.numpy.zeros((2, 6, 5))
        y, new = statescan.selective_state_update(state, **first)
        expected_y, expected = statescan.selective_scan(**{n: t if n == "A" else t[..., :1] for n, t in tensors.items()})
        numpy.testing.assert_allclose(y, expected_y[..., 0], rtol=1e-5, atol=1e-6)
        numpy.testing.assert_allclose(new, expected, rtol=1e-5, atol=1e-6)
        assert not state.any()
