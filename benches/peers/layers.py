"""The layers of `mamba_ssm` beside those of `statescan.nn`, on a CUDA device, in one run: the README's table and its picture.

Both sides have the same weights, inputs and type. Results and gradients of the input are compared before anything is timed. A
time is that of a call as users make it, without a graph, between events of the device: the launches of a small layer count too.
The two sides take turns; medians. A row is a forward pass without gradients, and a forward and backward pass with the gradient
of every weight.

Without `mamba_ssm`, whose extension and `causal_conv1d`'s must have been built for this PyTorch, ours are timed alone.
"""

import argparse
import importlib
import json
import statistics
import sys

import torch

from statescan import nn

REPEATS = 30
# the largest difference between both sides: they take sums of bf16 in another order
TOLERANCE = 0.05

# (batch, seqlen, d_model), and arguments of the layer
ROWS = {
    "Mamba (4, 2048, 768)": ("Mamba", (4, 2048, 768), {}),
    "Mamba (8, 2048, 2048)": ("Mamba", (8, 2048, 2048), {}),
    "Mamba (1, 8192, 2560)": ("Mamba", (1, 8192, 2560), {}),
    "Mamba (1, 333, 1024)": ("Mamba", (1, 333, 1024), {}),
    "Mamba2 (4, 2048, 768)": ("Mamba2", (4, 2048, 768), {}),
    "Mamba2 (8, 2048, 2560)": ("Mamba2", (8, 2048, 2560), {}),
    "Mamba2 (8, 2048, 2560), 8 groups": ("Mamba2", (8, 2048, 2560), {"ngroups": 8}),
    "Mamba2 (1, 8192, 2560)": ("Mamba2", (1, 8192, 2560), {}),
    "Mamba2 (2, 4096, 4096)": ("Mamba2", (2, 4096, 4096), {}),
    "Mamba2 (1, 333, 1024)": ("Mamba2", (1, 333, 1024), {}),
}


def peers():
    """The peer's layers by name, or None with the reason printed."""
    try:
        modules = {"Mamba": "mamba_ssm.modules.mamba_simple", "Mamba2": "mamba_ssm.modules.mamba2"}
        return {name: getattr(importlib.import_module(module), name) for name, module in modules.items()}
    except ImportError as error:
        print(f"the peer is left out, since it cannot be imported: {error}", file=sys.stderr)
        return None


def layers(kind, d_model, options, origins):
    """Ours, and the peer's if there is one, with the same weights."""
    torch.manual_seed(0)
    place = {"device": "cuda", "dtype": torch.bfloat16}
    ours = getattr(nn, kind)(d_model, **options, **place)
    if origins is None:
        return [ours]
    theirs = origins[kind](d_model, **options, **place)
    theirs.load_state_dict(ours.state_dict())
    return [ours, theirs]


def passes(layer, x, dy):
    """A forward pass, and one with the backward pass behind it, which gives the output and the gradient by x."""

    def forward():
        with torch.no_grad():
            return layer(x)

    def both():
        y = layer(x)
        return y, *torch.autograd.grad(y, [x, *layer.parameters()], dy)[:1]

    return forward, both


def check(name, found):
    """Stops where the sides do not agree."""
    for ours, theirs in zip(*found):
        error = ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()
        if not error < TOLERANCE:
            raise SystemExit(f"{name}: the sides differ by {error:.1e}")


def times(runs):
    """Milliseconds of each run, which take turns."""
    found = [[] for _ in runs]
    for _ in range(REPEATS):
        for run, taken in zip(runs, found):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            taken.append(begin.elapsed_time(end))
    return [statistics.median(taken) for taken in found]


def measure(name, origins):
    """Two rows, with the times of ours and of the peer's."""
    kind, shape, options = ROWS[name]
    generator = torch.Generator("cuda").manual_seed(0)
    x, dy = (torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    sides = [passes(layer, x.requires_grad_(), dy) for layer in layers(kind, shape[-1], options, origins)]
    # kernels are compiled and tuned by the first calls
    found = [both() for _, both in sides for _ in range(2)][1::2]
    if len(found) > 1:
        check(name, found)
    for words, runs in zip((f"{name} forward", "and backward"), zip(*sides)):
        for run in runs:
            run()
        taken = times(runs)
        yield {"name": words, "ours": round(taken[0], 4), "theirs": round(taken[1], 4) if len(taken) > 1 else None}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help="; ".join(ROWS))
    parser.add_argument("--json", metavar="FILE", help="to write the rows to, for benches/figures/speed.py")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("nothing is measured: PyTorch has no CUDA device")
    origins, card = peers(), torch.cuda.get_device_name()
    print(f"{card}, PyTorch {torch.__version__}, bf16; milliseconds of theirs and of ours, and their ratio")
    command, rows = " ".join(["python", *sys.argv]), []
    for name in args.rows:
        for row in measure(name, origins):
            rows.append({**row, "card": card, "command": command})
            theirs = "" if row["theirs"] is None else f"{row['theirs']:>9.3f} / "
            ratio = "" if row["theirs"] is None else f" = {row['theirs'] / row['ours']:.2f}"
            print(f"{row['name']:<42} {theirs}{row['ours']:.3f}{ratio}", flush=True)
        torch.cuda.empty_cache()
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
