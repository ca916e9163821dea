"""Layers on these operations, as PyTorch modules: `Mamba`, `Mamba2` and `S5`.

They take the constructor arguments of their origins, `mamba_ssm` and `lrnnx`, and have the names and shapes of their parameters:
state dicts go both ways.
"""

from .._extras import naming_torch

try:
    from .mamba import Mamba
    from .mamba2 import Mamba2
    from .s5 import S5
except ModuleNotFoundError as error:
    raise naming_torch("statescan.nn", error) from None

__all__ = ["Mamba", "Mamba2", "S5"]
