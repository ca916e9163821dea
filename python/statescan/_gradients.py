"""PyTorch: gradients of the operations, and the transforms of functions that they take part in.

An operation has first derivatives in reverse mode, also under `torch.func.grad`, `vjp` and `jacrev`, which maps a backward pass
over cotangents. Second derivatives, derivatives in forward mode and `vmap` are refused.

A recorded call is an `autograd.Function`. Where others have a say in it, a compiler or a transform, the dispatcher makes it one:
passes in PyTorch's library know their gradients, and nobody looks into Python's part.
"""

import torch
from torch import is_grad_enabled
from torch._C import _after_autograd_keyset, _any_requires_grad, _AutoDispatchBelowAutograd
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.compiler import is_dynamo_compiling

from ._operations import Operation


def differentiable(op: Operation, forward, backward):
    """The operation with its gradient: an `autograd.Function`. Its `dispatched` is the same on one level of transforms, for
    `dispatch`; it gives what it saves behind its results."""
    tensors, differentiable, keeps_result, adds = len(op.tensors), op.differentiable, op.keeps_result, op.adds
    nothing = (None,) * (tensors + len(op.options) - differentiable)
    twice = f"{op.name} has no second derivative: its gradient, taken with create_graph=True, cannot be differentiated"

    def save(ctx, arguments, first, saved, total=None):
        kept = list(arguments[:tensors])
        if keeps_result:
            saved = [first, *saved]
        ctx.added_to = None
        if total is not None and adds is not None and total.dtype == torch.float32 and kept[0].dtype != torch.float64:
            # the sum has all that the gradient needs of either
            ctx.added_to, kept[0], kept[adds] = kept[0].dtype, total, None
        ctx.save_for_backward(*kept, *saved)
        ctx.options = arguments[tensors:]
        ctx.set_materialize_grads(False)

    def both(results):
        # one that goes with an argument is not made without that
        return results if len(results) > 1 else (*results, None)

    def compute(ctx, *arguments):
        first, second, *saved = both(forward(True, arguments))
        save(ctx, arguments, first, saved, second)
        return first, second

    def differentiate(ctx, grad_first, grad_second):
        saved = ctx.saved_tensors
        needed = asked = ctx.needs_input_grad[:differentiable]
        if grad_first is None and grad_second is None:
            return (None,) * differentiable + nothing
        if ctx.added_to is not None:
            needed = tuple(at != adds and (wanted or at == 0 and asked[adds]) for at, wanted in enumerate(asked))
        arguments = (*saved[:tensors], *ctx.options, *saved[tensors:], grad_first, grad_second)
        if is_dynamo_compiling() or not (is_grad_enabled() or forward_ad._current_level >= 0):
            found = backward(needed, arguments)
        else:
            # a graph of the gradient is recorded
            with torch.no_grad():
                found = backward(needed, arguments)
            found = NoGradient.apply(twice, len(found), *found, *saved[:differentiable], grad_first, grad_second)
        found = iter(found)
        found = [next(found) if wanted else None for wanted in needed]
        if ctx.added_to is not None:
            by_sum = found[0]
            found[0], found[adds] = by_sum.to(ctx.added_to) if asked[0] else None, by_sum if asked[adds] else None
        return tuple(found) + nothing

    def compute_dispatched(ctx, *arguments):
        # this level is done with: what maps the call, say, comes next
        with _AutoDispatchBelowAutograd():
            first, second, *saved = both(forward(True, arguments))
        save(ctx, arguments, first, saved, second)
        ctx.mark_non_differentiable(*saved)
        return first, second, *saved

    def differentiate_dispatched(ctx, grad_first, grad_second, *_):
        return differentiate(ctx, grad_first, grad_second)

    def refuse_forward_mode(ctx, *tangents):
        raise RuntimeError(f"{op.name} {_NO_FORWARD_MODE}")

    dispatched = {
        "forward": staticmethod(compute_dispatched),
        "backward": staticmethod(differentiate_dispatched),
        "jvp": staticmethod(refuse_forward_mode),
    }
    plain = {
        "forward": staticmethod(compute),
        "backward": staticmethod(differentiate),
        "jvp": staticmethod(refuse_forward_mode),
        "dispatched": type(op.name, (_SingleLevelFunction,), dispatched),
    }
    return type(op.name, (torch.autograd.Function,), plain)


def unrecorded(kernel):
    """A kernel of PyTorch's library whose own calls nobody records: tracers of gradients call kernels where gradients are on."""

    def run(*arguments):
        with _AutoDispatchBelowAutograd():
            return kernel(*arguments)

    return run


