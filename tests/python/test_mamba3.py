"""Mamba-3 against a plain loop in float64, step by step as its paper has it, with every gradient; its layer, too."""

import math

import pytest
import torch
from torch.nn.functional import rms_norm, silu, softplus

from agreement import agree
from cases import Random
from statescan import nn
from statescan.derived import mamba3_siso_combined, mamba3_siso_step

BATCH, SEQLEN, HEADS, WIDTH, VALUES, ANGLES = 2, 37, 4, 6, 5, 2
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"))]
BOUNDS = torch.tensor([0, 3, 3, 21, 37])
STATES = ("angle", "state", "key", "value")


def turn(x, angle):
    """Pairs of neighbours as complex numbers, times exp(i angle)."""
    count = angle.shape[-1]
    turned = torch.view_as_complex(x[..., : 2 * count].unflatten(-1, (count, 2)).contiguous())
    turned = torch.view_as_real(turned * torch.exp(1j * angle)).flatten(-2)
    return torch.cat([turned, x[..., 2 * count :]], -1)


def loop(Q, K, V, ADT, DT, Trap, Q_bias, K_bias, Angles, D=None, Z=None, states=None):
    """A batch of sequences from the same first step to the same last one."""
    heads, groups = V.shape[2], Q.shape[2]
    if states is None:
        shapes = (Angles.shape[-1:], (V.shape[-1], Q.shape[-1]), Q.shape[-1:], V.shape[-1:])
        states = tuple(V.new_zeros(V.shape[0], heads, *shape) for shape in shapes)
    angle, h, key, value = states
    ys = []
    for t in range(V.shape[1]):
        a, dt, own = ADT[..., t].exp(), DT[..., t], Trap[..., t].sigmoid()
        angle = torch.remainder(angle + math.pi * Angles[:, t].tanh() * dt[..., None], 2 * math.pi)
        q, k = (x[:, t].repeat_interleave(heads // groups, 1) + bias for x, bias in ((Q, Q_bias), (K, K_bias)))
        q, k, v = turn(q, angle), turn(k, angle), V[:, t]

        def outer(value, key):
            return value[..., None] * key[..., None, :]

        h = a[..., None, None] * (h + (dt * (1 - own))[..., None, None] * outer(value, key))
        h = h + (dt * own)[..., None, None] * outer(v, k)
        y = (h @ q[..., None]).squeeze(-1) + (0 if D is None else D[:, None] * v)
        ys.append(y if Z is None else y * silu(Z[:, t]))
        key, value = k, v
    return torch.stack(ys, 1), angle, h, key, value


def of_states(function):
    """A function of the four states by name, which `agree` gives gradients."""

    def call(**given):
        states = tuple(given.pop(name) for name in STATES if name in given) or None
        return function(**given, states=states)

    return call


ours = of_states(lambda states=None, **given: mamba3_siso_combined(**given, Input_States=states, return_final_states=True))


@of_states
def plain(states=None, cu_seqlens=None, **given):
    if cu_seqlens is None:
        return loop(**given, states=states)
    bounds, parts = cu_seqlens.tolist(), []
    for i, (start, end) in enumerate(zip(bounds, bounds[1:])):
        own = None if states is None else tuple(state[i : i + 1] for state in states)
        in_time = ("Q", "K", "V", "Angles", "Z")
        cut = {
            n: t[:, start:end] if n in in_time else t[..., start:end] if n in ("ADT", "DT", "Trap") else t
            for n, t in given.items()
        }
        if start < end:
            parts.append(loop(**cut, states=own))
        else:
            parts.append((given["V"][:, :0], *own))
    return (torch.cat([part[0] for part in parts], 1), *(torch.cat(state) for state in list(zip(*parts))[1:]))


def tensors(batch=BATCH, groups=2, more=(), sequences=BATCH):
    r = Random(50)
    dt = r.step(batch, HEADS, SEQLEN)
    made = {
        "Q": r.real(batch, SEQLEN, groups, WIDTH),
        "K": r.real(batch, SEQLEN, groups, WIDTH),
        "V": r.real(batch, SEQLEN, HEADS, VALUES),
        "ADT": -r.step(batch, HEADS, SEQLEN),
        "DT": dt,
        "Trap": r.real(batch, HEADS, SEQLEN),
        "Q_bias": r.real(HEADS, WIDTH),
        "K_bias": r.real(HEADS, WIDTH),
        "Angles": r.real(batch, SEQLEN, HEADS, ANGLES),
    }
    optional = {
        "D": r.real(HEADS),
        "Z": r.real(batch, SEQLEN, HEADS, VALUES),
        "angle": r.real(sequences, HEADS, ANGLES),
        "state": r.real(sequences, HEADS, VALUES, WIDTH),
        "key": r.real(sequences, HEADS, WIDTH),
        "value": r.real(sequences, HEADS, VALUES),
    }
    return made | {name: optional[name] for name in more}


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("more", [(), ("D",), ("Z",), ("D", "Z", *STATES)], ids=str)
def test_results_and_gradients(more, groups):
    agree(ours, plain, tensors(groups=groups, more=more))


def test_packed():
    """Also with a sequence without steps, whose states stay."""
    agree(ours, plain, {**tensors(1, more=("D", *STATES), sequences=4), "cu_seqlens": BOUNDS})
    bounds = torch.tensor([0, 3, 21, 37])
    agree(ours, plain, {**tensors(1, more=("D",)), "cu_seqlens": bounds})


def test_one_call_is_several():
    given = tensors(more=("D", "Z"))
    whole = ours(**given)
    first, second = (
        {n: cut(t, 1 if n in ("Q", "K", "V", "Angles", "Z") else -1) if t.dim() > 2 else t for n, t in given.items()}
        for cut in (lambda t, axis: t.narrow(axis, 0, 20), lambda t, axis: t.narrow(axis, 20, 17))
    )
    y, *states = ours(**first)
    rest, *ends = mamba3_siso_combined(**second, Input_States=states, return_final_states=True)
    for got, expected in zip((torch.cat([y, rest], 1), *ends), whole):
        torch.testing.assert_close(got, expected)
    # no steps leave the states as they are
    none = {n: t.narrow(1 if n in ("Q", "K", "V", "Angles", "Z") else -1, 0, 0) if t.dim() > 2 else t for n, t in given.items()}
    y, *after = mamba3_siso_combined(**none, Input_States=ends, return_final_states=True)
    assert y.shape[1] == 0 and all(torch.equal(one, other) for one, other in zip(after, ends))


def test_steps_are_the_scan():
    given = tensors(more=("D", "Z"))
    y, *ends = ours(**given)
    states, ys = [torch.zeros_like(end) for end in ends], []
    for t in range(SEQLEN):
        times = {n: given[n][..., t] for n in ("ADT", "DT", "Trap")}
        rest = {n: given[n][:, t] for n in ("Q", "K", "V", "Angles", "Z")}
        step, states = mamba3_siso_step(**times, **rest, **{n: given[n] for n in ("Q_bias", "K_bias", "D")}, Input_States=states)
        ys.append(step)
    torch.testing.assert_close(torch.stack(ys, 1), y)
    for state, end in zip(states, ends):
        torch.testing.assert_close(state, end)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_types_and_devices(dtype, device):
    """Steps, decays, biases, angles and the state are f32 beside inputs in bf16."""
    exact = tensors(more=("D", "Z", *STATES))
    of_inputs = ("Q", "K", "V", "Trap", "Z", "key", "value")
    given = {n: t.to(device, dtype if n in of_inputs else torch.float32).requires_grad_() for n, t in exact.items()}
    exact = {n: t.detach().double().cpu().requires_grad_() for n, t in given.items()}
    results, expected = ours(**given), plain(**exact)
    assert [t.dtype for t in results] == [dtype, torch.float32, torch.float32, dtype, dtype]
    gradients, of_exact = (
        torch.autograd.grad(sum(t.sum().double() for t in found), list(leaves.values()))
        for found, leaves in ((results, given), (expected, exact))
    )
    for name, got, wanted in zip((*range(5), *given), (*results, *gradients), (*expected, *of_exact), strict=True):
        bound = (0.03 if dtype == torch.bfloat16 else 1e-5) * wanted.abs().max()
        assert (got.detach().cpu().double() - wanted).abs().max() <= bound, name


def test_long_angles():
    """Sums of angles in f32 keep their digits over many steps."""
    steps = 20_000
    given = {"V": torch.randn(1, steps, 1, 1), "Angles": torch.full((1, steps, 1, 1), 2.0), "DT": torch.full((1, 1, steps), 0.3)}
    maps = {"Q": torch.randn(1, steps, 1, 2), "K": torch.randn(1, steps, 1, 2)}
    times = {"ADT": -torch.ones(1, 1, steps), "Trap": torch.zeros(1, 1, steps)}
    bias = {"Q_bias": torch.zeros(1, 2), "K_bias": torch.zeros(1, 2)}
    _, angle, *_ = mamba3_siso_combined(**given, **maps, **times, **bias, return_final_states=True)
    rate = (math.pi * torch.tensor(2.0).tanh() * torch.tensor(0.3)).item()
    assert abs(angle.item() - (rate * steps) % (2 * math.pi)) < 1e-5


def test_compiled():
    given = tensors(more=("D", "Z"))
    compiled = torch.compile(mamba3_siso_combined, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(**given), mamba3_siso_combined(**given))


def test_what_does_not_fit():
    given = tensors(more=("D", "Z"))
    for name, wrong, words in (
        ("Trap", given["Trap"].transpose(1, 2), r"`Trap` must have shape \(2, 4, 37\), got \(2, 37, 4\)"),
        ("Q_bias", given["Q_bias"][:1], r"`Q_bias` must have shape \(4, 6\), got \(1, 6\)"),
        ("Angles", torch.zeros(BATCH, SEQLEN, HEADS, 4), "`Angles` must have at most 3 angles"),
        ("Q", given["Q"][:, :, [0, 1, 0]], r"`K` must have shape \(2, 37, 3, 6\), got \(2, 37, 2, 6\)"),
        ("Input_States", (given["V"],) * 4, r"`Input_States\[0\]` must have 3 axes, got \(2, 37, 4, 5\)"),
        ("cu_seqlens", BOUNDS, "`cu_seqlens` must stand beside a batch of 1, got 2"),
    ):
        with pytest.raises(ValueError, match=f"mamba3_siso_combined: {words}"):
            mamba3_siso_combined(**{**given, name: wrong})
    three = {name: given[name][:, :, [0, 1, 0]] for name in ("Q", "K")}
    with pytest.raises(ValueError, match="`Q` must have a number of groups that divides the 4 heads of V, got 3"):
        mamba3_siso_combined(**{**given, **three})


SIZES = {"d_model": 12, "d_state": 8, "headdim": 6, "ngroups": 2}
KINDS = [{}, {"rope_fraction": 1.0, "A_activation": "heavy_tail"}, {"is_outproj_norm": True}]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def made(kind):
    """A layer in f64 with weights that no default hides."""
    torch.manual_seed(0)
    layer = nn.Mamba3(**SIZES, **kind).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def by_loop(layer, u):
    """The layer as its paper has it."""
    H, P, N, G, S = layer.nheads, 6, 8, 2, layer.num_rope_angles
    z, x, B, C, dt, A, trap, angles = (u @ layer.in_proj.weight.T).split([24, 24, G * N, G * N, H, H, H, S], -1)
    B, C = (rms_norm(t.unflatten(-1, (G, N)), (N,), m.weight, 1e-5) for t, m in ((B, layer.B_norm), (C, layer.C_norm)))
    rate = softplus(A) if layer.A_activation == "softplus" else torch.where(A >= 0, 1 + A, 1 / (1 - A))
    dt = softplus(dt + layer.dt_bias)
    times = {"ADT": -rate.clamp(min=1e-4) * dt, "DT": dt, "Trap": trap}
    z = z.unflatten(-1, (H, P))
    y = loop(
        C,
        B,
        x.unflatten(-1, (H, P)),
        *(t.transpose(1, 2) for t in times.values()),
        *(layer.C_bias[:, 0], layer.B_bias[:, 0]),
        angles[:, :, None].expand(-1, -1, H, -1),
        D=layer.D,
    )[0]
    if layer.is_outproj_norm:
        y = rms_norm(y, (P,), None, 1e-5) * layer.norm.weight.view(H, P)
    return (y * silu(z)).flatten(2) @ layer.out_proj.weight.T


@each_kind
def test_the_layer(kind):
    layer, u = made(kind), Random(51).real(2, 15, 12).requires_grad_()
    found, expected = layer(u), by_loop(layer, u)
    torch.testing.assert_close(found, expected)
    leaves = [u, *layer.parameters()]
    weights = torch.linspace(-1, 1, found.numel(), dtype=found.dtype).view_as(found)
    gradients = (torch.autograd.grad((y * weights).sum(), leaves) for y in (found, expected))
    for name, got, wanted in zip(("u", *dict(layer.named_parameters())), *gradients):
        torch.testing.assert_close(got, wanted, msg=lambda m, name=name: f"{name}: {m}")


@each_kind
def test_the_layer_with_a_cache(kind):
    """A prompt, several steps and single ones give what one call does, and packed sequences what each alone does."""
    layer, u = made(kind), Random(52).real(2, 15, 12)
    with torch.no_grad():
        whole, cache = layer(u), layer.cache(2)
        parts = [layer(u[:, a:b], cache) for a, b in ((0, 7), (7, 10), (10, 11), (11, 12))]
        for t in range(12, 15):
            out, *states = layer.step(u[:, t], *cache.states)
            assert all(one is other for one, other in zip(states, cache.states))
            parts.append(out[:, None])
        torch.testing.assert_close(torch.cat(parts, 1), whole)
        row, cache = torch.cat([u[0, :9], u[1, :5]])[None], layer.cache(2)
        packed = layer(row, cu_seqlens=torch.tensor([0, 9, 14]), inference_params=cache)
        torch.testing.assert_close(packed, torch.cat([whole[:1, :9], whole[1:, :5]], 1))
        alone = layer.cache(1)
        layer(u[1:, :5], alone)
        for state, other in zip(alone.states, cache.states):
            torch.testing.assert_close(state, other[1:])


def test_parameters_are_those_of_the_origin():
    layer = nn.Mamba3(64, is_outproj_norm=True, dtype=torch.bfloat16)
    wide = {"dt_bias": (2,), "B_bias": (2, 1, 128), "C_bias": (2, 1, 128), "D": (2,)}
    rest = {"in_proj.weight": (2 * 128 + 2 * 128 + 3 * 2 + 32, 64), "B_norm.weight": (128,), "C_norm.weight": (128,)}
    rest |= {"norm.weight": (128,), "out_proj.weight": (64, 128)}
    assert {name: tuple(p.shape) for name, p in layer.state_dict().items()} == wide | rest
    assert all(p.dtype == (torch.float32 if name in wide else torch.bfloat16) for name, p in layer.named_parameters())
    steps = softplus(layer.dt_bias)
    assert 0.00099 < steps.min() and steps.max() < 0.101 and layer.B_bias.eq(1).all() and layer.D.eq(1).all()
    assert layer.dt_bias._no_weight_decay and layer.D._no_weight_decay


def test_what_the_layer_refuses():
    for wrong, error, words in (
        ({"is_mimo": True}, NotImplementedError, "`is_mimo` must be False"),
        ({"A_activation": "exp"}, ValueError, '`A_activation` must be "softplus" or "heavy_tail"'),
        ({"rope_fraction": 0.3}, ValueError, "`rope_fraction` must be 0.5 or 1"),
        ({"headdim": 7}, ValueError, "`headdim`"),
        ({"ngroups": 3}, ValueError, "`ngroups`"),
        ({"d_state": 3}, ValueError, "`d_state` must be a whole number of 4 or more"),
    ):
        with pytest.raises(error, match=f"Mamba3: {words}"):
            nn.Mamba3(**{**SIZES, **wrong})
    with pytest.raises(ValueError, match="Mamba3: `seq_idx` must be None"):
        nn.Mamba3(**SIZES)(torch.zeros(1, 3, 12), torch.zeros(1, 3))
