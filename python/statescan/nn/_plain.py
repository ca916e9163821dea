"""Whether a module of a layer may be passed by.

A layer hands the weights of its modules to fused functions only where calling the modules would do nothing else. Adapters, hooks
and wrappers of other packages, and weights that are computed, packed or somewhere else, work through calls.
"""

from torch import Tensor
from torch.nn import Conv1d, Parameter
from torch.nn.modules.module import _has_any_global_hook

# functional calls put tensors in the place of parameters; subclasses are packed, or in parts on several devices
_ORDINARY = (Parameter, Tensor)


def is_plain(module, kind):
    """Whether a module is no more than its class on a weight and a bias of its own, so that the operation on these is the same as
    a call. `kind` is that class: `torch.nn.Linear`, `torch.nn.Conv1d` or the gated `RMSNorm`."""
    if type(module) is not kind or "forward" in module.__dict__ or _has_any_global_hook():
        return False
    if module._forward_pre_hooks or module._forward_hooks or module._backward_pre_hooks or module._backward_hooks:
        return False
    parameters = module._parameters
    if len(parameters) != 2 or type(parameters.get("weight")) not in _ORDINARY:
        return False
    bias = parameters.get("bias", module)
    return bias is None or type(bias) in _ORDINARY


def plain_weights(module, kind):
    """The weight and the bias of a module that is plain; None for another one."""
    if not is_plain(module, kind):
        return None
    parameters = module._parameters
    return parameters["weight"], parameters["bias"]


def plain_filters(module, width):
    """The filters, (dim, 1, width), and the bias of a plain causal depthwise convolution; None for another module."""
    found = plain_weights(module, Conv1d)
    if found is None or not (
        module.groups == module.in_channels == module.out_channels
        and module.kernel_size[0] == width
        and module.padding == (width - 1,)
        and module.dilation[0] == module.stride[0] == 1
        and module.padding_mode == "zeros"
    ):
        return None
    return found
