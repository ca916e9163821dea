"""What is saved for gradients: backward passes read it, whoever else holds it, and nothing in it is left to chance."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import statescan
import test_second_derivatives as derivatives
from cases import CASES, results
from layers import BATCH, LAYERS, SEQLEN, WIDTH
from statescan import _native, nn
from statescan._operations import BY_NAME
from statescan.torch import _New
from test_torch import arguments_in_order, each_case, small


def copy_of(tensor):
    """The bytes of a tensor, to compare them where they are not numbers, too."""
    return tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def assert_only_reads(call, leaves):
    """Runs the last backward pass of a call, the one that keeps nothing, and compares what it was given."""
    kept = []

    def pack(tensor):
        kept.append((tensor.detach(), copy_of(tensor)))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        made = [result for result in results(call()) if result.requires_grad]
    assert kept
    cotangents = [torch.randn_like(result) for result in made]
    kept += [(tensor.detach(), copy_of(tensor)) for tensor in (*cotangents, *leaves)]
    torch.autograd.grad(made, leaves, cotangents, allow_unused=True)
    assert all(torch.equal(copy_of(tensor), before) for tensor, before in kept)


def leaves_of(tensors):
    return {name: t.detach().clone().requires_grad_() for name, t in tensors.items() if t.is_floating_point() or t.is_complex()}


@each_case
def test_operations_read(name):
    leaves = leaves_of(CASES[name].tensors)
    assert_only_reads(lambda: CASES[name](**leaves), list(leaves.values()))


@pytest.mark.parametrize("name", derivatives.drop_ins())
def test_drop_ins_read(name):
    function, tensors, options = derivatives.drop_ins()[name]
    leaves = leaves_of(tensors)
    assert_only_reads(lambda: function(**leaves, **options), list(leaves.values()))


@pytest.mark.parametrize("name", [*LAYERS, "s5"])
def test_layers_read(name):
    layer = nn.S5(WIDTH, 8) if name == "s5" else LAYERS[name]()
    x = torch.randn(BATCH, SEQLEN, WIDTH, requires_grad=True)
    assert_only_reads(lambda: layer(x), [x, *layer.parameters()])


def test_two_passes_that_share_what_they_save():
    """Hooks may keep one copy of equal tensors."""
    layer, x = LAYERS["mamba"](), torch.randn(BATCH, SEQLEN, WIDTH)
    parameters, kept = list(layer.parameters()), []

    def pack(tensor):
        same = next((other for other in kept if other.shape == tensor.shape and torch.equal(other, tensor)), None)
        if same is None:
            kept.append(same := tensor)
        return same

    expected = torch.autograd.grad(layer(x).square().sum(), parameters)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        losses = [layer(x).square().sum() for _ in range(2)]
    for loss in losses:
        for got, wanted in zip(torch.autograd.grad(loss, parameters), expected, strict=True):
            assert torch.equal(got, wanted)


@each_case
@pytest.mark.parametrize("length", ["long", "short"])
def test_saved_states_are_written(name, length):
    """All of the room for them, where there are fewer than it has room for, or none, too."""
    case = small(name) if length == "short" else CASES[name]
    operation = BY_NAME[case.op.removesuffix("_fn")]
    if operation.saves is None:
        pytest.skip("this operation saves no states")
    _, *arguments = arguments_in_order(operation.name, case)
    room = operation.saved(_New, *arguments)
    found = []
    for value in (float("nan"), 7.0):
        _native.forward(operation.number, tuple(arguments), (True, True, room.fill_(value)), (-1, 1, None, False))
        found.append(copy_of(room))
    assert torch.equal(*found)


class Calls(TorchDispatchMode):
    """Calls of our passes in PyTorch's library."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "statescan":
            self.seen.append((function, args))
        return function(*args, **(kwargs or {}))


def norm(x):
    return statescan.norm(x, torch.ones(WIDTH, requires_grad=True), z=x.flip(0), residual=x.flip(1), groups=2)[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*LAYERS, "norm"])
def test_opcheck_of_what_layers_run(name):
    """Forward passes, saved and not, and backward passes; other tests have those of the other operations."""
    call = norm if name == "norm" else LAYERS[name]()
    with Calls() as calls:
        call(torch.randn(BATCH, SEQLEN, WIDTH, requires_grad=True)).sum().backward()
    assert [function.__name__.removesuffix(".default").rpartition("_")[2] for function, _ in calls.seen] == [
        "forward",
        "backward",
    ]
    (forward, arguments), (backward, others) = calls.seen
    for save in (False, True):
        torch.library.opcheck(forward, (save, *arguments[1:]))
    torch.library.opcheck(backward, others)
