"""Layers on these operations, as PyTorch modules: `Mamba`, `Mamba2`, `Mamba3`, `S5`, and a block around the last one, `S5Block`.

The first four take the constructor arguments of their origins, `mamba_ssm` and `lrnnx`, and have the names and shapes of their
parameters: state dicts go both ways. They decode alike::

    cache = layer.cache(batch)
    with torch.no_grad():
        y = layer(prompt, cache)  # any number of steps
        y = layer(step, cache)  # and on, (batch, 1, d_model)
"""

from .._extras import naming_torch

try:
    from ._cache import Cache
    from .block import S5Block
    from .groups import parameter_groups
    from .mamba import Mamba
    from .mamba2 import Mamba2
    from .mamba3 import Mamba3
    from .s5 import S5
except ModuleNotFoundError as _error:
    raise naming_torch("statescan.nn", _error) from None

__all__ = ["Mamba", "Mamba2", "Mamba3", "S5", "S5Block", "Cache", "parameter_groups"]
