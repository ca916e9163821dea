"""PyTorch: the operations in its library, and their gradients.

An operation becomes `torch.ops.statescan.NAME_forward` and `NAME_backward`, opaque to the compiler; they also take tensors
without data. Its gradient is an `autograd.Function` around both. A step becomes `torch.ops.statescan.NAME` and changes its state.
"""

import torch
from torch.autograd.function import once_differentiable

from . import _native
from ._threads import get_num_threads
from .operations import OPERATIONS, STEPS, Operation, Step

_DOUBLE = (torch.float64, torch.complex128)
_STATES = {
    (False, False): torch.float32,
    (False, True): torch.complex64,
    (True, False): torch.float64,
    (True, True): torch.complex128,
}


class _New:
    """Makes outputs, also of tensors without data and with symbolic sizes."""

    @staticmethod
    def like(tensor, is_complex=None, promoted_with=None):
        """A tensor with the strides of another one, or the nearest that are dense. It may be made complex or real."""
        if promoted_with is not None:
            return torch.empty_like(tensor, dtype=torch.promote_types(tensor.dtype, promoted_with.dtype))
        if is_complex is None or tensor.is_complex() == is_complex:
            return torch.empty_like(tensor)
        return torch.empty_like(tensor, dtype=_STATES[tensor.dtype in _DOUBLE, is_complex])

    @staticmethod
    def state(shape, tensor, is_complex):
        return tensor.new_empty(shape, dtype=_STATES[tensor.dtype in _DOUBLE, is_complex])

    @staticmethod
    def empty(shape, tensor):
        return tensor.new_empty(shape)

    @staticmethod
    def is_complex(tensor):
        return tensor.is_complex()


def _cpu(tensor):
    return -1, get_num_threads()


def _cuda(tensor):
    device = tensor.get_device()
    return device, torch._C._cuda_getCurrentRawStream(device)


_DEVICES = {"CPU": _cpu, "CUDA": _cuda}
_library = torch.library.Library("statescan", "DEF")


def _declare(tensors):
    return [f"Tensor? {name[:-1]}" if name.endswith("?") else f"Tensor {name}" for name in tensors]


def _with_defaults(op):
    """The arguments of a schema, and what adds those that the dispatcher leaves out: the last ones that have their defaults."""
    required = [name for name in op.tensors if not name.endswith("?")]
    optional = [(name, None) for name in _declare(op.tensors[len(required) :])] + list(op.options)
    defaults = (None,) * len(required) + tuple(default for _, default in optional)
    schema = _declare(required) + [f"{name}={default!r}" for name, default in optional]
    return schema, lambda arguments: arguments + defaults[len(arguments) :]


def _define(op, name, arguments, result, outputs, run):
    """Adds an operation: `outputs` allocates, and is all there is to do without data; `run` computes into what it gives."""
    names = [argument.partition("=")[0].split()[-1] for argument in arguments]

    def without_data(*values):
        # native functions check this themselves, and are not called here
        tensors = [(name, v) for name, v in zip(names, values) if isinstance(v, torch.Tensor)]
        for name, tensor in tensors:
            if tensor.device != tensors[0][1].device:
                expected = tensors[0][1].device
                raise ValueError(f"{op.name}: `{name}` must be on {expected}, got one on {tensor.device}")
        return outputs(*values)

    _library.define(f"{name}({', '.join(arguments)}) -> {result}")
    torch.library.register_fake(f"statescan::{name}", without_data, lib=_library)
    for device, place in _DEVICES.items():
        _library.impl(name, run(place), device)
    return getattr(torch.ops.statescan, name).default


def _forward(op: Operation):
    native = getattr(_native, f"{op.name}_forward")
    arguments, complete = _with_defaults(op)

    def allocate(save, arguments):
        results = op.results(_New, *arguments)
        return (*results, op.saved(_New, *arguments)) if save and op.saved is not None else results

    def outputs(save, *arguments):
        return list(allocate(save, complete(arguments)))

    def run(place):
        def kernel(save, *arguments):
            arguments = complete(arguments)
            results = allocate(save, arguments)
            native(arguments, results, *place(arguments[0]))
            return list(results)

        return kernel

    return _define(op, f"{op.name}_forward", ["bool save", *arguments], "Tensor[]", outputs, run)


