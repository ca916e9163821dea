"""Finds NVRTC, which compiles the kernels for a GPU, where pip puts it and the system's loader does not look."""

import ctypes
import functools
import importlib.util
import pathlib


@functools.cache
def load() -> None:
    """Loads the library that came with PyTorch, CuPy or JAX; if none did, the native half looks for that of the CUDA toolkit."""
    packages = importlib.util.find_spec("nvidia")
    for folder in (packages and packages.submodule_search_locations) or ():
        for path in sorted(pathlib.Path(folder).glob("*/lib/libnvrtc.so.*"), reverse=True):
            try:
                ctypes.CDLL(str(path))
            except OSError:
                continue
            return
