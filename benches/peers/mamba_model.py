"""Prefill, decoding and training of a Mamba or Mamba-2 of 130m, or of a Qwen 3.5 of 24 layers of 1024: `transformers`, alone and
on this package, and the program.

pip install . torch transformers
cargo build --release
python benches/peers/mamba_model.py [--family qwen3_5_text] [--device cuda]
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

from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

# rows and tokens of each; the program has the same
PROMPTS = {"cpu": (1, 1024), "cuda": (4, 2048)}
SIZES = {"vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 24}
# settings of a model, and what the program calls it
FAMILIES = {
    "mamba": ({}, "130m"),
    "mamba2": ({"num_heads": 24, "n_groups": 1, "tie_word_embeddings": True}, "mamba2-130m"),
    "qwen3_5_text": (
        {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "linear_num_key_heads": 8,
            "linear_num_value_heads": 16,
        },
        "qwen3_5-1024",
    ),
}
TYPES = {"cpu": (("float32", "f32"), ("bfloat16", "bf16")), "cuda": (("bfloat16", "bf16"),)}


def paths(model):
    """The functions that a model's module chose when it was imported, and its own slow ones, by name."""
    module = sys.modules[type(model).__module__]
    functions = {name: f for name, f in vars(module).items() if hasattr(f, "__wrapped__")}
    chosen = {name: f for name, f in functions.items() if not name.startswith("create_")}
    return module, {"statescan": chosen, "own path": {name: f.__wrapped__ for name, f in chosen.items()}}


def seconds(device, call):
    """How long a call takes, until its results are there, and its result."""
    start = time.perf_counter()
    result = call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


@torch.no_grad()
def generate(model, tokens, steps):
    """Seconds of a prompt, and of each token behind a row of it."""
    device = tokens.device.type
    prefill, _ = seconds(device, lambda: model(tokens, use_cache=True, logits_to_keep=1))
    result = model(tokens[:1, :64], use_cache=True, logits_to_keep=1)
    cache = "cache_params" if hasattr(result, "cache_params") else "past_key_values"

    def decode():
        nonlocal result
        for _ in range(steps):
            token = result.logits[:, -1:].argmax(-1)
            result = model(token, use_cache=True, **{cache: result[cache]})

    return prefill, seconds(device, decode)[0] / steps


def train(model, optimizer, tokens):
    """Seconds of a step of training, with weights in float32 and products in bfloat16, as the program has them."""

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return seconds(tokens.device.type, step)[0]


def median_training(model, tokens, runs):
    """The median of some steps of training with this package: its own path keeps more than a device's memory."""
    model.float().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    times = [train(model, optimizer, tokens) for _ in range(runs + 1)]
    return statistics.median(times[1:])


def choose(module, functions):
    for name, function in functions.items():
        setattr(module, name, function)


def by_path(model, runs, measure):
    """The median of each part of a measurement, by path; the first run is not counted."""
    module, functions = paths(model)
    times = {path: [] for path in functions}
    for run in range(runs + 1):
        for path, own in functions.items():
            choose(module, own)
            times[path] += [measure()] * (run > 0)
    choose(module, functions["statescan"])
    return {path: [statistics.median(part) for part in zip(*taken)] for path, taken in times.items()}


def line(dtype, what, prefill, decode, training, tokens):
    parts = f"{1e3 * prefill:10.1f} {tokens / prefill:9.0f} {1e3 * decode:10.2f} {1 / decode:9.1f}"
    print(f"{dtype:<9} {what:<26} {parts}" + (f" {1e3 * training:9.1f}" if training else ""), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=PROMPTS, default="cpu")
    parser.add_argument("--family", choices=FAMILIES, default="mamba")
    parser.add_argument("--program", default="target/release/statescan")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    settings, size = FAMILIES[args.family]
    config = AutoConfig.for_model(args.family, **SIZES | settings)
    tokens = torch.randint(50280, PROMPTS[args.device], device=args.device)
    on_gpu = args.device == "cuda"
    names = f"{'prefill ms':>10} {'tokens/s':>9} {'decode ms':>10} {'tokens/s':>9}" + (f" {'step ms':>9}" if on_gpu else "")
    print(f"{'type':<9} {'':<26} {names}")
    for dtype, short in TYPES[args.device]:
        model = AutoModelForCausalLM.from_config(config).to(args.device, getattr(torch, dtype)).eval()
        times = by_path(model, args.runs, lambda model=model: generate(model, tokens, args.steps))
        for path, (prefill, decode) in times.items():
            training = median_training(model, tokens, args.runs) if on_gpu and path == "statescan" else None
            line(dtype, f"transformers, {path}", prefill, decode, training, tokens.numel())
        del model
        # the program needs the memory
        torch.cuda.empty_cache()
        where = ["--device", "cuda"] if on_gpu else ["--threads", str(args.threads)]
        command = [args.program, "bench", "model", "--size", size, "--quick", "--json", "--dtype", short, *where]
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows = [json.loads(row) for row in ran.stdout.splitlines()]
        took = {row["pass"]: row["median_ns"] / 1e9 for row in rows}
        line(dtype, "the program", took["prefill"], took["decode"], took.get("train"), rows[0]["tokens"])


if __name__ == "__main__":
    main()
