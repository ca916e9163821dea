"""Prefill and decoding of a Mamba of the size 130m: `transformers` on its own path and on this package, and the program.

pip install . torch transformers
cargo build --release
python benches/peers/mamba_model.py
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import torch

import statescan.compat

statescan.compat.install()

from transformers import MambaConfig, MambaForCausalLM  # noqa: E402


def paths(model):
    """The functions that a model's module chose when it was imported, and its own slow ones, by name."""
    module = sys.modules[type(model).__module__]
    chosen = {name: f for name, f in vars(module).items() if name.startswith(("mamba_", "causal_")) and hasattr(f, "__wrapped__")}
    return module, {"statescan": chosen, "own path": {name: f.__wrapped__ for name, f in chosen.items()}}


def measure(model, tokens, steps):
    """Seconds of a prompt, and of each token behind it."""
    start = time.perf_counter()
    result = model(tokens, use_cache=True, logits_to_keep=1)
    prefill, start = time.perf_counter() - start, time.perf_counter()
    for _ in range(steps):
        token = result.logits[:, -1:].argmax(-1)
        result = model(token, cache_params=result.cache_params, use_cache=True)
    return prefill, (time.perf_counter() - start) / steps


def line(dtype, what, prefill, decode, seqlen):
    print(f"{dtype:<9} {what:<26} {1e3 * prefill:9.0f} {seqlen / prefill:9.0f} {1e3 * decode:9.1f} {1 / decode:9.1f}", flush=True)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="target/release/statescan")
    parser.add_argument("--seqlen", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = MambaForCausalLM(MambaConfig(vocab_size=50280, hidden_size=768, num_hidden_layers=24)).eval()
    module, functions = paths(model)
    tokens = torch.randint(50280, (1, args.seqlen))
    print(f"{'type':<9} {'':<26} {'prefill ms':>9} {'tokens/s':>8} {'decode ms':>9} {'tokens/s':>9}")
    for dtype, short in (("float32", "f32"), ("bfloat16", "bf16")):
        model.to(getattr(torch, dtype))
        times = {path: [] for path in functions}
        # the first run is not counted
        for run in range(args.runs + 1):
            for path, own in functions.items():
                for name, function in own.items():
                    setattr(module, name, function)
                times[path] += [measure(model, tokens, args.steps)] * (run > 0)
        for path, taken in times.items():
            prefill, decode = (statistics.median(part) for part in zip(*taken))
            line(dtype, f"transformers, {path}", prefill, decode, args.seqlen)
        command = [args.program, "bench", "model", "--size", "130m", "--quick", "--json", "--type", short]
        ran = subprocess.run([*command, "--threads", str(args.threads)], check=True, capture_output=True, text=True)
        rows = [json.loads(row) for row in ran.stdout.splitlines()]
        took = {row["pass"]: row["median_ns"] / 1e9 for row in rows}
        line(dtype, "the program", took["prefill"], took["decode"], rows[0]["tokens"])


if __name__ == "__main__":
    main()
