"""PyTorch: the operations in its library, and their gradients.

An operation becomes `torch.ops.statescan.NAME_forward` and `NAME_backward`, opaque to the compiler; they also take tensors
without data. Its gradient is an `autograd.Function` around both (`_gradients.py`). A step becomes `torch.ops.statescan.NAME` and
changes its state. `NAME_out` writes results where the caller wants them.

The dispatcher takes longer than a small call's work, so a call in which nobody else has a say goes straight to the kernel.
"""

from typing import Any

import torch
from torch import get_num_threads, is_grad_enabled
from torch._C import _are_functorch_transforms_active, _get_tracing_state, _len_torch_dispatch_stack, _len_torch_function_stack
from torch._C._functorch import maybe_current_level
from torch.autograd import _profiler_enabled, forward_ad
from torch.autograd.graph import increment_version
from torch.compiler import is_dynamo_compiling

from . import _gradients, _native, _nvrtc
from ._operations import OPERATIONS, POOLED, SLOTTED, STEPS, Operation

# the type of states: real and complex
# by whether a number is complex: PyTorch 2.11 compiles no tuple's item at a bool
_SINGLE = {False: torch.float32, True: torch.complex64}
_DOUBLE = {False: torch.float64, True: torch.complex128}
_WIDTH = {torch.float64: _DOUBLE, torch.complex128: _DOUBLE}
# a newer and an older setting say whether products in float32 may use tf32; the newer one has the older one's value
if hasattr(torch._C, "_get_fp32_precision_getter"):

    def _allows_tf32():
        return torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32"

else:
    _allows_tf32 = torch._C._get_cublas_allow_tf32
# PyTorch without CUDA has no streams
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class _New:
    """Makes outputs, also of tensors without data and with symbolic sizes."""

    @staticmethod
    def like(tensor, is_complex=None, promoted_with=None, typed_as=None):
        """A tensor with the strides of another one, or the nearest that are dense. It may be made complex or real."""
        if typed_as is not None:
            return torch.empty_like(tensor, dtype=typed_as.dtype)
        if promoted_with is not None and promoted_with.dtype != tensor.dtype:
            return torch.empty_like(tensor, dtype=torch.promote_types(tensor.dtype, promoted_with.dtype))
        if is_complex is None or tensor.is_complex() == is_complex:
            return torch.empty_like(tensor)
        return torch.empty_like(tensor, dtype=_WIDTH.get(tensor.dtype, _SINGLE)[is_complex])

    @staticmethod
    def state(shape, tensor, is_complex):
        dtype = tensor.dtype
        if dtype is torch.float32 and not is_complex:
            return _New.empty(shape, tensor)
        # sizes one by one are parsed in two thirds of the time that a tuple takes
        return tensor.new_empty(*shape or ((),), dtype=_WIDTH.get(dtype, _SINGLE)[is_complex])

    @staticmethod
    def empty(shape, tensor):
        return tensor.new_empty(*shape or ((),))

    @staticmethod
    def is_complex(tensor):
        return tensor.is_complex()

    @staticmethod
    def is_double(tensor):
        return tensor.dtype in _WIDTH


def _place(tensor):
    """Place of a call, as the native functions have it. Scratch memory they ask PyTorch for: what uses it next is behind the
    call's kernels in the stream."""
    device = tensor.get_device()
    if device < 0:
        return -1, _native.chosen_threads() or get_num_threads(), None, False
    _nvrtc.load()
    return device, _current_stream(device), None, _allows_tf32()


# each answers nothing, or zero, unless something takes part in calls: a mode, a transform of functions, a tracer, a profiler
_OBSERVERS = (
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    maybe_current_level,
    _get_tracing_state,
    _profiler_enabled,
)
_UNOBSERVED = _native.Unobserved(_OBSERVERS, get_num_threads, _place)


