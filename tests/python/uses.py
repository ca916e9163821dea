"""What PyTorch offers to do with a function of tensors by name, for `test_uses.py`, which puts one inside another."""

import copy
import io
import pickle
import threading

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from cases import results


def loss_of(out):
    """A combination of all numbers in the results, with weights that differ."""
    total = 0
    for tensor in out:
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        total = total + (real * torch.linspace(0.5, 1.5, real.numel(), dtype=real.dtype, device=real.device).view_as(real)).sum()
    return total


# Uses that leave results as they are: each makes a function of one from leaves to a tuple of tensors.


def compiled(**options):
    return lambda function: torch.compile(function, backend="aot_eager", **options)


def checkpointed(use_reentrant):
    def use(function):
        def call(leaves):
            made = checkpoint(lambda *given: function(dict(zip(leaves, given))), *leaves.values(), use_reentrant=use_reentrant)
            return results(made)

        return call

    return use


def within(context):
    def use(function):
        def call(leaves):
            with context():
                return function(leaves)

        return call

    return use


def copied(copy):
    """Tensors come from a copy, which carries gradients to those that were given."""

    def use(function):
        def call(leaves):
            kept = copy({name: leaf.detach() for name, leaf in leaves.items()})
            return function({name: kept[name] + (leaf - leaf.detach()) for name, leaf in leaves.items()})

        return call

    return use


def saved_and_loaded(leaves):
    file = io.BytesIO()
    torch.save(leaves, file)
    file.seek(0)
    return torch.load(file)


def in_a_thread(function):
    def call(leaves):
        found, graded = [], torch.is_grad_enabled()

        def run():
            try:
                with torch.set_grad_enabled(graded):
                    found.append(function(leaves))
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]

    return call


class of_default_type:
    def __enter__(self):
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if self.before == torch.float32 else torch.float32)

    def __exit__(self, *error):
        torch.set_default_dtype(self.before)


def exported(strict):
    def use(function):
        class Module(torch.nn.Module):
            def forward(self, leaves):
                return function(leaves)

        def call(leaves):
            given = {name: leaf.detach() for name, leaf in leaves.items()}
            return torch.export.export(Module(), (given,), strict=strict).module()(leaves)

        return call

    return use


def recorded(function):
    return lambda leaves: make_fx(function)(leaves)(leaves)


KEEPING = {
    "compiled": compiled(),
    "one graph": compiled(fullgraph=True),
    "one graph of any size": compiled(fullgraph=True, dynamic=True),
    "checkpoint": checkpointed(False),
    "reentrant checkpoint": checkpointed(True),
    "hooks that copy": within(lambda: torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda kept: kept)),
    "hooks that pickle": within(lambda: torch.autograd.graph.saved_tensors_hooks(pickle.dumps, pickle.loads)),
    "saved on the CPU": within(torch.autograd.graph.save_on_cpu),
    "autocast": within(lambda: torch.autocast("cpu", torch.bfloat16)),
    "default type": within(of_default_type),
    "deepcopy": copied(copy.deepcopy),
    "pickled": copied(lambda leaves: pickle.loads(pickle.dumps(leaves))),
    "saved and loaded": copied(saved_and_loaded),
    "thread": in_a_thread,
    "exported": exported(False),
    "strictly exported": exported(True),
    "recorded": recorded,
}

# Uses that differentiate, or do not: each makes a function from leaves to a tuple of tensors, one for each leaf, or the results.


def backward(again):
    def use(function):
        def call(leaves):
            own = {name: leaf.detach().requires_grad_() for name, leaf in leaves.items()}
            loss = loss_of(function(own))
            for _ in range(again):
                torch.autograd.grad(loss, list(own.values()), retain_graph=True, allow_unused=True)
            return torch.autograd.grad(loss, list(own.values()), materialize_grads=True)

        return call

    return use


def gradient(function):
    return lambda leaves: tuple(torch.func.grad(lambda leaves: loss_of(function(leaves)))(leaves).values())


def pulled_back(function):
    def call(leaves):
        value, pull = torch.func.vjp(lambda leaves: loss_of(function(leaves)), leaves)
        return tuple(pull(torch.ones_like(value))[0].values())

    return call


def jacobian(function):
    """Of one number, so that it is the gradient; PyTorch has none by complex numbers."""

    def call(leaves):
        real = {name: leaf for name, leaf in leaves.items() if not leaf.is_complex()}
        rows = torch.func.jacrev(lambda real: loss_of(function({**leaves, **real})).reshape(1))(real)
        return tuple(rows[name][0] if name in rows else torch.zeros(()) for name in leaves)

    return call


def without_data(function):
    """Results of tensors that have no data, of which shapes and types are compared."""

    def call(leaves):
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            return function({name: mode.from_tensor(leaf) for name, leaf in leaves.items()})

    return call


DERIVING = {
    "backward": backward(0),
    "retained graph": backward(1),
    "func.grad": gradient,
    "vjp": pulled_back,
    "jacrev": jacobian,
    "inference mode": within(torch.inference_mode),
    "no grad": within(torch.no_grad),
    "fake tensors": without_data,
    "results": lambda function: function,
}
ONLY_RESULTS = {"inference mode", "no grad", "fake tensors", "results"}
