"""Layers are functions of their modules as they stand: exchanged, adapted, hooked, computed, packed, kept elsewhere.

The expectation calls every module and puts plain loops in between. A whole sequence, a prompt in parts and steps must all be it.
"""

import copy
import datetime
from types import SimpleNamespace

import pytest
import torch
from torch import distributed
from torch.nn.functional import silu
from torch.nn.utils import parametrizations, parametrize, prune, weight_norm

from statescan import nn
from statescan.compat import mamba_ssm
from statescan.compat.references import loops as reference
from statescan.nn import mamba, mamba2

BATCH, SEQLEN, WIDTH = 2, 11, 12
MAMBA2 = {"d_model": WIDTH, "d_state": 4, "headdim": 4}
LAYERS = {
    "mamba": lambda **more: nn.Mamba(WIDTH, d_state=4, bias=True, **more),
    "mamba2": lambda **more: nn.Mamba2(**MAMBA2, ngroups=2, bias=True, **more),
    "mamba2_unit": lambda **more: nn.Mamba2(**MAMBA2, d_ssm=16, D_has_hdim=True, norm_before_gate=True, **more),
    "mamba2_gate": lambda **more: nn.Mamba2(**MAMBA2, rmsnorm=False, conv_bias=False, **more),
}
MODULES = {
    "mamba": ["in_proj", "conv1d", "x_proj", "dt_proj", "out_proj"],
    "mamba2": ["in_proj", "conv1d", "norm", "out_proj"],
    "mamba2_unit": ["conv1d", "norm", "out_proj"],
    "mamba2_gate": ["conv1d", "out_proj"],
}
EACH = [(layer, module) for layer, modules in MODULES.items() for module in modules]
LINEAR = [(layer, module) for layer, module in EACH if module.endswith("proj")]


def by_modules(layer, u):
    """The layer on (batch, seqlen, d_model), every module being called."""
    A = -torch.exp(layer.A_log)
    if isinstance(layer, nn.Mamba):
        x, z = layer.in_proj(u).transpose(1, 2).chunk(2, 1)
        x = silu(layer.conv1d(x)[..., : u.shape[1]])
        dt, B, C = layer.x_proj(x.transpose(1, 2)).split([layer.dt_rank, layer.d_state, layer.d_state], -1)
        maps = (m.transpose(1, 2) for m in (B, C))
        y, _ = reference.selective_scan(x, layer.dt_proj(dt).transpose(1, 2), A, *maps, layer.D, z=z, dt_softplus=True)
        return layer.out_proj(y.transpose(1, 2))
    heads, groups = (layer.nheads, layer.headdim), (layer.ngroups, layer.d_state)
    unit, maps = layer.d_inner - layer.d_ssm, layer.ngroups * layer.d_state
    gate, value, z, xBC, dt = layer.in_proj(u).split([unit, unit, layer.d_ssm, layer.d_ssm + 2 * maps, layer.nheads], -1)
    xBC = silu(layer.conv1d(xBC.transpose(1, 2))[..., : u.shape[1]]).transpose(1, 2)
    x, B, C = xBC.split([layer.d_ssm, maps, maps], -1)
    x, B, C = x.unflatten(-1, heads), B.unflatten(-1, groups), C.unflatten(-1, groups)
    D = layer.D.unflatten(0, heads) if layer.D_has_hdim else layer.D
    y, _ = reference.ssd(x, dt, A, B, C, D=D, dt_bias=layer.dt_bias, dt_softplus=True)
    y = y.flatten(2)
    y = layer.norm(y, z) if layer.rmsnorm else y * silu(z)
    return layer.out_proj(torch.cat([silu(gate) * value, y], -1))


def loss_and_gradients(layer, run, u):
    """The loss, and gradients by everything that can have one; those that get none are None."""
    wanted = [p for p in layer.parameters() if p.requires_grad]
    y = run(u)
    weights = torch.linspace(-1, 1, y.numel()).view_as(y)
    return y.detach(), torch.autograd.grad((y * weights).sum(), wanted, allow_unused=True)


def in_parts(layer, u, cuts):
    """The layer with a cache, which it is given in parts."""
    params, parts = SimpleNamespace(key_value_memory_dict={}, seqlen_offset=0), []
    with torch.no_grad():
        for part in u.split(cuts, dim=1):
            parts.append(layer(part, inference_params=params))
            params.seqlen_offset += part.shape[1]
    return torch.cat(parts, 1)