def _pass(registered, compute, explained):
    """One pass: by `registered`, what PyTorch's library has of it, or straight to `compute`, which `_define` describes. Its
    `dispatched` is the first of both."""

    unknown = _native.UnknownArgument

    def run(first, arguments):
        if is_dynamo_compiling():
            return registered(first, *arguments)
        try:
            made = compute(first, arguments, _UNOBSERVED)
            if made is not None:
                return made
        except unknown:
            # nothing ran: the dispatcher knows more kinds of arguments
            pass
        return dispatched(first, arguments)

    def dispatched(first, arguments):
        return explained(registered, first, arguments)

    run.dispatched = dispatched
    return run


def _explained(op, names, types):
    """A function that calls the dispatcher and says why it refuses, where its own words name neither function nor argument."""

    def call(registered, first, arguments):
        if _get_tracing_state() is not None:
            _refuse_recording(op, first)
        for name, kind, value in zip(names, types, (first, *arguments)):
            if kind in _TYPES:
                _refuse_type(op, name, kind, value)
        try:
            return registered(first, *arguments)
        except NotImplementedError:
            for name, tensor in zip(names, (first, *arguments)):
                if isinstance(tensor, torch.Tensor):
                    _refuse_kind(op, name, tensor)
            raise

    return call


def _refuse_recording(op, save):
    if torch.onnx.is_in_onnx_export():
        raise RuntimeError(f"{op.name}: ONNX has no operation for it; torch.export keeps it as it is")
    if save is True:
        words = "torch.jit.trace records no gradients; trace under torch.no_grad(), or use torch.export"
        raise RuntimeError(f"{op.name}: {words}")


# the options' types in schemas: what they are in words, and what Python has for them
_TYPES = {
    "bool": ("True or False", (int, torch.SymBool)),
    "int": ("a whole number", (int, torch.SymInt)),
    "float": ("a number", (int, float, torch.SymInt, torch.SymFloat)),
    "float?": ("a number or None", (int, float, torch.SymInt, torch.SymFloat, type(None))),
    "str": ("a word", str),
    "str?": ("a word or None", (str, type(None))),
}


def _refuse_type(op, name, kind, value):
    """Refuses an option of another type than its schema has: the dispatcher takes 2 for True. Numbers of others it converts."""
    words, types = _TYPES[kind]
    is_right = isinstance(value, types) or hasattr(value, "dtype")
    if not is_right or (kind == "bool" and type(value) is int and value not in (0, 1)):
        raise TypeError(f"{op.name}: `{name}` must be {words}, got {value!r}")


def _refuse_kind(op, name, tensor):
    """Refuses a tensor that no pass takes."""
    if tensor.is_nested:
        cure = "pack its rows into one, with `cu_seqlens`, or pad them with torch.nested.to_padded_tensor"
        raise TypeError(f"{op.name}: `{name}` must be a dense tensor, got a nested one; {cure}")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        kind = str(tensor.dtype).removeprefix("torch.") if tensor.is_quantized else tensor.layout
        cure = "dequantize" if tensor.is_quantized else "to_dense"
        raise TypeError(f"{op.name}: `{name}` must be a dense tensor, got one of {kind}; call {cure}() first")
    if tensor.device.type not in ("cpu", "cuda", "meta"):
        raise TypeError(f"{op.name}: `{name}` must be on a CPU or CUDA device, got one on {tensor.device}")


_library = torch.library.Library("statescan", "DEF")


def _declare(tensors):
    return [f"Tensor? {name[:-1]}" if name.endswith("?") else f"Tensor {name}" for name in tensors]


def _with_defaults(op):
    """The arguments of a schema, and what adds those that the dispatcher leaves out: the last ones that have their defaults."""
    # tensors in front of the last one that must be there have no defaults
    count = 1 + max(at for at, name in enumerate(op.tensors) if not name.endswith("?"))
    leading = _declare(op.tensors[:count])
    optional = [(name, None) for name in _declare(op.tensors[count:])] + list(op.options)
    defaults = (None,) * count + tuple(default for _, default in optional)
    schema = leading + [f"{name}={default!r}" for name, default in optional]
    return schema, lambda arguments: arguments + defaults[len(arguments) :]


def _registered(name):
    """An operation of PyTorch's library."""
    return getattr(torch.ops.statescan, name).default


