"""What layers have alike: caches, directions of time, a block, and groups of parameters."""

import numpy
import pytest
import torch

import statescan
from statescan import nn
from statescan.compat.mamba2_simple import Mamba2Simple

WIDTH = 12
LAYERS = {
    "Mamba": lambda **options: nn.Mamba(WIDTH, d_state=4, **options),
    "Mamba2": lambda **options: nn.Mamba2(WIDTH, d_state=4, headdim=6, **options),
    "S5": lambda **options: nn.S5(WIDTH, 4, **options),
    "S5Block": lambda **options: nn.S5Block(WIDTH, 4, **options),
}
ALL = {**LAYERS, "Mamba2Simple": lambda **options: Mamba2Simple(WIDTH, d_state=4, headdim=6, **options)}
each_layer = pytest.mark.parametrize("name", ALL)


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def made(name, **options):
    torch.manual_seed(0)
    return ALL[name](**options)


@each_layer
@torch.no_grad()
def test_caches_go_on(name):
    layer, x = made(name), torch.randn(3, 11, WIDTH)
    cache = layer.cache(3)
    parts = [layer(part, cache) for part in x.split([1, 5, 1, 1, 3], dim=1)]
    close(torch.cat(parts, 1), layer(x))
    assert cache.steps == 11 and repr(cache) == "<cache of 3 sequences behind 11 steps>"
    cache.reset()
    close(layer(x, cache), layer(x))


@each_layer
@torch.no_grad()
def test_a_cache_of_another_batch(name):
    layer = made(name)
    with pytest.raises(ValueError, match="`cache` must have states of 2 sequences, got 3"):
        layer(torch.randn(2, 4, WIDTH), layer.cache(3))


@torch.no_grad()
def test_a_cache_of_packed_sequences():
    layer, x = made("Mamba2"), torch.randn(1, 12, WIDTH)
    cache = layer.cache(2)
    y = layer(x[:, :9], cache, cu_seqlens=torch.tensor([0, 4, 9]))
    close(y, torch.cat([layer(x[:, :4]), layer(x[:, 4:9])], 1))
    more = torch.randn(2, 1, WIDTH)
    close(layer(more, cache)[1:], layer(torch.cat([x[:, 4:9], more[1:]], 1))[:, -1:])


@pytest.mark.parametrize("name", ["Mamba", "Mamba2", "S5"])
def test_directions(name):
    x = torch.randn(2, 9, WIDTH)
    plain, backwards, both = made(name), made(name, reverse=True), made(name, bidirectional=True)
    assert backwards.state_dict().keys() == plain.state_dict().keys()
    other = plain(x.flip(1)).flip(1)
    close(backwards(x), other)
    close(both(x), plain(x) + other)
    for layer, word in ((backwards, "reverse"), (both, "bidirectional")):
        with pytest.raises(ValueError, match=f"{name}: a cache does not go with `{word}`"):
            layer.cache(2)


def test_directions_of_packed_sequences():
    x, index = torch.randn(1, 9, WIDTH), torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2]], dtype=torch.int32)
    both, expected = made("Mamba2", bidirectional=True), []
    for start, end in ((0, 3), (3, 7), (7, 9)):
        expected.append(both(x[:, start:end]))
    close(both(x, seq_idx=index), torch.cat(expected, 1))
    close(both(x, cu_seqlens=torch.tensor([0, 3, 7, 9])), torch.cat(expected, 1))


def test_times_of_the_other_direction():
    """The time between two steps is the same from either side."""
    layer, x = made("S5", reverse=True), torch.randn(1, 3, WIDTH)
    # a step as far away as this is forgotten
    far = torch.tensor([[1.0, 1.0, 1e6]])
    close(layer(x, far)[:, :2], layer(x[:, :2]))
    with pytest.raises(ValueError, match="S5: `lengths` does not go with `reverse`"):
        layer(x, lengths=torch.tensor([2]))


def test_the_block_of_s5():
    block, x = made("S5Block", dropout=0.5), torch.randn(2, 7, WIDTH)
    y = torch.nn.functional.gelu(block.s5(block.norm(x)))
    close(block.eval()(x), x + y * torch.sigmoid(block.gate(y)))
    assert not torch.equal(block.train()(x), block(x))


