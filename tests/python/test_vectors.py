"""Results and gradients that other implementations computed in float32."""

import json

import pytest
import torch

import statescan
from statescan._operations import BY_NAME

safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed")

RENAMED = {
    "u": "x",
    "delta": "dt",
    "delta_bias": "dt_bias",
    "delta_softplus": "dt_softplus",
    "initial_states": "initial_state",
    "last_state": "final_state",
}


def read(path):
    """The case, and its tensors by the folder and name of their keys."""
    with safetensors.safe_open(path, "pt") as file:
        case = json.loads(file.metadata()["case"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    pairs = {"simplified_scan": ["y", "last_state"], "selective_scan": ["last_state"]}
    pairs = case["complex"] + (pairs.get(case["op"], []) if case["complex"] else [])
    for key, tensor in tensors.items():
        if key.partition(".")[2] in pairs:
            tensors[key] = torch.view_as_complex(tensor.contiguous())
    folders = {"in": {}, "out": {}, "cot": {}, "grad": {}}
    for key, tensor in tensors.items():
        folder, _, name = key.partition(".")
        folders[folder][name] = tensor
    return case, folders


def selective_scan(tensors, args):
    tensors = {RENAMED.get(n, n): t for n, t in tensors.items()}
    if tensors["A"].is_complex():
        for name in ("B", "C"):
            pairs = tensors[name].unflatten(-1, (-1, 2)).contiguous()
            tensors[name] = torch.view_as_complex(pairs)
    y, state = statescan.selective_scan(**tensors, dt_softplus=args["delta_softplus"])
    return {"y": y, "last_state": state}


def ssd(tensors, args):
    tensors = {RENAMED.get(n, n): t for n, t in tensors.items()}
    options = {n: v for n, v in args.items() if n in ("chunk_size", "dt_softplus", "dt_limit")}
    y, state = statescan.ssd(**tensors, **options)
    return {"y": y, "final_state": state}


def simplified_scan(tensors, args):
    y, state = statescan.simplified_scan_fn(**tensors, **args)
    return {"y": y, "last_state": state}


def s5_inner(tensors, args):
    return {"y": statescan.s5_inner_fn(**tensors, **args)}


def causal_conv1d(tensors, args):
    y, states = statescan.causal_conv1d(**tensors, **args)
    return {"y": y, "final_states": states}


def selective_state_update(tensors, args):
    state = tensors["state"].clone()
    y = statescan.selective_state_update(**{**tensors, "state": state}, **args)
    return {"y": y, "state": state}


def close(got, expected, times, what):
    got, expected = (torch.view_as_real(t) if t.is_complex() else t for t in (got, expected))
    assert got.shape == expected.shape, what
    # the origin's gradient of ssd overflows in places, where ours must not
    known = expected.isfinite()
    largest = expected[known].abs().max()
    assert got.isfinite().all(), what
    assert ((got - expected).abs() <= times * (1e-5 * largest + 1e-4 * expected.abs()))[known].all(), what


def check(path, functions):
    """Compares results and gradients of the function in `functions` that has the name of the file's operation."""
    case, folders = read(path)
    if case["op"] not in BY_NAME:
        # files may be newer than the package
        return print(f"skipped: {path.name} is of {case['op']}, which is no operation here")
    inputs = {n: t.requires_grad_(n in folders["grad"]) for n, t in folders["in"].items()}
    results = functions[case["op"]](inputs, case["args"])
    for name, expected in folders["out"].items():
        close(results[name], expected, 1, f"{path.name}: {name}")
    if folders["cot"]:
        loss = sum((torch.conj(cot) * results[name]).real.sum() for name, cot in folders["cot"].items())
        leaves = [inputs[name] for name in folders["grad"]]
        for (name, expected), got in zip(folders["grad"].items(), torch.autograd.grad(loss, leaves), strict=True):
            close(got, expected, 10, f"{path.name}: gradient of {name}")


def gated_delta_rule(tensors, args):
    y, state = statescan.gated_delta_rule(**tensors, qk_l2norm=args["use_qk_l2norm_in_kernel"])
    return {"o": y, "final_state": state}


def test_every_file(vectors):
    files = sorted(vectors.glob("*.safetensors"))
    for path in files:
        check(path, globals())
    assert len(files) >= 20
