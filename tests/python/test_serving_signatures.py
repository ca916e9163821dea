"""The signatures of functions of serving engines are theirs."""

import ast
import importlib.util
import inspect
from pathlib import Path

import pytest

from statescan.compat import flashinfer, vllm

# The signatures of vLLM 0.33.0 and of flashinfer-python 0.7.4, from their wheels on PyPI:
# parameters by position with their defaults, without annotations.
SIGNATURES = {
    # vllm/model_executor/layers/mamba/ops/mamba_ssm.py
    vllm.selective_scan_fn: "u, ssm_states, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, "
    "query_start_loc=None, cache_indices=None, has_initial_state=None, null_block_id=0, block_size=1024, "
    "block_idx_first_scheduled_token=None, block_idx_last_scheduled_token=None, initial_state_idx=None, cu_chunk_seqlen=None, "
    "last_chunk_indices=None",
    vllm.selective_state_update: "state, x, dt, A, B, C, D, dt_bias, z=None, dt_softplus=False, state_batch_indices=None, "
    "dst_state_batch_indices=None, null_block_id=0, out=None, num_accepted_tokens=None, cu_seqlens=None, is_blackwell=False, "
    "enable_stochastic_rounding=False, cache_philox_rounds=0",
    # vllm/model_executor/layers/mamba/ops/ssd_combined.py
    vllm.mamba_chunk_scan_combined_varlen: "x, dt, A, B, C, chunk_size, cu_seqlens, cu_chunk_seqlens, last_chunk_indices, "
    "seq_idx, out, D=None, z=None, dt_bias=None, initial_states=None, dt_softplus=False, dt_limit=(0.0, inf), "
    "return_intermediate_states=False, state_dtype=None, final_states_out=None, final_state_indices=None",
    # vllm/model_executor/layers/mamba/ops/causal_conv1d.py
    vllm.causal_conv1d_fn: "x, weight, bias, conv_states, query_start_loc, cache_indices=None, has_initial_state=None, "
    "activation='silu', pad_slot_id=-1, null_block_id=0, metadata=None, validate_data=False",
    vllm.causal_conv1d_update: "x, conv_state, weight, bias=None, activation=None, conv_state_indices=None, "
    "num_accepted_tokens=None, query_start_loc=None, max_query_len=-1, null_block_id=0, validate_data=False, out=None",
    # vllm/third_party/flash_linear_attention/ops/chunk.py, fused_recurrent.py, fused_sigmoid_gating.py, kda.py
    vllm.chunk_gated_delta_rule: "q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None, "
    "chunk_indices=None, chunk_offsets=None, use_qk_l2norm_in_kernel=False, core_attn_out=None",
    vllm.fused_recurrent_gated_delta_rule: "q, k, v, g, beta=None, scale=None, initial_state=None, inplace_final_state=True, "
    "cu_seqlens=None, ssm_state_indices=None, num_accepted_tokens=None, use_qk_l2norm_in_kernel=False",
    vllm.fused_recurrent_gated_delta_rule_packed_decode: "mixed_qkv, a, b, A_log, dt_bias, scale, initial_state, out, "
    "ssm_state_indices, use_qk_l2norm_in_kernel=False",
    vllm.fused_sigmoid_gating_delta_rule_update: "A_log, a, b, dt_bias, q, k, v, beta=1.0, threshold=20.0, scale=None, "
    "initial_state=None, inplace_final_state=True, cu_seqlens=None, ssm_state_indices=None, num_accepted_tokens=None, "
    "use_qk_l2norm_in_kernel=False, is_kda=False",
    vllm.fused_recurrent_kda: "q, k, v, g, beta=None, scale=None, initial_state=None, inplace_final_state=True, "
    "use_qk_l2norm_in_kernel=True, cu_seqlens=None, ssm_state_indices=None, **kwargs",
    vllm.chunk_kda: "q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, "
    "use_qk_l2norm_in_kernel=False, cu_seqlens=None, **kwargs",
    # flashinfer/mamba/selective_state_update.py
    flashinfer.selective_state_update: "state, x, dt, A, B, C, D, z=None, dt_bias=None, dt_softplus=False, "
    "state_batch_indices=None, pad_slot_id=-1, state_scale=None, out=None, disable_state_update=False, "
    "intermediate_states_buffer=None, intermediate_state_indices=None, intermediate_state_scales=None, rand_seed=None, "
    "philox_rounds=10, cache_steps=0, algorithm='auto', dst_state_batch_indices=None, cu_seqlens=None, "
    "num_accepted_tokens=None, backend='auto'",
    # flashinfer/gdn_prefill.py
    flashinfer.chunk_gated_delta_rule: "q, k, v, g=None, beta=None, scale=None, initial_state=None, output_final_state=False, "
    "cu_seqlens=None, use_qk_l2norm_in_kernel=False, output=None, output_state=None, state_checkpoints=None, "
    "checkpoint_cu_starts=None, checkpoint_every_n_tokens=0, use_cp='auto', state_indices=None, _cp_chunk_len=None, "
    "backend='auto', max_seqlen=None, gate_domain='linear', use_gate_in_kernel=False, A_log=None, dt_bias=None, "
    "beta_is_logit=False, cu_seqlens_cpu=None, output_state_indices=None, checkpoint_state_indices=None, prefix_lens=None",
    # flashinfer/gdn_decode.py
    flashinfer.gated_delta_rule_decode_pretranspose: "q, k, v, state, A_log, a, dt_bias, b, scale=None, output=None, "
    "use_qk_l2norm=True, initial_state=None, initial_state_indices=None, output_state_indices=None, "
    "intermediate_states_buffer=None, disable_state_update=False, backend='auto'",
    flashinfer.gated_delta_rule_decode: "q, k, v, state, A_log, a, dt_bias, b, scale=None, output=None, use_qk_l2norm=True, "
    "backend='auto'",
    flashinfer.gated_delta_rule_mtp: "q, k, v, initial_state, initial_state_indices, A_log, a, dt_bias, b, scale=None, "
    "output=None, intermediate_states_buffer=None, ssm_state_indices=None, disable_state_update=None, use_qk_l2norm=True, "
    "output_state_indices=None, cache_replayssm=False, replayssm_rawv=None, replayssm_rawk=None, replayssm_g=None, "
    "replayssm_beta=None",
    flashinfer.gated_delta_rule_replayssm_commit: "checkpoint_state, rawv_cache, rawk_cache, g_cache, beta_cache, state_indices, "
    "accept_lens, track_state_indices=None, track_steps=None, use_qk_l2norm=True, null_block_id=-1, backend='auto'",
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: f"{function.__module__}.{function.__name__}")
def test_signatures_are_theirs(function):
    parameters = inspect.signature(function).parameters.values()
    assert ", ".join(str(parameter.replace(annotation=parameter.empty)) for parameter in parameters) == SIGNATURES[function]


def test_every_name_has_a_signature():
    names = {name for module in (vllm, flashinfer) for name in module.__all__ if callable(getattr(module, name))}
    assert names == {function.__name__ for function in SIGNATURES}


@pytest.mark.parametrize("file", ["mamba/selective_state_update.py", "gdn_prefill.py", "gdn_decode.py"])
def test_flashinfers_source_has_these_signatures(file):
    """Those of the version that is installed."""
    spec = importlib.util.find_spec("flashinfer")
    if spec is None:
        pytest.skip("flashinfer is not installed")
    tree = ast.parse((Path(spec.origin).parent / file).read_text())
    found = {node.name: node.args for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in flashinfer.__all__}
    assert found
    for name, arguments in found.items():
        for argument in (*arguments.args, *arguments.kwonlyargs):
            argument.annotation = None
        assert ast.unparse(arguments).replace("*, ", "") == SIGNATURES[getattr(flashinfer, name)]
