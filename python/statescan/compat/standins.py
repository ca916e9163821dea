"""Modules under the import paths of other packages."""

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

# what a package says its version is: the one whose interface is followed here
_VERSIONS = {
    "mamba_ssm": "2.3.0+statescan",
    "causal_conv1d": "1.6.0+statescan",
    "lrnnx": "1.0.0+statescan",
    "nkilib": "1.0.0+statescan",
}

_SCANS = ("mamba_inner_fn", "selective_scan_fn")
_CHUNKED = ("mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined")
_CONVOLUTIONS = ("causal_conv1d_fn", "causal_conv1d_update")
_NORMS = ("LayerNorm", "RMSNorm", "layernorm_fn", "rmsnorm_fn")
_RESIDUAL_NORMS = ("RMSNorm", "layer_norm_fn", "layer_norm_linear_fn", "rms_norm_fn")
_SIMPLIFIED = ("s5_inner_fn", "simplified_scan_fn")

# the names in each module
_MODULES = {
    "mamba_ssm": (*_SCANS, "Mamba", "Mamba2"),
    "mamba_ssm.modules": (),
    "mamba_ssm.modules.mamba2": ("Mamba2",),
    "mamba_ssm.modules.mamba_simple": ("Mamba",),
    "mamba_ssm.ops": (),
    "mamba_ssm.ops.selective_scan_interface": _SCANS,
    "mamba_ssm.ops.triton": (),
    "mamba_ssm.ops.triton.layer_norm": _RESIDUAL_NORMS,
    "mamba_ssm.ops.triton.layernorm_gated": _NORMS,
    "mamba_ssm.ops.triton.selective_state_update": ("selective_state_update",),
    "mamba_ssm.ops.triton.ssd_combined": _CHUNKED,
    "causal_conv1d": _CONVOLUTIONS,
    "causal_conv1d.causal_conv1d_interface": _CONVOLUTIONS,
    "lrnnx": (),
    "lrnnx.models": (),
    "lrnnx.models.ltv": ("S5",),
    "lrnnx.models.ltv.s5": ("S5",),
    "lrnnx.ops": (),
    "lrnnx.ops.selective_scan": ("selective_scan_fn",),
    "lrnnx.ops.simplified_scan": _SIMPLIFIED,
    "lrnnx.ops.triton": (),
    "lrnnx.ops.triton.selective_state_update": ("selective_state_update",),
    "lrnnx.ops.triton.simplified_state_update": ("simplified_state_update",),
    "nkilib": (),
    "nkilib.experimental": (),
    "nkilib.experimental.scan": ("selective_scan", "ssd"),
}

# names come from the module here that is called as the package, but for these
_LAYERS = ("Mamba", "Mamba2", "S5")
_SOURCES = {"mamba_ssm.ops.triton.layer_norm": ".layer_norm"}


# names that `transformers` finds other functions under
_BY_ASKER = ("causal_conv1d_fn", "causal_conv1d_update", "mamba_inner_fn", "mamba_split_conv1d_scan_combined")


def _find(name, module):
    source = "..nn" if name in _LAYERS else _SOURCES.get(module, f".{module.partition('.')[0]}")
    return getattr(import_module(source, __package__), name)


def _by_asker(module):
    """What is called where a module does not have a name in its dictionary."""

    def find(name):
        if name not in _MODULES[module] or name not in _BY_ASKER:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        for_models = import_module(".transformers", __package__)
        return for_models.FUNCTIONS[name] if for_models.is_asking(1) else _find(name, module)

    return find


class _StandIns(MetaPathFinder, Loader):
    """Finds the modules above. It is asked last, so a package that is installed goes first."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in _MODULES:
            return None
        parent = sys.modules.get(fullname.rpartition(".")[0])
        if parent is not None and parent.__spec__.loader is not self:
            # a module that the installed package does not have
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in _MODULES)
        return ModuleSpec(fullname, self, origin="statescan.compat", is_package=is_package)

    def exec_module(self, module):
        package = module.__name__.partition(".")[0]
        if module.__name__ == package:
            module.__version__ = _VERSIONS[package]
        names = _MODULES[module.__name__]
        module.__all__ = list(names)
        module.__getattr__ = _by_asker(module.__name__)
        vars(module).update({name: _find(name, module.__name__) for name in names if name not in _BY_ASKER})


_STAND_INS = _StandIns()


def install() -> None:
    """Lets code that imports the operations of `mamba_ssm`, `causal_conv1d`, `lrnnx` or `nkilib`, or the layers
    `mamba_ssm.Mamba`, `mamba_ssm.Mamba2` and `lrnnx.models.ltv.S5`, run on this package where those are not installed. Their
    models are not here.

    It only adds an entry at the end of `sys.meta_path`: nothing is imported now, and a package that is installed is left alone.
    Call it before the code that imports them. Models of `transformers` look for them when their module is first imported.
    """
    if _STAND_INS in sys.meta_path:
        return
    late = [name for name, module in sys.modules.items() if _chose_without(name, module)]
    if late:
        warnings.warn(f"install() came after the import of {', '.join(late)}, which will not use it", stacklevel=2)
    sys.meta_path.append(_STAND_INS)


def _chose_without(name, module):
    """Whether a module of a model has looked for the packages already."""
    return name.startswith("transformers.models.") and hasattr(module, "causal_conv1d_fn")
