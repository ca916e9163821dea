"""Linear recurrences as fast, exact, differentiable operations.

Functions take PyTorch tensors and JAX arrays (with gradients), or NumPy or CuPy arrays (without gradients), and return the same
kind on the same device.
"""

from ._check import check
from ._linear_scan_update import linear_scan_update
from ._native import __version__
from ._pool import StatePool
from ._ssd_update import ssd_update
from ._threads import get_num_threads, set_num_threads
from .functions import (
    causal_conv1d,
    causal_conv1d_update,
    gated_delta_rule,
    gated_delta_rule_update,
    linear_scan,
    norm,
    s5_inner,
    s5_inner_fn,
    selective_scan,
    selective_state_update,
    simplified_scan,
    simplified_scan_fn,
    simplified_state_update,
    ssd,
    turned_maps,
)

# in the order of the reference
__all__ = [
    "selective_scan",
    "ssd",
    "simplified_scan",
    "simplified_scan_fn",
    "s5_inner",
    "s5_inner_fn",
    "linear_scan",
    "causal_conv1d",
    "norm",
    "turned_maps",
    "gated_delta_rule",
    "selective_state_update",
    "ssd_update",
    "simplified_state_update",
    "linear_scan_update",
    "causal_conv1d_update",
    "gated_delta_rule_update",
    "StatePool",
    "check",
    "get_num_threads",
    "set_num_threads",
    "__version__",
]