def _below(registered, keyset, arguments):
    """A pass of PyTorch's library without its gradient."""
    with _AutoDispatchBelowAutograd():
        return registered.redispatch(keyset & _after_autograd_keyset, *arguments)


def _is_recorded(arguments):
    # tangents are not looked for: a function that has any refuses them
    return forward_ad._current_level >= 0 or (is_grad_enabled() and _any_requires_grad(*arguments))


def dispatch(registered, library, chosen):
    """Gives a forward pass of PyTorch's library its gradient. `chosen` makes of its arguments whether a gradient is asked for,
    what `differentiable` has made, and what that takes."""

    def run(keyset, *arguments):
        save, function, taken = chosen(*arguments)
        if not _is_recorded(taken):
            return _below(registered, keyset, arguments)
        with enable_single_level_autograd_function():
            first, second, *saved = function.dispatched.apply(*taken)
        # a program exported or recorded of inputs without gradients has a call that saves nothing, and may be given others
        return [result for result in (first, second, *(saved if save else ())) if result is not None]

    library.impl(registered, run, "Autograd", with_keyset=True)


def dispatch_step(op: Operation, registered, library):
    """Lets a step of PyTorch's library refuse to be differentiated."""
    words = f"{op.name} has no gradient: it changes its state in place; use the scan for training"

    def run(keyset, *arguments):
        result = _below(registered, keyset, arguments)
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        if not _is_recorded(tensors):
            return result
        with enable_single_level_autograd_function():
            return _NoGradientOfLevel.apply(words, 1, result, *tensors)[0]

    library.impl(registered, run, "Autograd", with_keyset=True)


def refuse_out(op: Operation, registered, library):
    """Lets a pass of PyTorch's library that writes tensors of the caller's refuse to be recorded."""

    def run(keyset, *arguments):
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        if _is_recorded(tensors):
            words = "`out` excludes gradients, and a tensor of the call requires them: call it under torch.no_grad()"
            raise RuntimeError(f"{op.name}: {words}")
        return _below(registered, keyset, arguments)

    library.impl(registered, run, "Autograd", with_keyset=True)


_NO_FORWARD_MODE = "has no derivatives in forward mode (jvp, jacfwd): use those in reverse mode"
_NO_VMAP = "does not go under vmap: put the mapped axis into the batch"


class _Refusal:
    """Passes results on, and refuses to be differentiated. What they were computed from is behind it: a gradient by any of that
    fails, where it would silently be without these results."""

    @staticmethod
    def forward(words, count, *results_and_inputs):
        return tuple(result.detach() for result in results_and_inputs[:count])

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.words = inputs[0]

    @staticmethod
    def backward(ctx, *gradients):
        raise RuntimeError(ctx.words)

    @staticmethod
    def jvp(ctx, *tangents):
        raise RuntimeError(ctx.words)


class NoGradient(_Refusal, torch.autograd.Function):
    generate_vmap_rule = True


class _NoGradientOfLevel(_Refusal, _SingleLevelFunction):
    """No gradient, on one level of transforms."""


def refuse_vmap(op: Operation, registered, library):
    """Says what to do in the place of a call of PyTorch's library under `vmap`."""

    def refuse(*arguments):
        raise RuntimeError(f"{op.name} {_NO_VMAP}")

    torch.library.register_vmap(registered, refuse, lib=library)
    library.impl(registered, refuse, "Batched")


def map_cotangents(op: Operation, registered, library):
    """Lets a backward pass of PyTorch's library go over many cotangents at once, its last two arguments, one after another."""

    def one_by_one(info, in_dims, *arguments):
        *given, first, second = arguments
        *dims, first_dim, second_dim = in_dims
        # the first argument says which gradients are wanted
        if any(dim is not None for dim in dims[1:]):
            raise RuntimeError(f"{op.name} {_NO_VMAP}")

        def run(choose):
            chosen = (t if dim is None else choose(t, dim) for t, dim in ((first, first_dim), (second, second_dim)))
            return registered(*given, *chosen)

        found = [run(lambda t, dim, at=at: t.select(dim, at)) for at in range(info.batch_size)]
        # without a cotangent one pass says what shapes gradients have
        found = found or [run(lambda t, dim: t.sum(dim))]
        stacked = [torch.stack(parts)[: info.batch_size] for parts in zip(*found)]
        return stacked, [0] * len(stacked)

    def refuse(*arguments):
        words = "does not go over cotangents with is_grads_batched or vectorize=True: use torch.func.jacrev"
        raise RuntimeError(f"{op.name} {words}")

    torch.library.register_vmap(registered, one_by_one, lib=library)
    library.impl(registered, refuse, "Batched")
