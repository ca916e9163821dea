"""Mamba-2's Triton kernels (`mamba_ssm`) beside statescan's, on a CUDA device, in one run.

Both are called through the same function, `mamba_chunk_scan_combined`. Each row is verified before it is timed: results and
gradients of both, for the first steps of its first sequence, against a plain loop over time in float64. Errors are relative:
the norm of the difference by the norm of what is exact. Times are those of the device for all launches of a pass, out of a CUDA
graph, with nothing of the call in the caches; medians.

Rows with options are measured with decays of several kinds: a kernel may depend on them. A is uniform from -16 to -1, the bias
gives steps from 0.001 to 0.1, and what is added to it is normal. `initialised`: 0.5 times; `trained`, as training may leave it:
1.5 times; `strong`: twice, with a bias larger by 3, so that half of all spans of 32 steps decay by more than 85 nats.

The peer's files need no compiled extension: `pip download --no-deps --no-binary :all: mamba_ssm`, unpacked, is what `--peer`
takes.
"""

import argparse
import importlib
import itertools
import os
import pathlib
import sys
import types

import torch
from device import REPEATS, compile_kernels, kernel_times

from statescan.compat.mamba_ssm import mamba_chunk_scan_combined as ours

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "python"))
from agreement import chunk_scan  # noqa: E402

CHUNK_SIZE = 256
VERIFIED_STEPS = 200

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "tf32": torch.float32}
# errors beyond which a pass is wrong rather than inexact; the peer computes f32 in tf32
TOLERANCE = {"bf16": 0.1, "f16": 0.02, "f32": 1e-4, "tf32": 0.02}

# how far steps before the bias are from it, and what is added to the bias
DECAYS = {"initialised": (0.5, 0.0), "trained": (1.5, 0.0), "strong": (2.0, 3.0)}

# (batch, seqlen, nheads, headdim, ngroups, dstate)
MODEL = (8, 2048, 80, 64, 1, 128)
ROWS = {
    "80 heads": (MODEL, ""),
    "80 heads, long": ((1, 8192, 80, 64, 1, 128), ""),
    "24 heads, longer": ((1, 65536, 24, 64, 1, 128), ""),
    "8 groups": ((8, 4096, 128, 64, 8, 128), ""),
    "every option": (MODEL, "options"),
    "but a gate": (MODEL, "no gate"),
    "options, long": ((1, 8192, 80, 64, 1, 128), "options"),
    "options, longer": ((1, 65536, 24, 64, 1, 128), "options"),
    "options, 8 groups": ((8, 4096, 128, 64, 8, 128), "options"),
    "options, 24 heads": ((4, 2048, 24, 64, 1, 128), "options"),
    "options, 333 steps": ((2, 333, 24, 64, 1, 128), "options"),
    "options, 32 steps": ((1, 32, 80, 64, 1, 128), "options"),
    "options, 256": ((2, 2048, 128, 64, 8, 256), "options"),
    "one step less": ((8, 2047, 80, 64, 1, 128), ""),
    "one step more": ((8, 2049, 80, 64, 1, 128), ""),
    "1000 steps": ((8, 1000, 80, 64, 1, 128), ""),
    "16 sequences": ((1, 16384, 80, 64, 1, 128), "packed"),
    "one sequence": ((1, 16384, 80, 64, 1, 128), ""),
    "80 columns": ((8, 2048, 80, 80, 1, 128), ""),
    "256 states": ((8, 2048, 80, 64, 1, 256), ""),
    "256 states, packed": ((1, 16384, 80, 64, 1, 256), "packed"),
    "short": ((1, 256, 24, 64, 1, 128), ""),
    "100 steps": ((2, 100, 24, 64, 1, 128), ""),
}


def import_peer(folder):
    """The peer's function, from its files in a folder or as it is installed."""
    if folder is not None:
        # its own __init__ would import the compiled extension
        package = types.ModuleType("mamba_ssm")
        package.__path__ = [str(pathlib.Path(folder) / "mamba_ssm")]
        sys.modules["mamba_ssm"] = package
    return importlib.import_module("mamba_ssm.ops.triton.ssd_combined").mamba_chunk_scan_combined


