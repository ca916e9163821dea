"""The public functions. Each puts its arguments in order and hands them to the framework of its first tensor."""

from ._around_scans import causal_conv1d, norm, turned_maps
from ._linear_scan_update import linear_scan_update
from ._scans import gated_delta_rule, linear_scan, selective_scan, ssd
from ._simplified_scans import s5_inner, simplified_scan
from ._ssd_update import ssd_update
from ._steps import causal_conv1d_update, gated_delta_rule_update, selective_state_update, simplified_state_update

__all__ = [
    "causal_conv1d",
    "causal_conv1d_update",
    "gated_delta_rule",
    "gated_delta_rule_update",
    "linear_scan",
    "linear_scan_update",
    "norm",
    "s5_inner",
    "s5_inner_fn",
    "selective_scan",
    "selective_state_update",
    "simplified_scan",
    "simplified_scan_fn",
    "simplified_state_update",
    "ssd",
    "ssd_update",
    "turned_maps",
]

# as lrnnx calls them
simplified_scan_fn = simplified_scan
s5_inner_fn = s5_inner