def test_groups_of_parameters():
    model = torch.nn.Sequential(*(made(name) for name in LAYERS), torch.nn.Linear(WIDTH, 2))
    frozen = model[0].in_proj.weight.requires_grad_(False)
    groups = nn.parameter_groups(model, lr=1e-2, weight_decay=0.1, scan_lr=1e-4)
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(1e-2, 0.1), (1e-2, 0.0), (1e-4, 0.0)]
    names = {parameter: name for name, parameter in model.named_parameters()}
    matrices, vectors, scans = ({names[parameter] for parameter in group["params"]} for group in groups)
    assert scans == {"0.A_log", "0.dt_proj.bias", "1.A_log", "1.dt_bias", "2.A", "2.log_dt", "3.s5.A", "3.s5.log_dt"}
    assert {"0.D", "0.conv1d.bias", "1.norm.weight", "3.norm.bias", "4.bias"} <= vectors
    assert {"0.out_proj.weight", "2.B", "4.weight"} <= matrices
    assert matrices | vectors | scans | {names[frozen]} == set(names.values())
    torch.optim.AdamW(groups).step()
    (only,) = nn.parameter_groups(torch.nn.Linear(2, 2, bias=False), lr=1.0)
    assert (len(only["params"]), only["lr"], only["weight_decay"]) == (1, 1.0, 0.01)


def ssd_tensors(convert, groups):
    torch.manual_seed(0)
    batch, seqlen, nheads, headdim, dstate = 2, 6, 4, 3, 5
    maps = (batch, seqlen, groups, dstate) if groups else (batch, seqlen, dstate)
    tensors = {
        "x": torch.randn(batch, seqlen, nheads, headdim),
        "dt": torch.rand(batch, seqlen, nheads),
        "A": -torch.rand(nheads),
        "B": torch.randn(maps),
        "C": torch.randn(maps),
        "D": torch.randn(nheads),
        "z": torch.randn(batch, seqlen, nheads, headdim),
        "dt_bias": torch.randn(nheads),
        "dt_a": torch.rand(batch, seqlen, nheads),
    }
    return {name: convert(tensor.numpy()) for name, tensor in tensors.items()}


@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("framework", ["torch", "numpy", "jax"])
def test_a_step_of_ssd(framework, groups):
    convert = {"torch": torch.from_numpy, "numpy": lambda array: array}.get(framework)
    convert = convert or pytest.importorskip("jax", reason="JAX is not installed").numpy.asarray
    given = ssd_tensors(convert, groups)
    options = {"dt_softplus": True, "dt_limit": (0.1, 1.0)}
    expected, final = statescan.ssd(**given, **options)
    _, state = statescan.ssd(**{name: t[:, :-1] if t.ndim > 1 else t for name, t in given.items()}, **options)
    step = {name: t[:, -1] if t.ndim > 1 else t for name, t in given.items()}
    y = statescan.ssd_update(state, **step, **options)
    if framework == "jax":
        y, state = y
    for got, wanted in ((y, expected[:, -1]), (state, final)):
        close(*(torch.tensor(numpy.asarray(tensor)) for tensor in (got, wanted)))


def test_what_a_step_of_ssd_refuses():
    given = {name: t[:, 0] if t.ndim > 1 else t for name, t in ssd_tensors(torch.from_numpy, None).items()}
    state = torch.zeros(2, 4, 3, 5)
    for name, wrong, words in [
        (
            "dt",
            torch.zeros(2, 4, 1),
            r"`dt` must have shape \(batch, nheads\), got \(2, 4, 1\); the state has shape \(2, 4, 3, 5\)",
        ),
        ("A", torch.zeros(4, 5), r"`A` must have shape \(nheads,\), got \(4, 5\)"),
        ("D", torch.zeros(3), r"`D` must have shape \(nheads,\) or \(nheads, headdim\), got \(3,\)"),
        ("x", torch.zeros(2, 3, 4), r"`x` must have shape \(batch, nheads, headdim\), got \(2, 3, 4\)"),
    ]:
        with pytest.raises(ValueError, match=f"ssd_update: {words}"):
            statescan.ssd_update(state, **{**given, name: wrong})
    with pytest.raises(ValueError, match="ssd_update: `state` must have shape"):
        statescan.ssd_update(state[0], **given)
    with pytest.raises(TypeError, match="ssd_update: `B` must be of the same kind as `state`, got ndarray"):
        statescan.ssd_update(state, **{**given, "B": given["B"].numpy()})
