"""Scans as JAX's users write them, with `jax.lax.associative_scan`, beside statescan's, in one run on JAX's default device.

Two of them: Mamba's selective scan with skip, gate, bias and softplus, and S5's layer with steps that do not depend on time. Each
row is verified before it is timed: results and gradients of both, for the first steps, against a loop over time in float64.
Errors are relative: the norm of the difference by the norm of what is exact. Calls are compiled, in float32 or complex64; both
sides take turns, and the fastest call counts. `gradient` is a forward and a backward pass with every gradient. Memory is the most
that a call takes beyond its arguments: results, what the gradient keeps, scratch memory, that of threads included. It is measured
in a process of its own, whose allocations go back to the system at once; on the CPU to half a MiB, as Linux counts.
"""

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys
import time

# memory that nobody uses yet is left to the processes that measure it
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
from jax import lax

import statescan

VERIFIED_STEPS = 200
TOLERANCE = 1e-4
SIDES = ("ours", "peer")
PASSES = ("forward", "gradient")


def by_associative_scan(decay, drive):
    """The states h[t] = decay[t] h[t-1] + drive[t], along the first axis."""
    return lax.associative_scan(lambda a, b: (b[0] * a[0], b[0] * a[1] + b[1]), (decay, drive))[1]


def by_loop(decay, drive):
    """The same, one step after another."""

    def step(state, now):
        state = now[0] * state + now[1]
        return state, state

    return lax.scan(step, jnp.zeros_like(drive[0]), (decay, drive))[1]


def selective_scan(states, x, dt, A, B, C, D, z, dt_bias):
    """Mamba's scan by a function that makes states out of decays and inputs."""
    step = jax.nn.softplus(dt + dt_bias[:, None])
    decay = jnp.exp(jnp.einsum("bdl,dn->lbdn", step, A))
    h = states(decay, jnp.einsum("bdl,bnl->lbdn", step * x, B))
    return (jnp.einsum("lbdn,bnl->bdl", h, C) + D[:, None] * x) * jax.nn.silu(z)


def s5(states, u, delta, A, B, C, D):
    """S5's layer, discretized by a zero-order hold, whose states stand for conjugate pairs."""
    decay = jnp.exp(delta * A)
    inputs = jnp.einsum("n,np,bpl->lbn", (decay - 1) / A, B, u)
    h = states(jnp.broadcast_to(decay, inputs.shape), inputs)
    return 2 * jnp.einsum("pn,lbn->bpl", C, h).real + D[:, None] * u


def our_selective_scan(x, dt, A, B, C, D, z, dt_bias):
    return statescan.selective_scan(x, dt, A, B, C, D, z=z, dt_bias=dt_bias, dt_softplus=True)[0]


def our_s5(u, delta, A, B, C, D):
    return statescan.s5_inner_fn(u, delta, A, B, C, D, discretization="zoh")


def selective_scan_arguments(batch, dim, seqlen, dstate):
    """What a layer with Mamba's first parameters sees, and the gradient by the output."""
    keys = iter(jax.random.split(jax.random.key(0), 7))
    x, dt, z, cotangent = (jax.random.normal(next(keys), (batch, dim, seqlen)) for _ in range(4))
    B, C = (jax.random.normal(next(keys), (batch, dstate, seqlen)) for _ in range(2))
    step = jnp.exp(jax.random.uniform(next(keys), (dim,), minval=-6.9, maxval=-2.3))
    A = -jnp.broadcast_to(jnp.arange(1.0, dstate + 1), (dim, dstate))
    return (x, 0.5 * dt, A, B, C, jnp.ones(dim), z, jnp.log(jnp.expm1(step))), cotangent


def s5_arguments(batch, dim, seqlen, dstate):
    """What a layer of S5 sees, whose poles are those of its first parameters in kind: one decay, and rising frequencies."""
    keys = iter(jax.random.split(jax.random.key(0), 6))
    u, cotangent = (jax.random.normal(next(keys), (batch, dim, seqlen)) for _ in range(2))
    poles = lax.complex(jnp.full(dstate, -0.5), jnp.pi * jnp.arange(dstate))
    maps = [jax.random.normal(next(keys), (dstate, dim), jnp.complex64) / dim**0.5 for _ in range(2)]
    delta = jnp.exp(jax.random.uniform(next(keys), (dstate,), minval=-6.9, maxval=-2.3))
    return (u, delta, poles, maps[0], maps[1].T, jnp.ones(dim)), cotangent


KINDS = {
    "selective scan": (our_selective_scan, selective_scan, selective_scan_arguments),
    "S5": (our_s5, s5, s5_arguments),
}
# (batch, dim, seqlen, dstate) on each kind of device
ROWS = {
    "cpu": {
        "selective scan": [(1, 768, 512, 16), (1, 1536, 1024, 16)],
        "S5": [(1, 512, 1024, 256), (8, 256, 1024, 128)],
    },
    "gpu": {
        "selective scan": [(1, 768, 512, 16), (1, 1536, 4096, 16), (4, 1536, 2048, 16)],
        "S5": [(8, 512, 4096, 256), (1, 256, 65536, 128), (32, 256, 1024, 128)],
    },
}