def _define(op, name, arguments, result, complete, compute, allocate):
    """Adds a pass. `compute` allocates and runs the kernel, `allocate` is all there is to do without data; both take the first
    argument, which is not one of the operation's, and a tuple of all the others, which `complete` makes. `compute` also takes the
    place of the call, and answers None if that is `_UNOBSERVED` and somebody has a say."""
    types, names = zip(*(argument.partition("=")[0].rsplit(maxsplit=1) for argument in arguments))

    gives = result != "()"

    @_gradients.unrecorded
    def kernel(first, *others):
        made = compute(first, complete(others), _place(first if isinstance(first, torch.Tensor) else others[0]))
        return made if gives else None

    def without_data(first, *others):
        # native functions check this themselves, and are not called here
        tensors = [(name, v) for name, v in zip(names, (first, *others)) if isinstance(v, torch.Tensor)]
        for name, tensor in tensors:
            if tensor.device != tensors[0][1].device:
                expected = tensors[0][1].device
                raise ValueError(f"{op.name}: `{name}` must be on {expected}, got one on {tensor.device}")
        return allocate(first, complete(others))

    _library.define(f"{name}({', '.join(arguments)}) -> {result}")
    torch.library.register_fake(f"statescan::{name}", without_data, lib=_library)
    for device in ("CPU", "CUDA"):
        _library.impl(name, kernel, device)
    return _pass(_registered(name), compute, _explained(op, names, types))


def _forward(op: Operation):
    number, native = op.number, _native.forward
    outputs, all_outputs = (True, True), (True, True) if op.saves is None else (True, True, True)
    some_go_with_others = any(result.beside for result in op.outputs)
    arguments, complete = _with_defaults(op)

    def allocate(save, arguments):
        results = op.results(_New, *arguments)
        return [*results, op.saved(_New, *arguments)] if save and op.saves is not None else [*results]

    def compute(save, arguments, place):
        if some_go_with_others:
            return native(number, arguments, op.made(arguments), place)
        return native(number, arguments, all_outputs if save else outputs, place)

    run = _define(op, f"{op.name}_forward", ["bool save", *arguments], "Tensor[]", complete, compute, allocate)
    _gradients.refuse_vmap(op, _registered(f"{op.name}_forward"), _library)
    return run


def _backward(op: Operation):
    number = op.number

    def allocate(needed, arguments):
        return [_New.like(tensor) for tensor, wanted in zip(arguments, needed) if wanted]

    def compute(needed, arguments, place):
        return _native.backward(number, arguments, tuple(needed), place)

    arguments = ["bool[] needed", *_declare(op.tensors), *(name for name, _ in op.options)]
    if op.saves is not None or op.keeps_result:
        arguments.append("Tensor saved")
    arguments += ["Tensor? grad_first", "Tensor? grad_second"]
    run = _define(op, f"{op.name}_backward", arguments, "Tensor[]", tuple, compute, allocate)
    _gradients.map_cotangents(op, _registered(f"{op.name}_backward"), _library)
    return run


def _step(op: Operation):
    number = op.number
    arguments, complete = _with_defaults(op)

    def allocate(state, arguments):
        return op.result(_New, *arguments)

    def compute(state, arguments, place):
        made = _native.update(number, arguments, (state, True), place)
        if made is None:
            return None
        if not state.is_inference():
            increment_version(state)
        return made[0]

    run = _define(op, op.name, [f"Tensor(a!) {op.state}", *arguments], "Tensor", complete, compute, allocate)
    _gradients.refuse_vmap(op, _registered(op.name), _library)
    _gradients.dispatch_step(op, _registered(op.name), _library)
    return run


_FORWARD = {op.name: _forward(op) for op in OPERATIONS}
_BACKWARD = {op.name: _backward(op) for op in OPERATIONS}


