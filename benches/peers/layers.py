"""The layers of `mamba_ssm` beside those of `statescan.nn`, on a CUDA device, in one run: the README's table and its picture.

Both sides have the same weights, inputs and type. Results and gradients of the input are compared before anything is timed. A
time is that of a call as users make it, without a graph, between events of the device: the launches of a small layer count too.
The two sides take turns; medians. A row is a forward pass without gradients, and a forward and backward pass with the gradient
of every weight, whose most memory is with it: weights, input and cotangent included. Models, of 24 layers, 768 wide, take steps
of training with AdamW, weights in float32 and products in bf16.

Without `mamba_ssm`, whose extension and `causal_conv1d`'s must have been built for this PyTorch, ours are timed alone.
"""

import argparse
import importlib
import json
import statistics
import sys

import torch

from statescan import nn
from statescan.compat import models

REPEATS = 30
# both sides may differ by this: sums of bf16 in another order
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
# the layers of a model, and (batch, seqlen)
MODELS = {
    "Model of Mamba, 130m (4, 2048)": ("Mamba1", (4, 2048)),
    "Model of Mamba-2, 130m (4, 2048)": ("Mamba2", (4, 2048)),
}
VOCABULARY = 50277


def peers():
    """The peer's layers and model by name, or None with the reason printed."""
    modules = {
        "Mamba": "mamba_ssm.modules.mamba_simple",
        "Mamba2": "mamba_ssm.modules.mamba2",
        "MambaLMHeadModel": "mamba_ssm.models.mixer_seq_simple",
    }
    try:
        found = {name: getattr(importlib.import_module(module), name) for name, module in modules.items()}
        return {**found, "MambaConfig": importlib.import_module("mamba_ssm.models.config_mamba").MambaConfig}
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


def most_memory(run, held):
    """MiB that a run needs at most, with those tensors that are there before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = run()
    more = torch.cuda.max_memory_allocated() - before
    del result
    return (more + sum(tensor.numel() * tensor.element_size() for tensor in held)) / 2**20


def row(words, runs, held=None):
    """A row with the times of ours and of the peer's, and the memory of each where it is asked for."""
    memory = [] if held is None else [round(most_memory(run, tensors)) for run, tensors in zip(runs, held)]
    for run in runs:
        run()
    taken = [round(time, 4) for time in times(runs)]
    found = {"name": words, "ours": taken[0], "theirs": taken[1] if len(taken) > 1 else None}
    return found if held is None else {**found, "mib": memory}


def measure(name, origins, graphs):
    """Two rows of a layer."""
    kind, shape, options = ROWS[name]
    generator = torch.Generator("cuda").manual_seed(0)
    x, dy = (torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    modules = layers(kind, shape[-1], options, origins)
    if graphs:
        modules = [torch.cuda.make_graphed_callables(layer, (torch.zeros_like(x, requires_grad=True),)) for layer in modules]
    sides = [passes(layer, x.requires_grad_(), dy) for layer in modules]
    # kernels are compiled and tuned by the first calls
    found = [both() for _, both in sides for _ in range(2)][1::2]
    if len(found) > 1:
        check(name, found)
    del found
    yield row(f"{name} forward", [forward for forward, _ in sides])
    held = [[x, dy, *module.parameters()] for module in modules]
    yield row("and backward", [both for _, both in sides], held)


def training(model, tokens):
    """A step of training, which gives the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens).logits
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def measure_model(name, origins, graphs):
    """A row of a model, without graphs: one side after the other, since their memory is large."""
    kind, shape = MODELS[name]
    generator = torch.Generator("cuda").manual_seed(0)
    tokens = torch.randint(VOCABULARY, shape, generator=generator, device="cuda")
    settings = {"d_model": 768, "n_layer": 24, "vocab_size": VOCABULARY, "ssm_cfg": {"layer": kind}}
    sides = [(models.MambaLMHeadModel, models.MambaConfig)]
    if origins is not None:
        sides.append((origins["MambaLMHeadModel"], origins["MambaConfig"]))
    losses, found = [], []
    torch.manual_seed(0)
    weights = models.MambaLMHeadModel(models.MambaConfig(**settings), device="cuda").state_dict()
    for model, config in sides:
        module = model(config(**settings), device="cuda")
        module.load_state_dict(weights)
        step = training(module, tokens)
        # kernels are tuned, and the optimizer has its states
        losses.append([step() for _ in range(3)])
        found.append(row(name, [step], [module.parameters()]))
        del module, step
        torch.cuda.empty_cache()
    if len(losses) > 1:
        check(name, losses)
    ours, *theirs = found
    yield {**ours, "theirs": theirs[0]["ours"] if theirs else None, "mib": [side["mib"][0] for side in found]}


def main():
    names = [*ROWS, *MODELS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=names, default=names, metavar="ROW", help="; ".join(names))
    parser.add_argument("--graphs", action="store_true", help="run layers by PyTorch's CUDA graphs (`make_graphed_callables`)")
    parser.add_argument("--json", metavar="FILE", help="to write the rows to, for benches/figures/speed.py")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("nothing is measured: PyTorch has no CUDA device")
    origins, card = peers(), torch.cuda.get_device_name()
    print(f"{card}, PyTorch {torch.__version__}, bf16; milliseconds of theirs and of ours, and their ratio; most MiB of each")
    command, rows = " ".join(["python", *sys.argv]), []
    for name in args.rows:
        for found in (measure if name in ROWS else measure_model)(name, origins, args.graphs):
            rows.append({**found, "card": card, "command": command})
            print(line(found), flush=True)
        torch.cuda.empty_cache()
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)


def line(found):
    """A row as it is printed."""
    ours, theirs, (*memory,) = found["ours"], found["theirs"], found.get("mib", ())
    times = f"{ours:.3f}" if theirs is None else f"{theirs:>9.3f} / {ours:.3f} = {theirs / ours:.2f}"
    return f"{found['name']:<42} {times:<26} {' / '.join(str(size) for size in reversed(memory))}"


if __name__ == "__main__":
    main()