def check(layer):
    """The layer is the function that its modules are, in training, in a prompt and in steps."""
    u = torch.randn(BATCH, SEQLEN, WIDTH, dtype=torch.float64)
    expected, gradients = loss_and_gradients(layer, lambda u: by_modules(layer, u), u)
    got, found = loss_and_gradients(layer, layer, u)
    torch.testing.assert_close(got, expected)
    for one, other in zip(found, gradients):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)
    for cuts in ([SEQLEN], [2, 1, 5, 1, 1, 1]):
        torch.testing.assert_close(in_parts(layer, u, cuts), expected)
    return expected


class Adapted(torch.nn.Linear):
    """A projection with something beside its weight."""

    def __init__(self, module):
        super().__init__(module.in_features, module.out_features, module.bias is not None)
        self.load_state_dict(module.state_dict())
        self.delta = torch.nn.Parameter(torch.randn_like(self.weight) / 4)
        self.double()

    def forward(self, x):
        return super().forward(x) + x @ self.delta.T


class Scaled(torch.nn.Module):
    """Any module, and a number behind it."""

    def __init__(self, module):
        super().__init__()
        self.module, self.scale = module, torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, *args):
        return self.module(*args) * self.scale


class Squared(torch.nn.Module):
    def forward(self, weight):
        return weight.square() + weight


def exchange(layer, name):
    module = getattr(layer, name)
    setattr(layer, name, Adapted(module) if name.endswith("proj") else Scaled(module))


def hook(layer, name):
    getattr(layer, name).register_forward_hook(lambda module, args, result: result * 1.5)


def hook_before(layer, name):
    getattr(layer, name).register_forward_pre_hook(lambda module, args: tuple(arg * 1.5 for arg in args))


def hook_backwards(layer, name):
    def change(module, of_inputs, of_results):
        return tuple(None if gradient is None else gradient * 1.5 for gradient in of_inputs)

    getattr(layer, name).register_full_backward_hook(change)


def replace_forward(layer, name):
    module = getattr(layer, name)
    own = module.forward
    module.forward = lambda *args: own(*args) * 1.5


def parametrized(layer, name):
    parametrize.register_parametrization(getattr(layer, name), "weight", Squared())


def normed(layer, name):
    module = parametrizations.weight_norm(getattr(layer, name))
    torch.nn.init.uniform_(module.parametrizations.weight.original0)


def normed_by_hooks(layer, name):
    torch.nn.init.uniform_(weight_norm(getattr(layer, name)).weight_g)


ALTERATIONS = [exchange, hook, hook_before, hook_backwards, replace_forward, parametrized]


@pytest.fixture
def make(request):
    torch.manual_seed(4)

    def made(name):
        layer = LAYERS[name](layer_idx=0).double()
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
        return layer

    return made


@pytest.mark.parametrize("layer", LAYERS)
def test_plain_modules(make, layer):
    check(make(layer))


@pytest.mark.parametrize("alter", ALTERATIONS, ids=lambda alter: alter.__name__)
@pytest.mark.parametrize("layer,name", EACH)
def test_altered_modules(make, layer, name, alter):
    layer = make(layer)
    plain = copy.deepcopy(layer)
    alter(layer, name)
    u = torch.randn(BATCH, SEQLEN, WIDTH, dtype=torch.float64)
    check(layer)
    if alter is hook_backwards:
        u.requires_grad_()
        altered, other = (torch.autograd.grad(one(u).square().sum(), u)[0] for one in (layer, plain))
        assert not torch.allclose(altered, other)
    else:
        assert not torch.allclose(layer(u), plain(u), atol=1e-3)


@pytest.mark.parametrize("layer,name", [(layer, name) for layer, name in EACH if name != "norm" and "_" not in layer])
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("norm", [normed, normed_by_hooks], ids=lambda norm: norm.__name__)
def test_weight_norm(make, layer, name, norm):
    layer = make(layer)
    norm(layer, name)
    check(layer)


