"""The reference functions of `mamba_ssm`, `causal_conv1d` and `lrnnx`: plain loops over time in float64, made to compare with.

They run where their tensors are, have derivatives of any order, and return the type of their input.
"""

from .convolution import causal_conv1d_ref, causal_conv1d_update_ref, causal_conv1d_varlen_states_ref
from .inner import mamba_conv1d_scan_ref, mamba_inner_ref, mamba_split_conv1d_scan_ref
from .norms import layer_norm_ref, rms_norm_gated_ref, rms_norm_ref
from .scans import s5_inner_ref, selective_scan_ref, simplified_scan_ref, ssd_chunk_scan_combined_ref
from .steps import selective_state_update_ref, simplified_state_update_ref

__all__ = [
    "causal_conv1d_ref",
    "causal_conv1d_update_ref",
    "causal_conv1d_varlen_states_ref",
    "layer_norm_ref",
    "mamba_conv1d_scan_ref",
    "mamba_inner_ref",
    "mamba_split_conv1d_scan_ref",
    "rms_norm_gated_ref",
    "rms_norm_ref",
    "s5_inner_ref",
    "selective_scan_ref",
    "selective_state_update_ref",
    "simplified_scan_ref",
    "simplified_state_update_ref",
    "ssd_chunk_scan_combined_ref",
]
