"""What layers cost: the operations that they run, the rows that they keep, and calls of PyTorch."""

import pytest
import torch

import statescan
from layers import BATCH, LAYERS, MAMBA2, SEQLEN, WIDTH
from statescan import nn

# counts of PyTorch's operations, views and allocations too, forwards without gradients and backwards
MOST_CALLS = {
    "mamba": (40, 66),
    "mamba_bias": (42, 72),
    "mamba2": (24, 36),
    "mamba2_unit": (28, 46),
    "mamba2_gate": (26, 42),
}


def test_a_layer_is_one_call(monkeypatch):
    """So is its pass back; a step is two."""
    calls = []

    def count(module, name, called=None):
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, **more: calls.append(called or args[0]) or function(*args, **more))

    for name in ("forward", "backward"):
        count(statescan._native, f"layer_{name}")
        count(statescan._native, name, name)
    for name in ("causal_conv1d", "selective_scan", "ssd", "selective_state_update", "causal_conv1d_update"):
        count(statescan.functions, name, name)
    nn.Mamba(WIDTH)(torch.randn(1, 3, WIDTH)).sum().backward()
    nn.Mamba2(**MAMBA2)(torch.randn(1, 3, WIDTH)).sum().backward()
    layer = nn.Mamba(WIDTH)
    layer.step(torch.randn(1, 1, WIDTH), *layer.allocate_inference_cache(1, 1))
    assert calls == [*["mamba_inner"] * 2, *["mamba2_inner"] * 2, "causal_conv1d_update", "selective_state_update"]


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
