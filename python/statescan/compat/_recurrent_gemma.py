"""The loop over tokens of RecurrentGemma in `transformers`, which is a method of its layer, by `linear_scan`."""

import functools
import importlib.util
import sys
from importlib.abc import MetaPathFinder

MODULE = "transformers.models.recurrent_gemma.modeling_recurrent_gemma"


def _scan(own, self, hidden_states, recurrent_gate, reset, recurrent_states, acc_dtype=None):
    """The result of `own`, the method that is replaced: states in the type of inputs, and the last one in `acc_dtype`."""
    torch = sys.modules["torch"]
    from .. import functions

    acc_dtype = torch.float32 if acc_dtype is None else acc_dtype
    device = hidden_states.device.type
    if acc_dtype != torch.float32 or not (
        device in ("cpu", "meta") or (device == "cuda" and hidden_states.dtype != torch.float64)
    ):
        return own(self, hidden_states, recurrent_gate, reset, recurrent_states, acc_dtype)
    if recurrent_states is not None:
        recurrent_states = recurrent_states.to(recurrent_gate.device)
    if device == "cpu" and not torch.compiler.is_compiling() and not reset[:, 1:].any():
        # one text a row: what begins there is the state, and the decays need no pass over memory
        recurrent_states = None if recurrent_states is None else recurrent_states * ~reset[:, 0]
    else:
        recurrent_gate = recurrent_gate * ~reset
    h, state = functions.linear_scan(recurrent_gate.transpose(1, 2), hidden_states.transpose(1, 2), recurrent_states)
    return h.transpose(1, 2).to(hidden_states.dtype), state.to(acc_dtype)


class _AfterImport(MetaPathFinder):
    """Finds the module as others do, and replaces the method once it has run."""

    asking = False

    def find_spec(self, fullname, path=None, target=None):
        if fullname != MODULE or self.asking:
            return None
        self.asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.asking = False
        if spec is not None:
            run = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (run(module), self in sys.meta_path and _replace(module))
        return spec


_AFTER_IMPORT = _AfterImport()
# the layers whose method is replaced, each with its own one
_REPLACED = {}


def _replace(module):
    """Puts ours in the place of the method; one that takes other arguments is left alone."""
    layer = getattr(module, "RecurrentGemmaRglru", None)
    own = None if layer is None else vars(layer).get("_rnn_scan")
    names = ("self", "hidden_states", "recurrent_gate", "reset", "recurrent_states", "acc_dtype")
    if own is None or own.__code__.co_varnames[: own.__code__.co_argcount] != names:
        return

    @functools.wraps(own)
    def _rnn_scan(self, *arguments, **options):
        return _scan(own, self, *arguments, **options)

    layer._rnn_scan, _REPLACED[layer] = _rnn_scan, own


def put():
    """Replaces the method in the module if it is there, and else as soon as it has been imported."""
    sys.meta_path.insert(0, _AFTER_IMPORT)
    if MODULE in sys.modules:
        _replace(sys.modules[MODULE])


def put_back():
    """Undoes `put`."""
    sys.meta_path.remove(_AFTER_IMPORT)
    while _REPLACED:
        layer, own = _REPLACED.popitem()
        layer._rnn_scan = own


def is_ours():
    """Whether the method is replaced."""
    return bool(_REPLACED)
