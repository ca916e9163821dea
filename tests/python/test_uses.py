"""Uses of operations, layers and stand-ins are drawn: what PyTorch offers, two or three at a time, one inside another.

Results and gradients are those of the plain call, or the refusal that the documentation has; a combination that fails for
operations of PyTorch, too, is skipped. `STATESCAN_USES=400 STATESCAN_USES_SEED=7` draws others, and more of them; the name of a
test has all that was drawn."""

import os
import random
import re

import pytest
import torch
import torch._functorch.aot_autograd
import torch._inductor.compile_fx  # the compiler, once for all processes
from torch.utils._python_dispatch import TorchDispatchMode

import test_second_derivatives as derivatives
from cases import CASES, results
from processes import server
from statescan._operations import OPERATIONS
from test_nn_transforms import ALL as LAYERS
from test_nn_transforms import BATCH, SEQLEN, WIDTH
from test_torch import small
from uses import DERIVING, KEEPING, ONLY_RESULTS

SEED, COUNT = int(os.environ.get("STATESCAN_USES_SEED", 0)), int(os.environ.get("STATESCAN_USES", 60))
# docs/python.md says that these are refused
REFUSALS = r"has no second derivative|has no derivatives in forward mode|does not go under vmap|records no gradients"


def of_case(name):
    case = small(name)
    return lambda leaves: case(**leaves), case.floats()


def of_drop_in(name):
    function, tensors, options = derivatives.drop_ins()[name]
    return lambda leaves: results(function(**leaves, **options)), tensors


def of_layer(name):
    torch.manual_seed(4)
    layer = LAYERS[name]().double()
    u = torch.randn(BATCH, SEQLEN, WIDTH, dtype=torch.float64)

    def call(leaves):
        return results(torch.func.functional_call(layer, {n: t for n, t in leaves.items() if n != "u"}, (leaves["u"],)))

    return call, {"u": u, **{n: t.detach() for n, t in layer.named_parameters()}}


SUBJECTS = {
    **{f"{CASES[name].op} ({name})": (of_case, name) for name in CASES},
    **{f"drop-in {name}": (of_drop_in, name) for name in derivatives.drop_ins()},
    **{f"layer {name}": (of_layer, name) for name in LAYERS},
}


class Called(TorchDispatchMode):
    """The names of what is called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.names.add(function.name())
        return function(*arguments, **options or {})


def of_pytorch(function, leaves, in_a_layer):
    """A function of the same tensors, with as many results, of PyTorch's operations alone, views among them; in a layer of
    PyTorch's if it stands for one. The last operation keeps its result for its gradient if one of the function's does."""
    with Called() as called:
        shapes = [tensor.shape for tensor in function(leaves)]
    keeps_result = any(f"statescan::{op.name}_forward" in called.names for op in OPERATIONS if op.keeps_result)

    def call(leaves):
        total = sum((leaf.unsqueeze(0) * leaf.conj()).real.mean() for leaf in leaves.values())
        return tuple((total.exp() if keeps_result else total.sin()) * torch.ones(shape, dtype=total.dtype) for shape in shapes)

    if not in_a_layer:
        return call

    class Layer(torch.nn.Module):
        def forward(self):
            made = call(dict(self.named_parameters()))
            return tuple(torch.nn.functional.linear(out.reshape(-1, 1), out.new_ones(1, 1)).view_as(out) for out in made)

    layer = Layer()
    for at, leaf in enumerate(leaves.values()):
        layer.register_parameter(str(at), torch.nn.Parameter(leaf))
    return lambda leaves: torch.func.functional_call(layer, {str(at): leaf for at, leaf in enumerate(leaves.values())})


def drawn():
    """Combinations: a subject, and uses from the inner to the outer, one of which says what is asked for."""
    choose, found = random.Random(SEED), {}
    while len(found) < COUNT:
        uses = choose.sample(list(KEEPING), choose.choice([1, 2]))
        asked = choose.choice(list(DERIVING))
        uses.insert(choose.randrange(len(uses) + 1), asked)
        subject = choose.choice(list(SUBJECTS))
        found[f"{subject}: {', in '.join(uses)}"] = subject, uses, asked
    return found


DRAWN = drawn()


def used(function, uses, leaves):
    torch._dynamo.reset()
    for name in uses:
        function = {**KEEPING, **DERIVING}[name](function)
    return function({name: leaf.clone() for name, leaf in leaves.items()})


def assert_kept(call, leaves, uses, asked):
    """The uses, one inside another, leave what the plain call gives."""
    # autocast leaves wider types alone
    tolerance = 0.06 if "autocast" in uses else 1e-9
    if "autocast" in uses:
        leaves = {name: leaf.to(torch.complex64 if leaf.is_complex() else torch.float32) for name, leaf in leaves.items()}
    plain = used(call, ["results" if asked in ONLY_RESULTS else "backward"], leaves)
    for i, (one, other) in enumerate(zip(used(call, uses, leaves), plain, strict=True)):
        # PyTorch has no Jacobians by complex numbers
        if asked == "jacrev" and other.is_complex():
            continue
        assert one.shape == other.shape, i
        if asked != "fake tensors":
            error, largest = (one.to(other.dtype) - other).abs().max().item(), other.abs().max().item()
            assert error <= tolerance * max(1, largest), f"{i}: {error:.2e} of {largest:.2e}"


def run(name, is_ours, answer):
    """Sends why a draw, of ours or of PyTorch's operations, is not as it should be; None where it is."""
    subject, uses, asked = DRAWN[name]
    make, of = SUBJECTS[subject]
    call, leaves = make(of)
    if not is_ours:
        call = of_pytorch(call, leaves, make is of_layer)
    try:
        assert_kept(call, leaves, uses, asked)
    except Exception as error:
        answer.send(None if is_ours and re.search(REFUSALS, str(error)) else f"{type(error).__name__}: {error}")
    else:
        answer.send(None)


def apart(name, is_ours):
    """The answer of a process of its own: combinations that PyTorch fails at leave transforms and modes behind."""
    here, there = (processes := server()).Pipe()
    process = processes.Process(target=run, args=(name, is_ours, there))
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        return "the process ended without an answer"
    finally:
        process.join()


@pytest.mark.parametrize("name", DRAWN)
def test_drawn(name):
    if words := apart(name, True):
        if of_its_own := apart(name, False):
            pytest.skip(f"so are operations of PyTorch: {of_its_own[:80]}")
        pytest.fail(f"seed {SEED}: {words}")