def _backward(op: Operation):
    native = getattr(_native, f"{op.name}_backward")

    def gradients(needed, arguments):
        return [_New.like(tensor) if wanted else None for tensor, wanted in zip(arguments, needed)]

    def outputs(needed, *arguments):
        return [gradient for gradient in gradients(needed, arguments) if gradient is not None]

    def run(place):
        def kernel(needed, *arguments):
            results = gradients(needed, arguments)
            native(arguments, tuple(results), *place(arguments[0]))
            return [gradient for gradient in results if gradient is not None]

        return kernel

    arguments = ["bool[] needed", *_declare(op.tensors), *(name for name, _ in op.options)]
    if op.saved is not None or op.keeps_result:
        arguments.append("Tensor saved")
    arguments += ["Tensor? grad_first", "Tensor? grad_second"]
    return _define(op, f"{op.name}_backward", arguments, "Tensor[]", outputs, run)


def _differentiable(op: Operation, forward, backward):
    """The operation with its gradient."""
    tensors = len(op.tensors)
    nothing = (None,) * (tensors + len(op.options) - op.differentiable)

    def compute(ctx, *arguments):
        first, second, *saved = forward(True, *arguments)
        if op.keeps_result:
            saved = [first]
        ctx.save_for_backward(*arguments[:tensors], *saved)
        ctx.options = arguments[tensors:]
        ctx.set_materialize_grads(False)
        return first, second

    def differentiate(ctx, grad_first, grad_second):
        saved = ctx.saved_tensors
        needed = ctx.needs_input_grad[: op.differentiable]
        if grad_first is None and grad_second is None:
            return (None,) * op.differentiable + nothing
        found = iter(backward(needed, *saved[:tensors], *ctx.options, *saved[tensors:], grad_first, grad_second))
        return tuple(next(found) if wanted else None for wanted in needed) + nothing

    methods = {"forward": staticmethod(compute), "backward": staticmethod(once_differentiable(differentiate))}
    return type(op.name, (torch.autograd.Function,), methods)


class _NoGradient(torch.autograd.Function):
    """Passes a result on, and refuses to be differentiated."""

    @staticmethod
    def forward(ctx, name, result, *inputs):
        ctx.name = name
        return result.view_as(result)

    @staticmethod
    def backward(ctx, *gradients):
        raise RuntimeError(f"{ctx.name} has no gradient: it changes its state in place; use the scan for training")


def _step(op: Step):
    native = getattr(_native, op.name)
    arguments, complete = _with_defaults(op)

    def outputs(state, *arguments):
        return op.result(_New, *complete(arguments))

    def run(place):
        def kernel(state, *arguments):
            arguments = complete(arguments)
            result = op.result(_New, *arguments)
            native(arguments, (state, result), *place(state))
            if not state.is_inference():
                torch.autograd.graph.increment_version(state)
            return result

        return kernel

    return _define(op, op.name, [f"Tensor(a!) {op.state}", *arguments], "Tensor", outputs, run)


_FORWARD = {op.name: _forward(op) for op in OPERATIONS}
_BACKWARD = {op.name: _backward(op) for op in OPERATIONS}
_WITH_GRADIENT = {op.name: _differentiable(op, _FORWARD[op.name], _BACKWARD[op.name]) for op in OPERATIONS}
_STEP = {op.name: _step(op) for op in STEPS}


def _requires_grad(tensors):
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def _distinct(tensors):
    """The compiler does not trace an `autograd.Function` that takes a tensor twice."""
    found = []
    for tensor in tensors:
        again = tensor is not None and any(tensor is other for other in found)
        found.append(tensor.view_as(tensor) if again else tensor)
    return found


def call(op: Operation, tensors, options):
    """Runs an operation, and records it if a gradient may be asked for."""
    if _requires_grad(tensors):
        if torch.compiler.is_compiling():
            tensors = _distinct(tensors)
        return _WITH_GRADIENT[op.name].apply(*tensors, *options)
    first, second = _FORWARD[op.name](False, *tensors, *options)
    return first, second


def step(op: Step, state, tensors, options):
    """Runs a step."""
    if not _requires_grad((state, *tensors)):
        return _STEP[op.name](state, *tensors, *options)
    with torch.no_grad():
        result = _STEP[op.name](state, *tensors, *options)
    return _NoGradient.apply(op.name, result, state, *tensors)
