"""Norms with a gate, as `mamba_ssm.ops.triton.layernorm_gated` has them."""

from ..nn._norms import LayerNorm, RMSNorm, layernorm_fn, rmsnorm_fn
from .references.norms import rms_norm_gated_ref as rms_norm_ref

__all__ = ["LayerNorm", "RMSNorm", "layernorm_fn", "rms_norm_ref", "rmsnorm_fn"]
