"""Parameters in groups, as optimizers take them."""

from typing import Any

from torch import nn

from .mamba import Mamba
from .mamba2 import Mamba2
from .s5 import S5

# decays and steps of layers: small changes of them are large ones of what states remember
_OF_SCANS = {Mamba: ("A_log", "dt_proj.bias"), Mamba2: ("A_log", "dt_bias"), S5: ("A", "log_dt")}


def parameter_groups(
    module: nn.Module, lr: float, weight_decay: float = 0.01, scan_lr: float | None = None
) -> list[dict[str, Any]]:
    """The parameters of a model in groups for an optimizer: ``AdamW(parameter_groups(model, lr=1e-3, scan_lr=1e-4))``.

    Args:
        module: a model that may have layers of this package anywhere.
        lr, weight_decay: of all parameters that the other groups have not.
        scan_lr: the rate of decays and step sizes of the layers (A, A_log, dt_bias, log_dt), a tenth of `lr` if it is None.

    Returns:
        Three groups, without those that would be empty: matrices; vectors and what is marked by `_no_weight_decay`, as skips are,
        without weight decay; decays and step sizes, without weight decay and with their own rate.

    Examples:
        >>> model = torch.nn.Sequential(Mamba(16), torch.nn.Linear(16, 2))
        >>> [group["lr"] for group in parameter_groups(model, lr=1e-3, scan_lr=1e-4)]
        [0.001, 0.001, 0.0001]
    """
    scans = set()
    for layer in module.modules():
        names = next((names for kind, names in _OF_SCANS.items() if isinstance(layer, kind)), ())
        own = dict(layer.named_parameters()) if names else {}
        scans |= {id(own[name]) for name in names if name in own}
    groups: dict[str, list[nn.Parameter]] = {"matrices": [], "vectors": [], "scans": []}
    for parameter in module.parameters():
        if parameter.requires_grad:
            is_vector = parameter.dim() < 2 or getattr(parameter, "_no_weight_decay", False)
            groups["scans" if id(parameter) in scans else "vectors" if is_vector else "matrices"].append(parameter)
    settings = {"matrices": (lr, weight_decay), "vectors": (lr, 0.0), "scans": (lr / 10 if scan_lr is None else scan_lr, 0.0)}
    return [
        {"params": parameters, "lr": settings[name][0], "weight_decay": settings[name][1]}
        for name, parameters in groups.items()
        if parameters
    ]
