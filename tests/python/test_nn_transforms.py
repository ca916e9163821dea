"""Layers under what PyTorch does with modules: compilation, export, autocast, checkpoints."""

import math
import shutil

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from layers import BATCH, LAYERS, SEQLEN, WIDTH
from statescan import nn

ALL = {
    **LAYERS,
    "s5": lambda **more: nn.S5(WIDTH, 4, **more),
    "s5_pairs": lambda **more: nn.S5(WIDTH, 4, "bilinear", conj_sym=True, **more),
}


@pytest.fixture(params=ALL)
def layer(request):
    torch.manual_seed(4)
    return ALL[request.param]()


@pytest.fixture
def u():
    return torch.randn(BATCH, SEQLEN, WIDTH, generator=torch.Generator().manual_seed(5))


def outcome(run, layer, u):
    """The result, and gradients by the input and the weights, in float32."""
    u = u.detach().requires_grad_()
    y = run(u)
    weights = torch.linspace(-1, 1, y.numel()).view_as(y)
    gradients = torch.autograd.grad((y.float() * weights).sum(), [u, *layer.parameters()])
    assert all(gradient.dtype == of.dtype for gradient, of in zip(gradients, [u, *layer.parameters()]))
    return [y, *gradients]


def close(got, expected, tolerance):
    for one, other in zip(got, expected, strict=True):
        scale = other.float().abs().max().item()
        torch.testing.assert_close(one.float(), other.float(), rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(layer, u, backend):
    """In one graph, forward and backward; `backward` of `aot_eager` is compiled as well."""
    torch._dynamo.reset()
    close(outcome(torch.compile(layer, fullgraph=True, backend=backend), layer, u), outcome(layer, layer, u), 1e-5)


def test_compiled_by_inductor(u):
    """One layer of each kind: each takes seconds to compile."""
    for name in ("mamba", "mamba2", "s5"):
        torch._dynamo.reset()
        torch.manual_seed(4)
        layer = ALL[name]()
        close(outcome(torch.compile(layer, fullgraph=True), layer, u), outcome(layer, layer, u), 1e-4)


@pytest.mark.sampled(3)
def test_compiled_for_any_length(layer, u):
    """The graph of one length serves another one."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    program = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (SEQLEN, 7, 16):
        close(outcome(program, layer, u[:, :length]), outcome(layer, layer, u[:, :length]), 1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


def test_exported(layer, u):
    """For any batch and length, as a program that can be saved and loaded."""
    batch, seqlen = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("seqlen", min=8, max=4096)
    program = torch.export.export(layer.eval(), (u,), dynamic_shapes=({0: batch, 1: seqlen},))
    for given in (u, torch.cat([u, u], 1)[:1].repeat(3, 1, 1)):
        torch.testing.assert_close(program.module()(given), layer(given))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("strict", [False, True], ids=["traced", "strict"])
def test_exported_with_a_named_length(layer, u, strict):
    """From the shortest rows on, shorter than the filters, and with options that every format can have."""
    seqlen = torch.export.Dim("seqlen", min=2, max=500)
    with torch.no_grad():
        program = torch.export.export(layer.eval(), (u,), dynamic_shapes=({1: seqlen},), strict=strict)
        for length in (2, 300):
            given = u.repeat(1, 14, 1)[:, :length]
            torch.testing.assert_close(program.module()(given), layer(given))
    options = [value for node in program.graph.nodes for value in node.args if isinstance(value, float)]
    assert all(math.isfinite(value) for value in options)


@pytest.mark.sampled(0)
@pytest.mark.skipif(not shutil.which("g++"), reason="there is no compiler of C++")
def test_compiled_ahead_of_time(tmp_path):
    torch.manual_seed(4)
    layer, u = nn.Mamba2(WIDTH, d_state=8, headdim=4).eval(), torch.randn(1, 2, WIDTH)
    with torch.no_grad():
        program = torch.export.export(layer, (u,))
        path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "layer.pt2"))
        torch.testing.assert_close(torch._inductor.aoti_load_package(path)(u), layer(u))


def test_autocast(layer, u):
    """The result is of 16 bits, weights and their gradients are not, and both are near those of float32."""

    def cast(u):
        with torch.autocast("cpu", torch.bfloat16):
            return layer(u)

    got = outcome(cast, layer, u)
    # S5 has no projection that would make it one of 16 bits
    assert got[0].dtype == (torch.float32 if isinstance(layer, nn.S5) else torch.bfloat16)
    close(got, outcome(layer, layer, u), 0.06)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(layer, u, use_reentrant):
    """Computed again, with the same bits."""

    def again(u):
        return checkpoint(layer, u, use_reentrant=use_reentrant)

    def run(u):
        y = again(u)
        y.sum().backward()
        return [y.detach(), u.grad, *(p.grad for p in layer.parameters())]

    found = run(u.detach().requires_grad_())
    layer.zero_grad(set_to_none=True)
    v = u.detach().requires_grad_()
    y = layer(v)
    y.sum().backward()
    for one, other in zip(found, [y.detach(), v.grad, *(p.grad for p in layer.parameters())], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", LAYERS)
def test_compiled_steps(name):
    """Decoding in one graph, whose states change in place."""
    torch._dynamo.reset()
    layer = LAYERS[name]()
    states, others = (layer.allocate_inference_cache(BATCH, SEQLEN) for _ in range(2))
    program = torch.compile(layer.step, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for _ in range(3):
            token = torch.randn(BATCH, 1, WIDTH)
            torch.testing.assert_close(program(token, *states)[0], layer.step(token, *others)[0])
    for one, other in zip(states, others):
        torch.testing.assert_close(one, other)
