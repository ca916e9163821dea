"""Linear attention with one decay a head against a plain loop in float64, and against that of its origin."""

import types

import pytest
import torch

import origins
from agreement import agree
from cases import CU_SEQLENS, Random
from statescan.compat import simple_gla

BATCH, SEQLEN, HEADS, WIDTH, VALUES = 2, 83, 4, 5, 3
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"))]


def tensors(batch=BATCH, groups=HEADS, decay="g", state=True):
    r = Random(20)
    made = {
        "q": r.real(batch, SEQLEN, groups, WIDTH),
        "k": r.real(batch, SEQLEN, groups, WIDTH),
        "v": r.real(batch, SEQLEN, HEADS, VALUES),
    }
    if "g" in decay.split():
        made["g"] = -r.step(batch, SEQLEN, HEADS)
    if "g_gamma" in decay.split():
        made["g_gamma"] = -r.step(HEADS)
    if state:
        made["initial_state"] = r.real(BATCH if batch > 1 else len(CU_SEQLENS) - 1, HEADS, WIDTH, VALUES)
    return made


def loop(q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, *, reverse=False, cu_seqlens=None):
    """Simple GLA, step by step."""
    heads, scale = v.shape[2], q.shape[-1] ** -0.5 if scale is None else scale
    q, k = (t.repeat_interleave(heads // t.shape[2], 2) for t in (q, k))
    logs = (0 if g is None else g) + (v.new_zeros(heads) if g_gamma is None else g_gamma)
    decay = logs.expand(v.shape[:3]).exp()
    bounds = [0, v.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    steps, states = {}, []
    for i, (start, end) in enumerate(zip(bounds, bounds[1:])):
        row = slice(None) if cu_seqlens is None else slice(i, i + 1)
        shape = (v.shape[0], heads, q.shape[-1], v.shape[-1])
        state = v.new_zeros(shape) if initial_state is None else initial_state[row]
        for t in reversed(range(start, end)) if reverse else range(start, end):
            state = decay[:, t, :, None, None] * state + k[:, t, :, :, None] * v[:, t, :, None]
            steps[t] = scale * torch.einsum("bhkv,bhk->bhv", state, q[:, t])
        states.append(state)
    return torch.stack([steps[t] for t in range(v.shape[1])], 1), torch.cat(states)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("decay", ["g", "g_gamma", "g g_gamma", ""])
def test_simple_gla(decay, packed, reverse):
    packing = {"cu_seqlens": CU_SEQLENS} if packed else {}
    given = tensors(batch=1 if packed else BATCH, decay=decay) | packing
    function = simple_gla.fused_recurrent_simple_gla
    agree(
        lambda **all: function(**all, output_final_state=True, reverse=reverse), lambda **all: loop(**all, reverse=reverse), given
    )
    if not reverse:
        agree(lambda **all: simple_gla.chunk_simple_gla(**all, output_final_state=True), loop, given)


@pytest.mark.parametrize("scale", [0.3, -2.0, 0.0])
def test_heads_of_values_share_keys(scale):
    given = tensors(groups=2, state=scale < 0)
    agree(
        lambda **all: simple_gla.chunk_simple_gla(**all, scale=scale, output_final_state=True),
        lambda **all: loop(**all, scale=scale),
        given,
    )


def test_states_with_values_first():
    given = tensors()
    y, state = simple_gla.chunk_simple_gla(**given, output_final_state=True)
    given["initial_state"] = given["initial_state"].mT
    for name in ("state_v_first", "transpose_state_layout"):
        y_of_other, other = simple_gla.fused_recurrent_simple_gla(**given, output_final_state=True, **{name: True})
        assert torch.equal(y_of_other, y) and torch.equal(other.mT, state)


@pytest.mark.parametrize("name", ["chunk", "fused_recurrent"])
def test_retention_and_lightning_attention(name):
    """Decays are those of the papers: arXiv 2307.08621, equation 8, and arXiv 2401.04658."""
    given = tensors(decay="")
    function = getattr(simple_gla, f"{name}_retention")
    gamma = torch.tensor([1 - 2.0**-n for n in (5, 6, 7, 8)], dtype=torch.float64).log()
    agree(lambda **all: function(**all, output_final_state=True), lambda **all: loop(**all, g_gamma=gamma), given)
    function = getattr(simple_gla, f"{name}_lightning_attn")
    gamma = -8 / 4 * (1 - 3 / 12) * torch.arange(4.0, dtype=torch.float64)
    agree(
        lambda **all: function(**all, layer_idx=3, num_layers=12, output_final_state=True),
        lambda **all: loop(**all, g_gamma=gamma),
        given,
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_types_and_devices(dtype, device):
    """Decays stay in f32, as fla has them; results have the type of values, the state f32."""
    given = {name: t.to(device, torch.float32 if name in ("g", "initial_state") else dtype) for name, t in tensors().items()}
    leaves = {name: t.requires_grad_() for name, t in given.items()}
    y, state = simple_gla.chunk_simple_gla(**leaves, output_final_state=True)
    assert (y.dtype, state.dtype, y.device.type) == (dtype, torch.float32, device)
    exact = {name: t.detach().double().cpu().requires_grad_() for name, t in given.items()}
    expected = loop(**exact)
    gradients = torch.autograd.grad((y.float().sum() + state.sum()), list(leaves.values()))
    of_exact = torch.autograd.grad(sum(t.sum() for t in expected), list(exact.values()))
    for got, wanted in zip((y, state, *gradients), (*expected, *of_exact)):
        bound = (0.02 if dtype == torch.bfloat16 else 1e-5) * wanted.abs().max()
        assert (got.cpu().double() - wanted).abs().max() <= bound


def test_as_the_origins_own_loop():
    sources = origins.sources()
    if "fla.ops.simple_gla.naive" not in sources:
        pytest.skip(f"there is no fla in {origins.FOLDER}: .ci/peers.sh fetches it")
    naive = types.ModuleType("naive")
    exec(sources["fla.ops.simple_gla.naive"][0], vars(naive))
    given = {name: tensor.float() for name, tensor in tensors().items()}
    y, state = simple_gla.chunk_simple_gla(**given, output_final_state=True)
    for expected in (naive.naive_recurrent_simple_gla, naive.naive_chunk_simple_gla):
        expected_y, expected_state = expected(**given, output_final_state=True)
        torch.testing.assert_close(y, expected_y, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(state, expected_state, rtol=1e-4, atol=1e-4)


def test_compiled():
    given = tensors()
    compiled = torch.compile(simple_gla.chunk_simple_gla, fullgraph=True, backend="aot_eager")
    for got, expected in zip(
        compiled(**given, output_final_state=True), simple_gla.chunk_simple_gla(**given, output_final_state=True)
    ):
        torch.testing.assert_close(got, expected)


def test_what_is_not_here():
    with pytest.raises(NotImplementedError, match="chunk_retention of statescan has no `head_first`"):
        simple_gla.chunk_retention(**tensors(decay=""), head_first=True)
