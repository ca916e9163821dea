"""The language model of mamba_ssm, 24 layers, on its own kernels and on ours in their place, in one run on a GPU.

    pip install . mamba-ssm causal-conv1d
    python benches/peers/replaced.py

Results are compared first: the loss, gradients, and the tokens that its own `generate` chooses with CUDA graphs. Then times of
both are taken in turn, and the smallest of each counts: a training step of (4, 2048) tokens, and tokens for a second of decoding.
"""

import argparse
import functools
import time

import torch
from mamba_ssm.models.config_mamba import MambaConfig
from mamba_ssm.models.mixer_seq_simple import MambaLMHeadModel
from torch.nn.functional import cross_entropy

import statescan.compat

LAYERS = {"Mamba": {"layer": "Mamba1"}, "Mamba2": {"layer": "Mamba2"}}
BATCHES = (1, 16)
PROMPT, LENGTH = 64, 192


def model(kind, layers, width):
    torch.manual_seed(0)
    settings = {"rms_norm": True, "residual_in_fp32": True, "fused_add_norm": True, "vocab_size": 50277}
    config = MambaConfig(d_model=width, n_layer=layers, ssm_cfg=dict(LAYERS[kind]), **settings)
    return MambaLMHeadModel(config, device="cuda", dtype=torch.bfloat16)


def step(language_model, tokens):
    """A training step without its optimizer: the loss."""
    logits = language_model(tokens[:, :-1]).logits
    loss = cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    language_model.zero_grad()
    loss.backward()
    return loss.detach()


def generate(language_model, prompt):
    return language_model.generate(prompt, LENGTH, cg=True, return_dict_in_generate=True).sequences


def seconds(call):
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


class Both:
    """Runs something on the model's own kernels and on ours. Graphs that were recorded with one are none for the other."""

    def __init__(self, language_model):
        self.model, self.graphs = language_model, {}

    def __call__(self, ours, call):
        self.model._decoding_cache = self.graphs.get(ours)
        try:
            if not ours:
                return call()
            with statescan.compat.install(replace=True):
                return call()
        finally:
            self.graphs[ours] = self.model._decoding_cache

    def fastest(self, call, rounds):
        """The smallest time of each, taken in turn."""
        times = {False: [], True: []}
        for _ in range(rounds):
            for ours in times:
                times[ours].append(self(ours, lambda: seconds(call)))
        return min(times[False]), min(times[True])


def compare(both, tokens):
    """Says how far results are apart, and ends where that is too far."""
    found = {}
    for ours in (False, True):
        loss = both(ours, lambda: step(both.model, tokens))
        gradients = torch.cat([p.grad.flatten().float() for p in both.model.parameters()])
        found[ours] = loss, gradients
    (own_loss, own), (loss, gradients) = found[False], found[True]
    difference = (gradients - own).norm() / own.norm()
    print(f"  loss {own_loss:.4f} and {loss:.4f}; gradients differ by {difference:.1e} of their norm")
    chosen = [both(ours, lambda: generate(both.model, tokens[:1, :PROMPT])) for ours in (False, True)]
    same = (chosen[0] == chosen[1])[0, PROMPT:].float().mean()
    print(f"  {same:.0%} of the tokens that generate(cg=True) chooses are the same")
    if not torch.isfinite(gradients).all() or abs(own_loss - loss) > 0.02 or difference > 0.05:
        raise SystemExit("results differ by more than bfloat16's rounding")


def measure(kind, args):
    """Prints what comes of a kind of layer."""
    language_model = model(kind, args.layers, args.width)
    both, tokens = Both(language_model), torch.randint(50277, (4, 2049), device="cuda")
    print(f"{kind}, {args.layers} layers of {args.width}", flush=True)
    compare(both, tokens)
    own, ours = both.fastest(lambda: step(language_model, tokens), args.rounds)
    print(f"  training step: {own * 1e3:.1f} ms on its own kernels, {ours * 1e3:.1f} ms on ours", flush=True)
    for batch in BATCHES:
        decode = functools.partial(generate, language_model, tokens[:1, :PROMPT].expand(batch, -1))
        both.graphs.clear()
        for chosen in (False, True):
            both(chosen, decode)
        own, ours = (batch * (LENGTH - PROMPT) / taken for taken in both.fastest(decode, args.rounds))
        print(f"  decoding, batch {batch}: {own:.0f} tokens/s on its own kernels, {ours:.0f} on ours", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    for kind in LAYERS:
        measure(kind, args)


if __name__ == "__main__":
    main()
