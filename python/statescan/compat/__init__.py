"""Drop-in modules for `mamba_ssm`, `causal_conv1d`, `lrnnx`, `nkilib` and `fla`: their names, argument orders and shapes.

Import a function from here, or call `install()` once: code that imports these functions from those packages then gets them where
the packages are missing, and with `install(replace=True)` where they are installed, too. `report()` says what runs on what.
The modules `vllm` and `flashinfer` have the functions of these engines, for whoever imports them from here.
"""

from ._standins import install, report

__all__ = ["install", "report"]