@pytest.mark.parametrize("layer,name", EACH)
def test_pruned_weights_with_a_mask_that_changes(make, layer, name):
    layer = make(layer)
    module = getattr(layer, name)
    prune.random_unstructured(module, "weight", amount=0.5)
    first = check(layer)
    module.weight_mask.copy_(1 - module.weight_mask)
    torch.manual_seed(5)
    assert not torch.allclose(check(layer), first)


@pytest.mark.parametrize("layer", LAYERS)
def test_hooks_of_all_modules(make, layer):
    layer = make(layer)
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, result: None if module is layer else result * 1.5
    )
    try:
        check(layer)
    finally:
        handle.remove()


@pytest.mark.parametrize("layer", LAYERS)
def test_packed_weights(make, layer):
    """`quantize_dynamic`'s modules have no weights as tensors, and scales of the rows that they are given together."""
    layer = make(layer).float().eval()
    with torch.no_grad():
        packed = torch.ao.quantization.quantize_dynamic(layer, {torch.nn.Linear}, dtype=torch.qint8)
        u = torch.randn(BATCH, SEQLEN, WIDTH, dtype=torch.float32)
        expected = by_modules(packed, u)
        torch.testing.assert_close(packed(u), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(in_parts(packed, u, [SEQLEN]), expected, rtol=1e-4, atol=1e-4)
        assert (in_parts(packed, u, [1] * SEQLEN) - expected).abs().max() < 0.1 * expected.abs().max()
        assert not torch.equal(expected, layer(u))


@pytest.mark.parametrize("layer", LAYERS)
def test_offloaded_weights(make, layer):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    layer = make(layer)
    u = torch.randn(BATCH, SEQLEN, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        expected = layer(u)
        accelerate.cpu_offload(layer, "cpu")
        assert layer.conv1d.weight.is_meta
        torch.testing.assert_close(layer(u), expected)
        for cuts in ([SEQLEN], [2, 1, 5, 1, 2]):
            torch.testing.assert_close(in_parts(layer, u, cuts), expected)


@pytest.mark.parametrize("layer,name", [*LINEAR, ("mamba", "conv1d"), ("mamba2", "conv1d")])
def test_low_rank_adapters(make, layer, name):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    layer = make(layer)
    # a convolution's adapter wants as many ranks as groups
    rank = layer.conv1d.groups if name == "conv1d" else 2
    adapted = peft.inject_adapter_in_model(peft.LoraConfig(r=rank, target_modules=[name], init_lora_weights=False), layer)
    check(adapted)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    """A group of this process alone."""
    if not distributed.is_available():
        pytest.skip("PyTorch was built without distributed")
    store = tmp_path_factory.mktemp("group") / "store"
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=0, world_size=1, timeout=datetime.timedelta(seconds=60)
    )
    yield distributed.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.mark.parametrize("layer,name", EACH)
def test_sharded_modules(make, mesh, layer, name):
    from torch.distributed.fsdp import fully_shard

    layer = make(layer)
    plain = copy.deepcopy(layer)
    fully_shard(getattr(layer, name), mesh=mesh)
    u = torch.randn(BATCH, SEQLEN, WIDTH, dtype=torch.float64)
    expected = plain(u)
    torch.testing.assert_close(layer(u), expected)
    torch.testing.assert_close(in_parts(layer, u, [2, 1, 5, 1, 2]), expected)
    layer(u).sum().backward()
    plain(u).sum().backward()
    for (key, one), other in zip(layer.named_parameters(), plain.parameters()):
        gradient = one.grad.full_tensor() if hasattr(one.grad, "full_tensor") else one.grad
        torch.testing.assert_close(gradient, other.grad, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("layer", [name for name in LAYERS if name != "mamba"])
def test_packed_sequences(make, layer):
    """An exchanged convolution sees no other sequence, and what came before each."""
    layer = make(layer)
    exchange(layer, "conv1d")
    u, bounds = torch.randn(1, 23, WIDTH, dtype=torch.float64), [0, 2, 2, 3, 17, 23]
    parts = [u[:, start:end] for start, end in zip(bounds, bounds[1:]) if end > start]
    cu_seqlens = torch.tensor(bounds, dtype=torch.int32)
    seq_idx = torch.tensor([[0] * 2 + [1] + [2] * 14 + [7] * 6], dtype=torch.int32)
    expected = torch.cat([by_modules(layer, part) for part in parts], 1)
    torch.testing.assert_close(layer(u, seq_idx=seq_idx), expected)
    torch.testing.assert_close(layer(u, cu_seqlens=cu_seqlens), expected)
    two = torch.cat([seq_idx, torch.zeros_like(seq_idx)])
    torch.testing.assert_close(layer(u.expand(2, -1, -1), seq_idx=two), torch.cat([expected, by_modules(layer, u)]))
    with torch.no_grad():
        params = SimpleNamespace(key_value_memory_dict={}, seqlen_offset=0)
        torch.testing.assert_close(layer(u, cu_seqlens=cu_seqlens, inference_params=params), expected)
        params.seqlen_offset = 1
        more, more_bounds = torch.randn(1, 6, WIDTH, dtype=torch.float64), [0, 1, 2, 2, 5, 6]
        got = layer(more, cu_seqlens=torch.tensor(more_bounds), inference_params=params)
        for i in range(5):
            whole = torch.cat([u[:, bounds[i] : bounds[i + 1]], more[:, more_bounds[i] : more_bounds[i + 1]]], 1)
            after = by_modules(layer, whole)[:, bounds[i + 1] - bounds[i] :] if whole.shape[1] > 0 else whole
            torch.testing.assert_close(got[:, more_bounds[i] : more_bounds[i + 1]], after)


def test_padding_among_packed_sequences(make):
    """Steps with a negative number are padding for any convolution."""
    layer = make("mamba2")
    seq_idx = torch.tensor([[-1, -1, 0, 0, 0, -1, 1, 1, 1, 1, -1]], dtype=torch.int32)
    u = torch.randn(1, SEQLEN, WIDTH, dtype=torch.float64)
    expected = layer(u, seq_idx=seq_idx)
    layer.conv1d.register_forward_hook(lambda module, args, result: result)
    torch.testing.assert_close(layer(u, seq_idx=seq_idx), expected)


def test_a_convolution_that_does_not_fit_is_refused(make):
    for options in ({"padding": 0}, {"padding": 3, "kernel_size": 7}, {"padding": 6, "dilation": 2}, {"padding": 2}):
        layer = make("mamba2")
        dim = layer.conv1d.in_channels
        layer.conv1d = torch.nn.Conv1d(dim, dim, **{"kernel_size": 4, "groups": dim, **options}).double()
        with pytest.raises(ValueError, match="Mamba2: `conv1d` must pad with the zeros before a row and see `d_conv`, 4, steps"):
            layer(torch.randn(1, 9, WIDTH, dtype=torch.float64))
    layer = make("mamba2")
    layer.conv1d = torch.nn.Conv1d(dim, dim, 3, padding=2).double()
    check(layer)


@pytest.mark.parametrize("norm_before_gate", [False, True])
@pytest.mark.parametrize("group_size", [None, 8, 24])
def test_a_norm_of_other_order_or_groups(make, group_size, norm_before_gate):
    layer = make("mamba2")
    layer.norm = mamba_ssm.RMSNorm(24, 1e-3, group_size, norm_before_gate, dtype=torch.float64)
    check(layer)


@pytest.mark.parametrize("layer", LAYERS)
def test_only_plain_modules_are_passed_by(make, monkeypatch, layer):
    """One call has the weights of all of them, but for the last projection's, and the layer's own switch turns it off."""
    calls = []

    def counted(module, name):
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, **options: calls.append(name) or function(*args, **options))

    counted(mamba, "mamba_as_one")
    counted(mamba2, "mamba2_as_one")
    name, u = layer, torch.randn(1, 3, WIDTH, dtype=torch.float64)
    switch = "use_fast_path" if name == "mamba" else "use_mem_eff_path"
    layer = make(name)
    expected = layer(u)
    assert len(calls) == 1
    setattr(layer, switch, False)
    torch.testing.assert_close(layer(u), expected)
    setattr(layer, switch, True)
    for module in MODULES[name][1:]:
        handle = getattr(layer, module).register_forward_hook(lambda module, args, result: None)
        calls.clear()
        torch.testing.assert_close(layer(u), expected)
        assert len(calls) == (module == "out_proj"), module
        handle.remove()
    calls.clear()
    layer(u)
    assert len(calls) == 1
