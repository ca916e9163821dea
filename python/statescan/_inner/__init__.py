"""Everything between the projections of a layer, as one differentiable function of PyTorch for each kind of layer.

Both passes of such a function are native, and call PyTorch for products. Here are the functions' arguments and what they give
where there is no data.
"""

from .mamba import mamba_as_one, mamba_inner
from .mamba2 import mamba2_as_one, mamba2_inner

__all__ = ["mamba2_as_one", "mamba2_inner", "mamba_as_one", "mamba_inner"]
