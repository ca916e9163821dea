"""How many threads a call on the CPU uses."""

import sys

from . import _native


def set_num_threads(threads: int | None) -> None:
    """Sets the number of threads of every later call on the CPU; None goes back to the default.

    The default is PyTorch's own number (`torch.get_num_threads()`) where PyTorch is loaded; otherwise, and for JAX, the number
    of cores that the process may use when it is first needed.
    Where PyTorch has GNU's OpenMP, as its wheels for Linux do, they are PyTorch's own threads.
    Results are bit-identical for any number.
    """
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise ValueError(f"set_num_threads: `threads` must be an integer of at least 1, or None, got {threads!r}")
    _native.choose_threads(threads or 0)


def get_num_threads() -> int:
    """The number of threads that a call on the CPU uses."""
    if chosen := _native.chosen_threads():
        return chosen
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if hasattr(torch, "get_num_threads") else _native.cores()
