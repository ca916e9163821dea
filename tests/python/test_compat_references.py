"""The reference functions of other packages against the functions that they are references of, results and every gradient."""

import pytest
import torch

import test_compat_layers as layers
from agreement import agree
from cases import Random
from statescan.compat import causal_conv1d, layer_norm, lrnnx, mamba_ssm, norms, references

r = Random(21)
STREAM, STEP, GATE = r.real(2, 6, 9), r.step(2, 6, 9), r.real(2, 6, 9)
MAPS = {
    "shared": (r.real(2, 5, 9), r.real(2, 5, 9)),
    "groups": (r.real(2, 3, 5, 9), r.real(2, 2, 5, 9)),
    "constant": (r.real(6, 5), r.real(6, 5)),
}


def scan_tensors(maps="shared"):
    B, C = MAPS[maps]
    more = {"D": r.real(6), "z": GATE, "delta_bias": r.real(6)}
    return {"u": STREAM, "delta": STEP, "A": Random(3).decay(6, 5), "B": B, "C": C, **more}


@pytest.mark.parametrize("maps", MAPS)
@pytest.mark.parametrize("delta_softplus", [False, True])
def test_selective_scan(maps, delta_softplus):
    options = {"delta_softplus": delta_softplus, "return_last_state": True}
    agree(mamba_ssm.selective_scan_fn, references.selective_scan_ref, scan_tensors(maps), **options)


def test_selective_scan_of_complex_numbers():
    """Maps that vary are pairs of real numbers."""
    tensors = {**scan_tensors(), "A": Random(4).oscillation(6, 5), "B": r.real(2, 5, 18), "C": Random(5).complex(6, 5)}
    agree(mamba_ssm.selective_scan_fn, references.selective_scan_ref, tensors, return_last_state=True)


@pytest.mark.parametrize("rule", ["mamba", "zoh", "bilinear", "dirac"])
def test_selective_scan_by_rules(rule):
    tensors = {**scan_tensors(), "deltaA": Random(6).step(2, 6, 9)}
    agree(lrnnx.selective_scan_fn, lrnnx.selective_scan_ref, tensors, discretization=rule, return_last_state=True)


