"""Prefill of a Mamba of `transformers` on its own PyTorch path and on this package: the same model and tokens, in turns.

pip install . torch transformers
python benches/peers/mamba_prefill.py
"""

import argparse
import statistics
import sys
import time

import torch

import statescan.compat

statescan.compat.install()

import transformers  # noqa: E402
from transformers import MambaConfig, MambaForCausalLM  # noqa: E402

# arguments of the call: for the logits of every token, and as `generate` calls the model first
CALLS = {
    "all logits": {"use_cache": False},
    "as generate() starts": {"use_cache": True, "logits_to_keep": 1},
}


def seconds(call):
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def choose(module, functions):
    for name, function in functions.items():
        setattr(module, name, function)


def products(model, seqlen):
    """The products with weights that both paths leave to PyTorch, alone."""
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    inputs = {size: torch.randn(1, seqlen, size, dtype=model.dtype) for size in {layer.in_features for layer in layers}}
    return [layer(inputs[layer.in_features]) for layer in layers]


def measure(model, tokens, options, runs):
    """Median times of both paths and of the products alone, in turns; and the largest difference of logits."""
    # transformers keeps each function's own version under the one it chose
    module = sys.modules[type(model).__module__]
    chosen = {name: f for name, f in vars(module).items() if name.startswith(("mamba_", "causal_")) and hasattr(f, "__wrapped__")}
    own = {name: function.__wrapped__ for name, function in chosen.items()}
    times, logits = {"transformers": [], "statescan": [], "products": []}, {}
    for run in range(runs + 1):
        # the first run is short, and not counted
        ids = tokens if run else tokens[:, :64]
        for kind, functions in (("transformers", own), ("statescan", chosen)):
            choose(module, functions)
            took, result = seconds(lambda ids=ids: model(ids, **options))
            logits[kind] = result.logits.float()
            times[kind] += [took] * (run > 0)
        times["products"] += [seconds(lambda ids=ids: products(model, ids.shape[1]))[0]] * (run > 0)
    choose(module, chosen)
    expected = logits["transformers"]
    difference = ((logits["statescan"] - expected).abs().max() / expected.abs().max()).item()
    return {kind: statistics.median(taken) for kind, taken in times.items()}, difference


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--seqlen", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--types", nargs="+", default=["float32"], choices=["float32", "bfloat16"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    torch.manual_seed(0)
    # the default range of weights makes layers that amplify rounding errors
    config = MambaConfig(vocab_size=256, hidden_size=args.width, num_hidden_layers=args.layers, initializer_range=0.02)
    model = MambaForCausalLM(config).eval()
    tokens = torch.randint(config.vocab_size, (1, args.seqlen))
    print(f"Mamba, {args.layers} layers, {args.width} wide, {args.seqlen} tokens, {args.threads} threads")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}; milliseconds")
    print(
        f"{'type':<10} {'call':<21} {'its own path':>12} {'statescan':>10} {'ratio':>6} {'products alone':>15} {'difference':>11}"
    )
    for dtype in args.types:
        model.to(getattr(torch, dtype))
        for name, options in CALLS.items():
            took, difference = measure(model, tokens, options, args.runs)
            slow, fast, alone = (1e3 * took[kind] for kind in ("transformers", "statescan", "products"))
            print(f"{dtype:<10} {name:<21} {slow:12.0f} {fast:10.0f} {slow / fast:6.1f} {alone:9.0f} {difference:11.1e}")


if __name__ == "__main__":
    main()
