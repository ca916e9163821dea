"""Whether a module of a layer may be passed by.

A layer hands the weights of its modules to fused functions only where calling the modules would do nothing else. Adapters, hooks
and wrappers of other packages, and weights that are computed, packed or somewhere else, work through calls.
"""

from torch import Tensor
from torch.nn import Conv1d, Linear, Parameter
from torch.nn.modules.module import _has_any_global_hook

from ..compat.norms import RMSNorm

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_PARAMETERS = {Linear: {"weight", "bias"}, Conv1d: {"weight", "bias"}, RMSNorm: {"weight", "bias"}}
# functional calls put tensors in the place of parameters; subclasses are packed, or in parts on several devices
_ORDINARY = (Parameter, Tensor, type(None))


def is_plain(module, kind):
    """Whether a module is no more than its class on a weight and a bias of its own, so that the operation on these is the same as
    a call. `kind` is that class: `torch.nn.Linear`, `torch.nn.Conv1d` or the gated `RMSNorm`."""
    if type(module) is not kind or "forward" in module.__dict__ or _has_any_global_hook():
        return False
    for hooks in _HOOKS:
        if module.__dict__[hooks]:
            return False
    parameters = module._parameters
    if parameters.keys() != _PARAMETERS[kind]:
        return False
    for parameter in parameters.values():
        if type(parameter) not in _ORDINARY:
            return False
    return True