def test_types():
    """That of the input; states are float32."""
    tensors = {name: tensor.float() for name, tensor in scan_tensors().items()}
    tensors = {**tensors, **{name: tensors[name].bfloat16() for name in ("u", "delta", "z", "B", "C")}}
    y, state = references.selective_scan_ref(**tensors, return_last_state=True)
    assert (y.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    got, last = mamba_ssm.selective_scan_fn(**tensors, return_last_state=True)
    assert (got.double() - y.double()).abs().max() <= 2e-2 * y.abs().max().double()
    torch.testing.assert_close(last, state)


def head_tensors():
    sizes = {"x": (2, 9, 4, 3), "B": (2, 9, 2, 5), "C": (2, 9, 2, 5), "z": (2, 9, 4, 3), "D": (4,), "dt_bias": (4,)}
    own = Random(7)
    return {"dt": own.step(2, 9, 4), "A": own.decay(4), **{name: own.real(*size) for name, size in sizes.items()}}


def test_chunk_scan():
    options = {"chunk_size": 4, "dt_softplus": True}
    agree(mamba_ssm.mamba_chunk_scan, references.ssd_chunk_scan_combined_ref, head_tensors(), **options)


@pytest.mark.parametrize("own", [False, True], ids=["of heads", "of channels"])
def test_ssd_selective_scan(own):
    """Against Mamba-2's scan where heads have one step, and Mamba's where channels have their own."""
    tensors, limits = head_tensors(), (0.1, 0.9)
    if not own:
        x, dt, A, B, C = (tensors.pop(name) for name in ("x", "dt", "A", "B", "C"))
        options = {"dt_softplus": True, "dt_limit": limits}
        got = mamba_ssm.ssd_selective_scan(x, dt, A, B, C, **tensors, **options)
        torch.testing.assert_close(got, mamba_ssm.mamba_chunk_scan_combined(x, dt, A, B, C, 4, **tensors, **options))
        return
    tensors |= {"dt": Random(8).step(2, 9, 4, 3), "A": Random(8).decay(12, 5), "D": r.real(4, 3), "dt_bias": r.real(4, 3)}

    def plain(x, dt, A, B, C, D, z, dt_bias):
        def wide(t):
            return t.flatten(2).transpose(1, 2)

        maps = (t.permute(0, 2, 3, 1) for t in (B, C))
        y = references.selective_scan_ref(wide(x), wide(dt), A, *maps, D.flatten(), wide(z), dt_bias.flatten())
        return y.transpose(1, 2).unflatten(2, (4, 3))

    agree(mamba_ssm.ssd_selective_scan, plain, tensors)


def test_simplified_scans():
    own = Random(9)
    tensors = {"u": own.complex(2, 3, 9), "delta": own.step(2, 5, 9), "A": own.oscillation(5)}
    tensors |= {"B": own.complex(5, 3), "C": own.complex(3, 5)}
    for rule in ("bilinear", "zoh", "dirac", "mamba"):
        options = {"return_last_state": True, "discretization": rule}
        agree(lrnnx.simplified_scan_fn, references.simplified_scan_ref, tensors, **options)
    asynchronous = {**tensors, "deltaA": own.step(2, 5, 9), "D": own.real(3)}
    agree(lrnnx.s5_inner_fn, references.s5_inner_ref, asynchronous)
    real = {**asynchronous, "u": own.real(2, 3, 9)}
    agree(lrnnx.s5_inner_fn, references.s5_inner_ref, real, conj_sym=False)


@pytest.mark.parametrize("is_complex", [False, True])
def test_inner(is_complex):
    case = layers.TestMambaInner()
    agree(mamba_ssm.mamba_inner_fn, references.mamba_inner_ref, case.tensors(is_complex))
    given = {**case.tensors(given=("B",)), "C_proj_bias": r.real(case.DSTATE)}
    agree(mamba_ssm.mamba_inner_fn, references.mamba_inner_ref, given)


def in_one_direction(tensors, A):
    """`mamba_inner_ref` without its last projection."""
    identity = torch.eye(tensors["xz"].shape[1] // 2, dtype=torch.float64)
    return references.mamba_inner_ref(**{**tensors, "A": A, "out_proj_weight": identity, "out_proj_bias": None}).transpose(1, 2)


@pytest.mark.parametrize("is_complex", [False, True])
def test_inner_functions_of_forks(is_complex):
    tensors = layers.TestMambaInner().tensors(is_complex)
    weight, bias = tensors.pop("out_proj_weight"), tensors.pop("out_proj_bias")
    agree(mamba_ssm.mamba_inner_fn_no_out_proj, lambda **t: in_one_direction(t, t["A"]), tensors)

    def both(A_b, out_proj_weight, out_proj_bias, **given):
        # the scan from the end: of what the convolution made from the start
        parts = mamba_ssm.mamba_inner_fn_no_out_proj
        ahead = in_one_direction(given, given["A"])
        behind = backwards(given, A_b)
        assert parts(**given).shape == ahead.shape
        return torch.nn.functional.linear((ahead + behind).transpose(1, 2), out_proj_weight, out_proj_bias)

    def backwards(given, A):
        x, z = given["xz"].chunk(2, 1)
        x = references.causal_conv1d_ref(x, given["conv1d_weight"].squeeze(1), given["conv1d_bias"], activation="silu")
        rows = torch.einsum("rd,bdl->brl", given["x_proj_weight"], x)
        rank = given["delta_proj_weight"].shape[1]
        count = (rows.shape[1] - rank) // 2
        dt, B, C = rows.split([rank, count, count], 1)
        dt = torch.einsum("dr,brl->bdl", given["delta_proj_weight"], dt)
        if is_complex:
            B, C = (torch.complex(m[:, ::2], m[:, 1::2]) for m in (B, C))
        x, dt, B, C, z = (t.flip(-1) for t in (x, dt, B, C, z))
        return references.selective_scan_ref(x, dt, A, B, C, given["D"], z, given["delta_bias"], True).flip(-1)

    A_b = (Random(12).oscillation if is_complex else Random(12).decay)(*tensors["A"].shape)
    agree(mamba_ssm.bimamba_inner_fn, both, {**tensors, "A_b": A_b, "out_proj_weight": weight, "out_proj_bias": bias})


@pytest.mark.parametrize("with_norm", [False, True])
def test_split_conv1d_scan(with_norm):
    case = layers.TestSplitConv1dScan()
    tensors = case.tensors()
    del tensors["initial_states"]
    if not with_norm:
        del tensors["rmsnorm_weight"]
    # one group: the origin's reference takes the norm over all channels
    width = case.DIM + 2 * case.DSTATE
    tensors["zxbcdt"] = tensors["zxbcdt"][..., : case.DIM + width + case.NHEADS]
    tensors |= {name: tensors[name][:width] for name in ("conv1d_weight", "conv1d_bias")}
    options = {"headdim": case.HEADDIM, "ngroups": 1, "chunk_size": 4, "norm_before_gate": False}
    agree(mamba_ssm.mamba_split_conv1d_scan_combined, references.mamba_split_conv1d_scan_ref, tensors, **options)


def test_convolution_and_scan():
    heads, own = head_tensors(), Random(13)
    given = {name: heads[name] for name in ("dt", "A", "D", "dt_bias")}
    given |= {"xBC": own.real(2, 9, 12 + 20), "conv1d_weight": own.real(32, 4), "conv1d_bias": own.real(32)}
    given["z"] = own.real(2, 9, 12)

    def plain(xBC, conv1d_weight, conv1d_bias, z, **rest):
        xBC = causal_conv1d.causal_conv1d_fn(xBC.transpose(1, 2), conv1d_weight, conv1d_bias, activation="silu")
        x, B, C = xBC.transpose(1, 2).split([12, 10, 10], -1)
        maps = {"B": B.unflatten(-1, (2, 5)), "C": C.unflatten(-1, (2, 5))}
        parts = {"x": x.unflatten(-1, (4, 3)), "z": z.unflatten(-1, (4, 3)), **maps}
        return mamba_ssm.ssd_selective_scan(**parts, **rest, dt_softplus=True).flatten(2)

    def reference(**tensors):
        return references.mamba_conv1d_scan_ref(**tensors, chunk_size=4, dt_softplus=True, ngroups=2)

    agree(reference, plain, given)
    with pytest.raises(ValueError, match="mamba_conv1d_scan_ref: `headdim` must be given"):
        reference(**{**given, "z": None})


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_selective_state_update(heads, groups):
    own, shape = Random(14), (4, 3) if heads else (4,)
    tensors = {name: own.real(2, *shape) for name in ("x", "dt", "z")}
    tensors |= {"A": own.decay(*shape, 5), "B": own.real(2, groups, 5), "C": own.real(2, groups, 5)}
    tensors |= {"D": own.real(*shape), "dt_bias": own.real(*shape)}
    states = [own.real(2, *shape, 5)] * 2
    states = [state.clone() for state in states]
    got = mamba_ssm.selective_state_update(states[0], **tensors, dt_softplus=True)
    torch.testing.assert_close(got, references.selective_state_update_ref(states[1], **tensors, dt_softplus=True))
    torch.testing.assert_close(*states)


def test_simplified_state_update():
    own = Random(15)
    tensors = {"x": own.real(2, 3), "dt": own.step(2, 5), "A": own.oscillation(5)}
    tensors |= {"B": own.complex(5, 3), "C": own.complex(3, 5), "D": own.real(3, 3)}
    states = [Random(16).complex(2, 5) for _ in range(2)]
    got = lrnnx.simplified_state_update(states[0], **tensors)
    torch.testing.assert_close(got, references.simplified_state_update_ref(states[1], **tensors))
    torch.testing.assert_close(*states)


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("seq_idx", [None, [[-1, 0, 0, 0, 1, 2, 2, 2, 2], [3] * 9]])
def test_convolution(with_state, seq_idx):
    tensors = {"x": STREAM, "weight": r.real(6, 4), "bias": r.real(6)}
    if with_state:
        tensors["initial_states"] = r.real(2, 6, 3)
    options = {"activation": "silu", "return_final_states": seq_idx is None}
    if seq_idx is not None:
        options["seq_idx"] = torch.tensor(seq_idx)
    agree(causal_conv1d.causal_conv1d_fn, references.causal_conv1d_ref, tensors, **options)


@pytest.mark.parametrize("steps", [None, 1, 3])
@pytest.mark.parametrize("circular", [False, True])
def test_convolution_update(steps, circular):
    own = Random(17)
    x = own.real(2, 6) if steps is None else own.real(2, 6, steps)
    more = {"cache_seqlens": torch.tensor([3, 11], dtype=torch.int32)} if circular else {}
    states = [Random(18).real(2, 6, 5) for _ in range(2)]
    weight, bias = own.real(6, 4), own.real(6)
    got = causal_conv1d.causal_conv1d_update(x, states[0], weight, bias, "silu", **more)
    torch.testing.assert_close(got, references.causal_conv1d_update_ref(x, states[1], weight, bias, "silu", **more))
    torch.testing.assert_close(*states)


def test_states_of_packed_sequences():
    x, bounds = Random(19).real(20, 6), torch.tensor([0, 0, 2, 9, 20], dtype=torch.int32)
    for length in (1, 4, 11):
        got = causal_conv1d.causal_conv1d_varlen_states(x, bounds, length)
        assert got.shape == (4, 6, length) and got.stride(1) == 1
        assert torch.equal(got, references.causal_conv1d_varlen_states_ref(x, bounds, length))
    assert not got[0].any() and torch.equal(got[1, :, -2:], x[:2].T) and torch.equal(got[3], x[9:].T)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_norms(kind):
    own = Random(20)
    tensors = {"x": own.real(2, 5, 8), "residual": own.real(2, 5, 8), "x1": own.real(2, 5, 8), "rowscale": own.real(2, 5)}
    tensors |= {name: own.real(8) for name in ("weight", "bias", "weight1", "bias1")}
    ours, reference = (getattr(module, f"{kind}_{word}") for module, word in ((layer_norm, "fn"), (references, "ref")))
    agree(ours, reference, tensors, prenorm=True)
    mask = torch.rand(2, 5, 8) > 0.5
    dropped = reference(tensors["x"], tensors["weight"], None, dropout_p=0.5, dropout_mask=mask, prenorm=True)[1]
    assert torch.equal(dropped, torch.where(mask, 2 * tensors["x"], 0))


@pytest.mark.parametrize("norm_before_gate", [False, True])
@pytest.mark.parametrize("group_size", [None, 4])
def test_gated_norms(norm_before_gate, group_size):
    own = Random(22)
    tensors = {"x": own.real(2, 5, 8), "z": own.real(2, 5, 8), "weight": own.real(8), "bias": own.real(8)}
    options = {"group_size": group_size, "norm_before_gate": norm_before_gate}
    agree(norms.rmsnorm_fn, references.rms_norm_gated_ref, tensors, **options)
