"""Every stored result through the drop-in of its origin."""

import pytest

from statescan.compat import causal_conv1d, lrnnx, mamba_ssm, nkilib
from test_vectors import check


def selective_scan(function):
    def call(tensors, args):
        y, last_state = function(**tensors, **args)
        return {"y": y, "last_state": last_state}

    return call


def ssd(tensors, args):
    y, state = mamba_ssm.mamba_chunk_scan_combined(**tensors, **args, return_final_states=True)
    return {"y": y, "final_state": state}


def simplified_scan(tensors, args):
    y, last_state = lrnnx.simplified_scan_fn(**tensors, **args)
    return {"y": y, "last_state": last_state}


def s5_inner(tensors, args):
    return {"y": lrnnx.s5_inner_fn(**tensors, **args)}


def causal_conv1d_with_states(tensors, args):
    y, final_states = causal_conv1d.causal_conv1d_fn(**tensors, **args)
    return {"y": y, "final_states": final_states}


def selective_state_update(tensors, args):
    state = tensors.pop("state").clone()
    return {"y": mamba_ssm.selective_state_update(state, **tensors, **args), "state": state}


def gated_delta_rule(tensors, args):
    from statescan.compat import fla

    function = fla.chunk_kda if tensors["g"].dim() == 4 else fla.chunk_gated_delta_rule
    o, final_state = function(**tensors, **args)
    return {"o": o, "final_state": final_state}


FUNCTIONS = {
    "selective_scan": selective_scan(mamba_ssm.selective_scan_fn),
    "ssd": ssd,
    "simplified_scan": simplified_scan,
    "s5_inner": s5_inner,
    "causal_conv1d": causal_conv1d_with_states,
    "selective_state_update": selective_state_update,
    "gated_delta_rule": gated_delta_rule,
}


def test_every_file(vectors):
    files = sorted(vectors.glob("*.safetensors"))
    for path in files:
        check(path, FUNCTIONS)
    assert len(files) >= 20


def test_lrnnx_has_the_selective_scan_of_mamba(vectors):
    files = sorted(vectors.glob("selective_scan_*.safetensors"))
    for path in files:
        check(path, {"selective_scan": selective_scan(lrnnx.selective_scan_fn)})
    assert len(files) >= 8


@pytest.mark.parametrize("name", ["basic", "len1"])
def test_nkilib_selective_scan(vectors, name):
    def call(tensors, args):
        names = ("u", "delta", "A", "B", "C", "D")
        y, last_state = nkilib.selective_scan(*(tensors[name] for name in names))
        return {"y": y, "last_state": last_state}

    check(vectors / f"selective_scan_{name}.safetensors", {"selective_scan": call})


def test_nkilib_ssd(vectors):
    def call(tensors, args):
        x, dt = tensors["x"].transpose(1, 2), tensors["dt"].transpose(1, 2)
        B, C = tensors["B"].squeeze(2), tensors["C"].squeeze(2)
        y, state = nkilib.ssd(x, dt, tensors["A"], B, C, args["chunk_size"], tensors["D"])
        return {"y": y.transpose(1, 2), "final_state": state.transpose(-1, -2)}

    check(vectors / "ssd_basic.safetensors", {"ssd": call})
