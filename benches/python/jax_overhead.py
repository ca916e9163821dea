"""What a compiled call from JAX costs besides its work: functions at a tiny size, beside a custom call that does nothing.

The empty call takes and gives as many arrays, through the same interface of XLA's; a C++ compiler makes it from the headers that
come with JAX. Calls are compiled by `jit`, forward or with every gradient; one thread; the fastest of rounds that take turns, in
microseconds, until the result is there. `--limit` is what a call may take beyond the empty one: the program fails where one takes
more.
"""

import argparse
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax import ffi

import statescan

CALLS = 30
EMPTY = """
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;
static ffi::Error nothing(ffi::RemainingArgs, ffi::RemainingRets) { return ffi::Error::Success(); }
XLA_FFI_DEFINE_HANDLER_SYMBOL(empty, nothing, ffi::Ffi::Bind().RemainingArgs().RemainingRets());
"""


def register_empty_call():
    """Compiles the handler of the empty call, and makes it known to XLA."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = pathlib.Path(folder, "empty.cc"), pathlib.Path(folder, "empty.so")
        source.write_text(EMPTY)
        compiler = os.environ.get("CXX", "c++")
        try:
            command = [compiler, "-std=c++17", "-O2", "-w", "-shared", "-fPIC", f"-I{ffi.include_dir()}", source, "-o", library]
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(f"nothing is measured: the empty call cannot be compiled ({error})") from None
        loaded = ctypes.CDLL(str(library))
    ffi.register_ffi_target("statescan_empty", ffi.pycapsule(loaded.empty), platform="cpu")


def calls():
    """The functions with tiny arguments, by name."""
    keys = iter(jax.random.split(jax.random.key(0), 99))

    def real(*shape):
        return jax.random.normal(next(keys), shape)

    x, A, B, D = real(1, 4, 8), -abs(real(4, 2)), real(1, 2, 8), real(4)
    poles = jax.lax.complex(-abs(real(2)), real(2))
    state, step, b = real(1, 4, 2), real(1, 4), real(1, 2)
    everything = {"D": D, "initial_state": state, "z": x, "dt_bias": D}
    return {
        "selective_scan": (statescan.selective_scan, (x, x, A, B, B)),
        "selective_scan, all options": (
            lambda x, dt, A, B, C, more: statescan.selective_scan(x, dt, A, B, C, **more, dt_softplus=True),
            (x, x, A, B, B, everything),
        ),
        "ssd": (statescan.ssd, (real(1, 8, 2, 4), real(1, 8, 2), -abs(real(2)), real(1, 8, 2), real(1, 8, 2))),
        "simplified_scan_fn": (statescan.simplified_scan_fn, (x, B, poles, real(2, 4), real(4, 2))),
        "linear_scan": (statescan.linear_scan, (x, x)),
        "causal_conv1d": (statescan.causal_conv1d, (x, real(4, 4))),
        "norm": (statescan.norm, (x, real(8))),
        "selective_state_update": (statescan.selective_state_update, (state, step, step, A, b, b)),
    }


def empty_beside(function):
    """A call that does nothing, with the arguments and results of a compiled function."""
    types = jax.tree.leaves(jax.eval_shape(function[0], *function[1]))
    return jax.jit(lambda *arguments: ffi.ffi_call("statescan_empty", types)(*jax.tree.leaves(arguments)))


def with_gradients(function):
    """The results and the gradients of all arguments, for cotangents of one."""

    def both(*arguments):
        results, back = jax.vjp(function, *arguments)
        return results, back(jax.tree.map(jnp.ones_like, results))

    return both


def microseconds(call, arguments):
    start = time.perf_counter()
    for _ in range(CALLS):
        jax.block_until_ready(call(*arguments))
    return (time.perf_counter() - start) / CALLS * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--training", action="store_true", help="with every gradient; steps, which have none, are left out")
    parser.add_argument("--limit", type=float, default=float("inf"))
    options = parser.parse_args()
    statescan.set_num_threads(1)
    register_empty_call()
    works = {}
    for name, (function, arguments) in calls().items():
        if options.training and name.endswith("update"):
            continue
        function = with_gradients(function) if options.training else function
        pair = jax.jit(function), empty_beside((function, arguments))
        for call in pair:
            jax.block_until_ready(call(*arguments))
        works[name] = *pair, arguments, []
    for _ in range(options.rounds):
        for call, empty, arguments, taken in works.values():
            taken.append([microseconds(each, arguments) for each in (call, empty)])
    print(f"JAX {jax.__version__}, cpu; microseconds of a call, of an empty one, and their difference")
    most = 0.0
    for name, (*_, taken) in works.items():
        ours, empty = map(min, zip(*taken))
        most = max(most, ours - empty)
        print(f"{name:<30} {ours:6.1f} {empty:6.1f} {ours - empty:6.1f}")
    if most > options.limit:
        sys.exit(f"a call takes {most:.1f} microseconds more than an empty one; the limit is {options.limit}")


if __name__ == "__main__":
    main()