def _out(op: Operation):
    """The pass that writes what it is given first: results, or the state of a step and its result."""
    number, native = op.number, _native.forward if op.state is None else _native.update
    arguments, complete = _with_defaults(op)
    first, second = [op.state, op.outputs[0].name] if op.state else [result.name for result in op.outputs]
    optional = "" if op.state else "?"

    def compute(first, arguments, place):
        written = (first, arguments[0])
        if native(number, arguments[1:], written, place) is None:
            return None
        for tensor in written:
            if tensor is not None and not tensor.is_inference():
                increment_version(tensor)
        return ()

    schema = [f"Tensor(a!) {first}", f"Tensor(b!){optional} {second}", *arguments]
    run = _define(
        op, f"{op.name}_out", schema, "()", lambda all: (all[0], *complete(all[1:])), compute, lambda first, arguments: None
    )
    _gradients.refuse_vmap(op, _registered(f"{op.name}_out"), _library)
    _gradients.refuse_out(op, _registered(f"{op.name}_out"), _library)
    return run


def _with_gradient(op: Operation):
    function = _gradients.differentiable(op, _FORWARD[op.name], _BACKWARD[op.name])
    _, complete = _with_defaults(op)

    def chosen(save, *arguments):
        return save, function, complete(arguments)

    _gradients.dispatch(_registered(f"{op.name}_forward"), _library, chosen)
    return function


_WITH_GRADIENT = {op.name: _with_gradient(op) for op in OPERATIONS}
_STEP = {op.name: _step(op) for op in (*STEPS, *POOLED, *SLOTTED)}
_OUT = {op.name: _out(op) for op in (*OPERATIONS, *STEPS, *POOLED, *SLOTTED)}


def _requires_grad(tensors):
    if forward_ad._current_level >= 0 or (is_dynamo_compiling() and _are_functorch_transforms_active()):
        # a recorded call refuses the tangents that a kernel would lose; the compiler does not say whether a transform wants a
        # gradient by its argument
        return True
    if is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def recorded(function: Any, forward: Any, tensors: Any, options: Any) -> Any:
    """Runs a function with its gradient."""
    if is_dynamo_compiling() or _are_functorch_transforms_active():
        return tuple(forward(True, tensors + options))[:2]
    return function.apply(*tensors, *options)


def _write(op, written, arguments):
    """Runs the pass that writes tensors of the caller's."""
    first, second = written
    run = _OUT[op.name]
    if is_dynamo_compiling() or not _requires_grad((*written, *arguments[: len(op.tensors)])):
        run(first, (second, *arguments))
    else:
        # the dispatcher's refuses to be recorded
        run.dispatched(first, (second, *arguments))


def call(op: Any, tensors: Any, options: Any, context: Any = None, out: Any = None) -> Any:
    """Runs an operation, over the ranks of a context if there is one, and records it if a gradient may be asked for."""
    if out is not None:
        results = op.room(_New, tensors + options, out)
        _write(op, results, tensors + options)
        return results
    forward = (_FORWARD if context is None else context.forward)[op.name]
    if _requires_grad(tensors):
        with_gradient = _WITH_GRADIENT if context is None else context.with_gradient
        return recorded(with_gradient[op.name], forward, tensors, options)
    return tuple(forward(False, tensors + options))


class _Replaced(torch.autograd.Function):
    """The values of the second tensor, with the gradient of the first one."""

    @staticmethod
    def forward(plain, exact):
        return exact.view_as(exact)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def by_steps(op: Any, scan: Any, tensors: Any, options: Any) -> Any:
    """Runs a scan of one token after another, which changes states; its gradient is that of the operation."""
    with torch.no_grad():
        _, state = op.room(_New, (*tensors, *options), (tensors[0], None))
        state[...] = 0 if tensors[op.initial] is None else tensors[op.initial]
        exact = scan(tensors, state, torch.arange(state.shape[0], device=state.device))
    if not _requires_grad(tensors):
        return exact
    plain = call(op, tensors, options)
    return tuple(_Replaced.apply(*both) for both in zip(plain, exact))


def step(op: Any, state: Any, tensors: Any, options: Any, out: Any = None) -> Any:
    """Runs a step."""
    arguments = tensors + options
    if out is not None:
        _write(op, (state, *out), arguments)
        return out[0]
    run = _STEP[op.name]
    if is_dynamo_compiling() or not _requires_grad((state, *tensors)):
        return run(state, arguments)
    # the dispatcher's refuses to be differentiated
    return run.dispatched(state, arguments)
