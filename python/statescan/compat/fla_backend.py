"""The gated delta rule behind an installed `fla` 0.6 (flash-linear-attention), whose layers and models then compute on it.

```python
from statescan.compat import fla_backend

fla_backend.register()
```

`fla` asks its backends one after another whether they take a call. Ours is asked first and takes what the functions of
`statescan.compat.fla` take, on CPUs and NVIDIA GPUs; all else is computed by `fla`. Without `register` nothing changes, and
`FLA_STATESCAN=0` in the environment turns it off.
"""

import inspect

from . import fla

__all__ = ["register"]

# options of the origin that its functions name, and ours refuse
_REFUSED = ("cp_context", "return_intermediate_states")


def _verdict(name: str, *arguments: object, **options: object) -> tuple[bool, str | None]:
    """Whether a call is taken, and the reason why not."""
    signature = inspect.signature(getattr(fla, name))
    given = signature.bind(*arguments, **options).arguments
    others = next(parameter.name for parameter in signature.parameters.values() if parameter.kind is parameter.VAR_KEYWORD)
    asked = {option: given.get(option) for option in _REFUSED} | given.get(others, {})
    asked.pop(fla._OLDER, None)
    if option := fla._refused(asked):
        return False, f"statescan has no `{option}`"
    if given["beta"].dim() == given["v"].dim():
        return False, "statescan has a `beta` of (batch, seqlen, value_heads)"
    device, wide = given["v"].device.type, given["v"].element_size() == 8
    if device != "cpu" and (device != "cuda" or wide):
        return False, f"statescan has no kernel for {given['v'].dtype} on {device}"
    return True, None


def register() -> None:
    """Registers `statescan.compat.fla` with the installed `fla`, whose chunked functions ask it first.

    Raises:
        ImportError: `fla` 0.6 or newer is not installed.
    """
    from fla.backends import BaseBackend
    from fla.backends import register as register_with
    from fla.ops.kda.chunk import chunk_kda

    class Statescan(BaseBackend):
        """Its methods are what `fla` calls by the names of its functions."""

        backend_type = "statescan"
        package_name = "statescan"
        env_var = "FLA_STATESCAN"
        priority = 0
        chunk_gated_delta_rule = staticmethod(fla.chunk_gated_delta_rule)
        chunk_kda = staticmethod(fla.chunk_kda)

        @staticmethod
        def chunk_gated_delta_rule_verifier(*arguments, **options):
            return _verdict("chunk_gated_delta_rule", *arguments, **options)

        @staticmethod
        def chunk_kda_verifier(*arguments, **options):
            return _verdict("chunk_kda", *arguments, **options)

    for entry in ("gated_delta_rule", chunk_kda):
        register_with(entry)(Statescan)
