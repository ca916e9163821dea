"""An installed `fla` computes on ours once it is told so."""

import pytest
import torch

import statescan
from cases import CASES
from statescan.compat import fla_backend


@pytest.fixture
def registered(monkeypatch):
    backends = pytest.importorskip("fla.backends", reason="fla-core is not installed")
    for registries in ("_operation_registries", "_function_registries"):
        for registry in getattr(backends, registries).values():
            monkeypatch.setattr(registry, "_backends", dict(registry._backends))
    fla_backend.register()


def inputs(name):
    case = CASES[name].to(torch.float32, "cpu")
    return {argument: case.tensors[argument].clone().requires_grad_() for argument in ("q", "k", "v", "g", "beta")}


@pytest.mark.parametrize(
    ("name", "op"), [("gated_delta_rule", "chunk_gated_delta_rule"), ("gated_delta_rule_channels", "chunk_kda")]
)
def test_functions_of_fla(registered, name, op):
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.kda import chunk_kda

    function = {"chunk_gated_delta_rule": chunk_gated_delta_rule, "chunk_kda": chunk_kda}[op]
    theirs, ours = inputs(name), inputs(name)
    y, state = function(**theirs, output_final_state=True, use_qk_l2norm_in_kernel=True)
    expected = statescan.gated_delta_rule(**ours, qk_l2norm=True)
    assert torch.equal(y, expected[0]) and torch.equal(state, expected[1])
    y.square().sum().backward()
    expected[0].square().sum().backward()
    assert all(torch.equal(tensor.grad, ours[argument].grad) for argument, tensor in theirs.items())


def test_what_is_taken():
    tensors = list(inputs("gated_delta_rule").values())
    for option in ({"chunk_size": 64}, {"transpose_state_layout": True}, {"state_v_first": True}, {"cp_context": None}):
        assert fla_backend._verdict("chunk_gated_delta_rule", *tensors, **option) == (True, None)
    for option in ({"cp_context": object()}, {"unheard_of": 1}):
        is_taken, reason = fla_backend._verdict("chunk_gated_delta_rule", *tensors, **option)
        assert not is_taken and next(iter(option)) in reason
    assert not fla_backend._verdict("chunk_kda", *tensors, return_intermediate_states=True)[0]
    q, k, v, g, beta = tensors
    assert "beta" in fla_backend._verdict("chunk_gated_delta_rule", q, k, v, g, beta[..., None].expand_as(v))[1]
    is_taken, reason = fla_backend._verdict("chunk_kda", *(tensor.to("meta") for tensor in tensors))
    assert not is_taken and "meta" in reason
