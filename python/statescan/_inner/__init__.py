"""What lies between the projections of a layer, as one differentiable function of PyTorch for each kind of layer.

Such a function takes the first projection's result as it is and hands its parts to the operations as views; its backward pass
writes every gradient into its part of one tensor. So nothing is padded, concatenated, transposed or added, and what the
convolution gives is computed again and not kept.
"""

from .mamba import MAMBA, mamba_inner
from .mamba2 import MAMBA2, mamba2_inner

__all__ = ["MAMBA", "MAMBA2", "mamba2_inner", "mamba_inner"]
