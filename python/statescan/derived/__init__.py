"""Operations that are built from others, for PyTorch: elementwise maps around `statescan.linear_scan` or `statescan.ssd`.

They have the gradients, devices and types of the operation that they are built from, and no kernels of their own.
"""

from .._extras import naming_torch

try:
    from .mamba3 import mamba3_siso_combined, mamba3_siso_step
    from .rules import lru, rg_lru, s7
except ModuleNotFoundError as _error:
    raise naming_torch("statescan.derived", _error) from None

__all__ = ["lru", "mamba3_siso_combined", "mamba3_siso_step", "rg_lru", "s7"]
