"""Layers of every type, with and without data: a sequence, its steps and its parts agree, and no device is asked what it cannot
answer."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from layers import LAYERS, WIDTH, cache
from statescan import nn

TYPES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
COMPLEX = {torch.complex64: 1e-5, torch.complex128: 1e-12}
ALL = {
    **{name: lambda make=make, **more: make(layer_idx=0, **more) for name, make in LAYERS.items()},
    "s5": lambda **more: nn.S5(WIDTH, 8, **more),
    "s5_pairs": lambda **more: nn.S5(WIDTH, 8, "bilinear", conj_sym=True, **more),
}
each_layer = pytest.mark.parametrize("name", ALL)
each_type = pytest.mark.parametrize("dtype", TYPES, ids=str)


def make(name, **more):
    torch.manual_seed(1)
    return ALL[name](**more)


def inputs(dtype, device="cpu"):
    return torch.randn(2, 13, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).to(device, dtype)


def by_steps(layer, x):
    states, found = layer.allocate_inference_cache(2, 13), []
    for t in range(x.shape[1]):
        made = layer.step(x[:, t : t + 1], states) if isinstance(layer, nn.S5) else layer.step(x[:, t : t + 1], *states)
        found.append(made[0])
    return torch.cat(found, 1)


def by_parts(layer, x):
    found, memory = [], layer.allocate_inference_cache(2, 13) if isinstance(layer, nn.S5) else cache()
    for part in x.split([5, 1, 7], 1):
        if isinstance(layer, nn.S5):
            found.append(layer(part, inference_cache=memory))
        else:
            found.append(layer(part, inference_params=memory))
            memory.seqlen_offset += part.shape[1]
    return torch.cat(found, 1)


@torch.no_grad()
def assert_alike(layer, x, tolerance):
    whole = layer(x)
    assert whole.dtype == x.dtype and whole.device == x.device and whole.shape == x.shape
    for way in (by_steps, by_parts):
        found = way(layer, x)
        assert (found.dtype, found.device, found.shape) == (whole.dtype, whole.device, whole.shape)
        if not whole.is_meta:
            torch.testing.assert_close(found, whole, rtol=0, atol=tolerance * whole.abs().max().item())


@each_layer
@each_type
@pytest.mark.parametrize("way", ["constructed", "converted", "default"])
def test_types(name, dtype, way):
    layer = make(name, **({"dtype": dtype} if way == "constructed" else {}))
    if way == "default":
        torch.set_default_dtype(dtype)
        try:
            layer = make(name)
        finally:
            torch.set_default_dtype(torch.float32)
    elif way == "converted":
        layer = layer.to(dtype)
    if isinstance(layer, nn.S5) and way == "constructed":
        # its parameters have one type, as the origin's
        dtype = torch.float32
    x = inputs(dtype)
    assert_alike(layer, x, TYPES[dtype])
    layer(x).float().square().sum().backward()
    assert all(parameter.grad.dtype == parameter.dtype and parameter.grad.any() for parameter in layer.parameters())


@pytest.mark.sampled(8)
@each_layer
@each_type
def test_without_data(name, dtype):
    layer = make(name).to(dtype)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x = mode.from_tensor(inputs(dtype))
        with torch.no_grad():
            assert layer(x).shape == by_steps(layer, x).shape == by_parts(layer, x).shape == x.shape
        layer(x).sum().backward()
    layer = make(name, device="meta").to(dtype)
    x = inputs(dtype, "meta")
    assert_alike(layer, x, 0)
    layer(x).sum().backward()
    assert all(parameter.grad.is_meta and parameter.grad.dtype == parameter.dtype for parameter in layer.parameters())


@pytest.mark.parametrize("name", ["s5", "s5_pairs"])
@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_inputs(name, dtype):
    layer = make(name).to(torch.float64 if dtype == torch.complex128 else torch.float32)
    assert_alike(layer, inputs(dtype) * (1 + 1j), COMPLEX[dtype])


@each_layer
@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.filterwarnings("ignore:Complex modules")
def test_complex_layers_are_refused(name, dtype):
    kind = type(make(name)).__name__
    word = str(dtype).removeprefix("torch.")
    with pytest.raises(TypeError, match=f"^{kind}: `.*` must be of a floating-point type, got {word}"):
        make(name).to(dtype)(inputs(dtype))
    if kind != "S5":
        with pytest.raises(TypeError, match=f"^{kind}: `dtype` must be of a floating-point type, got {word}"):
            make(name, dtype=dtype)


def test_caches_are_as_wide_as_they_must_be():
    layer = make("s5")
    assert layer.allocate_inference_cache(2, 9)["ssm_state"].dtype == torch.complex64
    assert layer.allocate_inference_cache(2, 9, torch.float64)["ssm_state"].dtype == torch.complex128
    assert layer.allocate_inference_cache(2, 9, torch.bfloat16)["ssm_state"].dtype == torch.complex64
    assert layer.double().allocate_inference_cache(2, 9)["ssm_state"].dtype == torch.complex128
