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


def seconds(model, tokens):
    start = time.perf_counter()
    logits = model(tokens, use_cache=False).logits
    return time.perf_counter() - start, logits


def choose(module, functions):
    for name, function in functions.items():
        setattr(module, name, function)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--seqlen", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    torch.manual_seed(0)
    # the default range of weights makes layers that amplify rounding errors
    config = MambaConfig(vocab_size=256, hidden_size=args.width, num_hidden_layers=args.layers, initializer_range=0.02)
    model = MambaForCausalLM(config).eval()
    tokens = torch.randint(config.vocab_size, (1, args.seqlen))

    # transformers keeps each function's own version under the one it chose
    module = sys.modules[MambaForCausalLM.__module__]
    chosen = {name: f for name, f in vars(module).items() if name.startswith(("mamba_", "causal_")) and hasattr(f, "__wrapped__")}
    own = {name: function.__wrapped__ for name, function in chosen.items()}

    times, logits = {"transformers": [], "statescan": []}, {}
    for run in range(args.runs + 1):
        for kind, functions in (("transformers", own), ("statescan", chosen)):
            choose(module, functions)
            # the first run is short, and not counted
            took, logits[kind] = seconds(model, tokens if run else tokens[:, :64])
            times[kind] += [took] * (run > 0)
    expected = logits["transformers"]
    difference = ((logits["statescan"] - expected).abs().max() / expected.abs().max()).item()
    slow, fast = (statistics.median(times[kind]) for kind in times)
    print(f"Mamba, {args.layers} layers, {args.width} wide, {args.seqlen} tokens, f32")
    print(f"{args.threads} threads, torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"transformers' own path  {slow * 1e3:9.1f} ms")
    print(f"statescan               {fast * 1e3:9.1f} ms   {slow / fast:.1f} times as fast")
    print(f"largest difference of logits {difference:.1e} of the largest logit")


if __name__ == "__main__":
    main()
