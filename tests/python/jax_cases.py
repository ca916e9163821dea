"""What tests of JAX arrays share, on whatever device: the cases as functions of arrays, and PyTorch's outcome of each."""

import jax
import numpy
import torch

import statescan
from cases import CASES, Case, Random, results

r = Random(11)
NORM = {"x": r.real(4, 3, 10), "weight": r.real(10), "residual": r.real(4, 3, 10), "z": r.real(4, 3, 10)}
ALL = {**CASES, "norm": Case("norm", NORM, {"groups": 2}), "norm_layer": Case("norm", {"x": r.real(7, 5)}, {"kind": "layer"})}


def to_jax(tensor):
    """A tensor's numbers as an array on JAX's default device."""
    tensor = tensor.detach().cpu().resolve_conj()
    assert tensor.isfinite().all(), "numbers that can be compared"
    if tensor.dtype == torch.bfloat16:
        return jax.numpy.asarray(tensor.float().numpy()).astype(jax.numpy.bfloat16)
    return jax.numpy.asarray(tensor.numpy())


def same(array, tensor):
    """Whether both have the same type and the same bits."""
    tensor = tensor.detach().cpu().resolve_conj()
    assert tensor.isfinite().all(), "numbers that can be compared"
    if tensor.dtype == torch.bfloat16:
        return array.dtype == jax.numpy.bfloat16 and numpy.array_equal(
            numpy.asarray(array.astype("float32")), tensor.float().numpy()
        )
    return array.dtype == tensor.numpy().dtype and numpy.array_equal(numpy.asarray(array), tensor.numpy())


def dense(case):
    """The case with row-major tensors, as JAX has them: a kernel may be chosen by strides."""
    return Case(case.op, {name: tensor.contiguous() for name, tensor in case.tensors.items()}, case.options)


def narrow(case):
    """The case with indices of 32 bits, as JAX has them unless it is told otherwise."""
    tensors = {name: t.int() if t.dtype == torch.int64 else t for name, t in case.tensors.items()}
    return Case(case.op, tensors, case.options)


def of_arrays(case):
    """The case as a function of JAX arrays by name."""

    def function(arrays):
        return results(getattr(statescan, case.op)(**arrays, **case.options))

    return function


def with_gradients(case):
    """Results, cotangents and gradients by name of PyTorch."""
    leaves = {name: t.detach().clone().requires_grad_(name in case.floats()) for name, t in case.tensors.items()}
    out = Case(case.op, leaves, case.options)()
    generator = torch.Generator().manual_seed(3)
    cotangents = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.device, o.dtype) for o in out]
    gradients = torch.autograd.grad(out, [leaves[name] for name in case.floats()], cotangents)
    return out, cotangents, dict(zip(case.floats(), gradients, strict=True))


def check(case):
    """Compares results, alone and with gradients, and the gradients, with PyTorch's to the bit."""
    function, arrays = of_arrays(case), {name: to_jax(t) for name, t in case.tensors.items()}
    expected, cotangents, gradients = with_gradients(case)
    floats = {name: arrays[name] for name in gradients}

    @jax.jit
    def everything(floats, cotangents):
        out, back = jax.vjp(lambda floats: function({**arrays, **floats}), floats)
        return out, back(cotangents)[0]

    out, found = everything(floats, tuple(to_jax(cotangent).conj() for cotangent in cotangents))
    for results_of in (out, function(arrays), jax.jit(function)(arrays)):
        for array, wanted in zip(results_of, expected, strict=True):
            assert same(array, wanted)
    for name, wanted in gradients.items():
        assert same(found[name].conj(), wanted), name


def check_gradient_of_one_result(case, number):
    """Compares gradients with PyTorch's where the other results are not used."""
    leaves = {name: tensor.detach().clone().requires_grad_(name in case.floats()) for name, tensor in case.tensors.items()}
    result = Case(case.op, leaves, case.options)()[number]
    expected = torch.autograd.grad(result.sum(), [leaves[name] for name in case.floats()], allow_unused=True)
    arrays = {name: to_jax(tensor) for name, tensor in case.tensors.items()}
    floats = {name: arrays[name] for name in case.floats()}
    found = jax.jit(jax.grad(lambda floats: of_arrays(case)({**arrays, **floats})[number].sum()))(floats)
    for name, wanted in zip(floats, expected, strict=True):
        assert same(found[name], torch.zeros_like(case.tensors[name]) if wanted is None else wanted), name