def function_of(kind, side):
    ours, peer, _ = KINDS[kind]
    return ours if side == "ours" else functools.partial(peer, by_associative_scan)


def compiled(function, which):
    """A function of arguments and cotangent: the result, and for a gradient those of all arguments."""

    def gradient(arguments, cotangent):
        result, back = jax.vjp(function, *arguments)
        return result, back(cotangent)

    return jax.jit(gradient if which == "gradient" else lambda arguments, cotangent: function(*arguments))


def verify(kind, side, sizes):
    """The largest relative error of the result and the gradients for the first steps; ends the program if one is wrong."""
    batch, dim, seqlen, dstate = sizes
    arguments, cotangent = KINDS[kind][2](1, dim, min(seqlen, VERIFIED_STEPS), dstate)
    got = compiled(function_of(kind, side), "gradient")(arguments, cotangent)
    with jax.enable_x64(True):
        exact = [a.astype("complex128" if jnp.iscomplexobj(a) else "float64") for a in (*arguments, cotangent)]
        expected = compiled(functools.partial(KINDS[kind][1], by_loop), "gradient")(tuple(exact[:-1]), exact[-1])
        pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
        errors = [float(jnp.linalg.norm((a - b).ravel()) / jnp.linalg.norm(b.ravel())) for a, b in pairs]
    if not max(errors) < TOLERANCE:
        raise SystemExit(f"{kind} {sizes}: {side} is wrong, {errors}")
    return max(errors)


def seconds(call, repeats):
    start = time.perf_counter()
    for _ in range(repeats):
        result = call()
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / repeats


def times(kind, which, sizes, rounds):
    """The fastest call of each side, in seconds, over rounds in which they take turns."""
    arguments, cotangent = KINDS[kind][2](*sizes)
    calls = [functools.partial(compiled(function_of(kind, side), which), arguments, cotangent) for side in SIDES]
    repeats = [max(1, int(0.1 / max(seconds(call, 1) for _ in range(2)))) for call in calls]
    taken = [[seconds(call, count) for call, count in zip(calls, repeats)] for _ in range(rounds)]
    return [min(column) for column in zip(*taken)]


def resident(word):
    """Bytes of this process's memory: `VmRSS` now, or `VmHWM`, the most since that was reset."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(word))


def memory(kind, side, which, sizes):
    """Bytes that a call takes at most beyond its arguments. This is for a process of its own."""
    arguments, cotangent = jax.block_until_ready(KINDS[kind][2](*sizes))
    call = compiled(function_of(kind, side), which).lower(arguments, cotangent).compile()
    if jax.default_backend() != "cpu":
        device = jax.devices()[0]
        before = device.memory_stats()["bytes_in_use"]
        jax.block_until_ready(call(arguments, cotangent))
        return device.memory_stats()["peak_bytes_in_use"] - before
    jax.block_until_ready(call(arguments, cotangent))
    # scratch memory is freed soon after a result is there
    time.sleep(0.5)
    # the most is what there is now, and rises from here
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    jax.block_until_ready(call(arguments, cotangent))
    return resident("VmHWM") - before


def memory_elsewhere(kind, side, which, sizes):
    """The same, in a process whose allocations are given back when they are freed."""
    command = [sys.executable, __file__, "--memory-of", json.dumps([kind, side, which, sizes])]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    return int(done.stdout) if done.returncode == 0 else None


def measure(kind, sizes, rounds):
    """The lines of a row: one for each pass."""
    errors = "  ".join(f"{verify(kind, side, sizes):.0e}" for side in SIDES)
    for which in PASSES:
        ours, peer = times(kind, which, sizes, rounds)
        most = [memory_elsewhere(kind, side, which, sizes) for side in SIDES]
        room = " ".join(f"{'?' if taken is None else format(taken / 2**20, '.1f'):>9}" for taken in most)
        figures = f"{1e3 * ours:>9.3f} {1e3 * peer:>9.3f} {peer / ours:>6.1f} {room}"
        yield f"{kind:<14} {str(sizes):<22} {which:<9} {figures}  {errors}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--sizes", type=int, nargs=4, metavar=("BATCH", "DIM", "SEQLEN", "DSTATE"), help="one row of this size")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of:
        print(memory(*json.loads(args.memory_of)))
        return
    device = jax.devices()[0]
    print(f"JAX {jax.__version__}, {device.device_kind}, {len(os.sched_getaffinity(0))} cores, {args.rounds} rounds")
    print("kind, (batch, dim, seqlen, dstate), pass; ms of ours and of associative_scan, and their ratio; MiB of both; errors")
    for kind in args.kinds:
        for sizes in [tuple(args.sizes)] if args.sizes else ROWS[device.platform][kind]:
            for line in measure(kind, sizes, args.rounds):
                print(line, flush=True)


if __name__ == "__main__":
    main()
