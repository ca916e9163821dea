"""What layers cost: the operations that they run, the rows that they keep, and calls of PyTorch."""

import pytest
import torch

import statescan
from layers import BATCH, LAYERS, MAMBA2, SEQLEN, WIDTH
from statescan import nn

# of PyTorch's operations, views and allocations too, forwards without gradients and backwards
MOST_CALLS = {
    "mamba": (46, 93),
    "mamba_bias": (48, 99),
    "mamba2": (32, 54),
    "mamba2_unit": (48, 96),
    "mamba2_gate": (32, 56),
}


def test_a_layer_runs_the_operations(monkeypatch):
    """The forward pass of a layer is few kernels, and its step too."""
    calls, forward = [], statescan._native.forward
    names = {op.number: op.name for op in statescan._operations.OPERATIONS}

    def counted(name):
        function = getattr(statescan.functions, name)
        return lambda *args, **options: calls.append(name) or function(*args, **options)

    monkeypatch.setattr(statescan._native, "forward", lambda number, *rest: calls.append(names[number]) or forward(number, *rest))
    for name in ("causal_conv1d", "selective_scan", "ssd", "selective_state_update", "causal_conv1d_update"):
        monkeypatch.setattr(statescan.functions, name, counted(name))
    nn.Mamba(WIDTH)(torch.randn(1, 3, WIDTH))
    nn.Mamba2(**MAMBA2)(torch.randn(1, 3, WIDTH))
    layer = nn.Mamba(WIDTH)
    layer.step(torch.randn(1, 1, WIDTH), *layer.allocate_inference_cache(1, 1))
    mamba, mamba2 = ["causal_conv1d", "selective_scan"], ["causal_conv1d", "ssd", "norm"]
    assert calls == [*mamba, *mamba2, "causal_conv1d_update", "selective_state_update"]


def kept_rows(layer, x):
    """The numbers of channels of what is kept for gradients and has a row for each step."""
    kept = {}

    def keep(tensor):
        if tensor.shape[-2:-1] == (SEQLEN,) and not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.data_ptr()] = tensor.shape[-1]
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = layer(x)
    return sorted(kept.values()), y


@pytest.mark.parametrize(
    "name, expected",
    # the input, what is projected, and the scan's result: nothing of the convolution, the maps and the norm
    [
        ("mamba", lambda layer: [layer.d_inner, 2 * layer.d_inner]),
        ("mamba2", lambda layer: [layer.d_ssm, layer.in_proj.out_features]),
        ("mamba2_gate", lambda layer: [layer.d_ssm, layer.in_proj.out_features]),
    ],
)
def test_gradients_need_few_rows(name, expected):
    layer = LAYERS[name]()
    kept, _ = kept_rows(layer, torch.randn(BATCH, SEQLEN, WIDTH, requires_grad=True))
    assert [width for width in kept if width != WIDTH] == expected(layer)


@pytest.mark.parametrize("name", LAYERS)
def test_calls_of_pytorch_are_counted(name):
    """A small layer takes as long as its calls: their number says what that costs, and does not depend on the machine."""
    layer, x = LAYERS[name](), torch.randn(BATCH, SEQLEN, WIDTH, requires_grad=True)

    def count(call):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            call()
        return sum(event.name.startswith("aten::") for event in profiler.events())

    with torch.no_grad():
        layer(x)
        forward = count(lambda: layer(x))
    y = layer(x)
    backward = count(lambda: torch.autograd.grad(y, [x, *layer.parameters()], torch.ones_like(y)))
    assert forward <= MOST_CALLS[name][0] and backward <= MOST_CALLS[name][1], (forward, backward)