def has_options(kind):
    return kind in ("options", "no gate")


def arguments(sizes, kind, dtype, decays="initialised", device="cuda"):
    """The arguments of both functions, with the distributions of Mamba-2's parameters, and the gradient by y."""
    batch, seqlen, nheads, headdim, ngroups, dstate = sizes
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape, of=dtype):
        return torch.randn(shape, generator=generator, device=device).to(of)

    def uniform(low, high, *shape):
        return torch.empty(shape, device=device).uniform_(low, high, generator=generator)

    heads, maps = (batch, seqlen, nheads, headdim), (batch, seqlen, ngroups, dstate)
    step = uniform(-6.9, -2.3, nheads).exp()
    found = {
        "x": normal(*heads),
        "dt": (step * normal(*heads[:3], of=torch.float32).exp()).to(dtype),
        "A": -uniform(1, 16, nheads),
        "B": normal(*maps),
        "C": normal(*maps),
    }
    if has_options(kind):
        spread, more = DECAYS[decays]
        found["dt"] = spread * normal(*heads[:3])
        found |= {"D": torch.ones(nheads, device=device), "dt_bias": step.expm1().log() + more}
        if kind == "options":
            found["z"] = normal(*heads)
        found["initial_states"] = normal(batch, nheads, headdim, dstate, of=torch.float32)
    if kind == "packed":
        lengths = torch.tensor([90, *(seqlen // 16 + 64 * (k - 8) for k in range(1, 15))])
        lengths = torch.cat([lengths, seqlen - lengths.sum()[None]])
        found["seq_idx"] = torch.arange(16, dtype=torch.int32).repeat_interleave(lengths)[None].to(device)
    return found, normal(*heads)


def settings(kind):
    return {"dt_softplus": has_options(kind), "return_final_states": has_options(kind)}


def leaves(tensors):
    return [tensor for tensor in tensors.values() if tensor.is_floating_point()]


def results(function, tensors, kind):
    """y, and the final states where they are asked for."""
    found = function(**tensors, chunk_size=CHUNK_SIZE, **settings(kind))
    return found if isinstance(found, tuple) else (found,)


def cotangents(found, dy):
    # the final states have a cotangent in any case
    return [dy.to(found[0].dtype), *(torch.ones_like(states) for states in found[1:])]


def first_steps(tensors, dy):
    """A small call out of a large one."""

    def cut(name, tensor):
        if name in ("A", "D", "dt_bias"):
            return tensor
        return tensor[:1] if name == "initial_states" else tensor[:1, :VERIFIED_STEPS]

    return {name: cut(name, tensor).contiguous() for name, tensor in tensors.items()}, dy[:1, :VERIFIED_STEPS]


def outcome(function, tensors, dy, kind):
    """Results and gradients by name."""
    tensors = {name: t.detach().requires_grad_(t.is_floating_point()) for name, t in tensors.items()}
    found = results(function, tensors, kind)
    gradients = torch.autograd.grad(found, leaves(tensors), cotangents(found, dy))
    names = [name for name, tensor in tensors.items() if tensor.is_floating_point()]
    return dict(zip(("y", "final states"), found)), dict(zip(names, gradients))


def exact(tensors, dy, kind):
    """The same in float64, by a loop over time."""
    wide = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}

    def loop(**arguments):
        del arguments["return_final_states"]
        y, states = chunk_scan(D=arguments.pop("D", None), **arguments)
        return (y, states) if has_options(kind) else y

    return outcome(loop, wide, dy.double(), kind)


def largest_error(got, expected):
    """The largest of the relative errors, with its name."""

    def error(name):
        difference = (got[name].double() - expected[name]).norm() / expected[name].norm()
        return difference.item() if difference.isfinite() else float("inf")

    return max((error(name), name) for name in expected)


def times(function, tensors, dy, kind):
    """Microseconds of the forward and of the backward pass."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    tensors = {name: t.detach().requires_grad_(t.is_floating_point()) for name, t in tensors.items()}

    def forward():
        with torch.no_grad():
            return results(function, tensors, kind)

    # gradients are computed in the stream of their forward pass; both have been compiled and tuned when they are recorded
    with torch.cuda.stream(stream):
        forward()
        found = results(function, tensors, kind)

        def backward():
            return torch.autograd.grad(found, leaves(tensors), cotangents(found, dy), retain_graph=True)

        backward()
    torch.cuda.synchronize()
    return kernel_times((forward, backward), stream)


def call_peer(folder, sizes_and_kinds, types):
    function = import_peer(folder)
    for sizes, kind in sizes_and_kinds:
        for word in types:
            tensors, dy = arguments(sizes, kind, TYPES[word])
            outcome(function, tensors, dy, kind)


def compile_peer(folder, rows, types, processes):
    """The peer's kernels for some rows."""
    calls = list(dict.fromkeys(map(ROWS.get, rows)))
    types = sorted({"f32" if word == "tf32" else word for word in types})
    compile_kernels(call_peer, (folder, calls, types), processes)


def measure(name, word, decays, peer):
    """The lines of a row: one for each pass."""
    sizes, kind = ROWS[name]
    torch.backends.cuda.matmul.allow_tf32 = word == "tf32"
    tensors, dy = arguments(sizes, kind, TYPES[word], decays)
    small, small_dy = first_steps(tensors, dy)
    expected = exact(small, small_dy, kind)
    columns = []
    for function, tolerance in ((ours, TOLERANCE[word]), (peer, max(TOLERANCE[word], TOLERANCE["tf32"]))):
        if function is None:
            columns.append(((float("nan"), float("nan")), [(float("nan"), "")] * 2))
            continue
        # kernels are compiled and tuned at their first call: at the size that is timed
        outcome(function, tensors, dy, kind)
        got = outcome(function, small, small_dy, kind)
        errors = [largest_error(*pair) for pair in zip(got, expected)]
        if max(errors)[0] > tolerance:
            raise SystemExit(f"{name}, {word}, {decays}: {function.__module__} is wrong, {errors}")
        del got
        columns.append((times(function, tensors, dy, kind), errors))
    (our_times, our_errors), (peer_times, peer_errors) = columns
    for i, which in enumerate(("forward", "backward")):
        errors = "  ".join(f"{error:.1e} {of:<14}" for error, of in (our_errors[i], peer_errors[i]))
        ratio = peer_times[i] / our_times[i]
        yield f"{name:<18} {word:<4} {decays:<11} {which:<8} {our_times[i]:>9.1f} {peer_times[i]:>9.1f} {ratio:>6.2f}  {errors}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="FOLDER", help="with the files of mamba_ssm; otherwise it must be installed")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES), metavar="TYPE", help=", ".join(TYPES))
    parser.add_argument("--decays", nargs="+", choices=DECAYS, default=list(DECAYS), metavar="KIND", help="of rows with options")
    parser.add_argument("--alone", action="store_true", help="without the peer")
    parser.add_argument("--processes", type=int, default=min(os.cpu_count(), 12), help="that compile the peer's kernels")
    args = parser.parse_args()
    if args.processes > 1 and not args.alone:
        compile_peer(args.peer, args.rows, args.types, args.processes)
    peer = None if args.alone else import_peer(args.peer)
    import triton

    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, Triton {triton.__version__}; medians of {REPEATS}")
    head = f"{'row':<18} {'type':<4} {'decays':<11} {'pass':<8} {'ours, us':>9} {'peer, us':>9} {'ratio':>6}"
    print(f"{head}  {'error, ours':<22}  error, peer")
    for name in args.rows:
        kinds = args.decays if has_options(ROWS[name][1]) else ["initialised"]
        for word, decays in itertools.product(args.types, kinds):
            for line in measure(name, word, decays, peer):
                print(line, flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
