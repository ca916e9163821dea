"""Trains a small Mamba to write the next byte of a text, and lets it go on from a prompt.

    pip install . torch matplotlib tqdm
    python examples/train_bytes.py                  # on the CPU, a minute or two
    python examples/train_bytes.py --device cuda    # the same on a GPU

Training scans whole sequences, forward and backward; writing takes one step of the same layers at a time, from the states that a
scan of the prompt leaves.
"""

import argparse
import math
import pathlib

import matplotlib
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from tqdm import trange

import statescan

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

TEXT = pathlib.Path(__file__).parents[1] / "crates/statescan-cases/assets/alice.txt"


class Layer(nn.Module):
    """A layer of Mamba with its norm and residual: a gate, a short convolution, and a scan whose maps come from its input."""

    def __init__(self, width, expand=2, dstate=16, rank=8, taps=4):
        super().__init__()
        dim = expand * width
        self.sizes = [rank, dstate, dstate]
        self.norm = nn.RMSNorm(width)
        self.in_proj = nn.Linear(width, 2 * dim, bias=False)
        self.conv_weight = nn.Parameter(torch.empty(dim, taps).uniform_(-(taps**-0.5), taps**-0.5))
        self.conv_bias = nn.Parameter(torch.zeros(dim))
        self.maps_proj = nn.Linear(dim, sum(self.sizes), bias=False)
        self.dt_proj = nn.Linear(rank, dim, bias=False)
        # steps between 0.001 and 0.1 at first, on either side of softplus
        dt = torch.exp(torch.empty(dim).uniform_(math.log(0.001), math.log(0.1)))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.A_log = nn.Parameter(torch.arange(1.0, dstate + 1).log().repeat(dim, 1))
        self.D = nn.Parameter(torch.ones(dim))
        self.out_proj = nn.Linear(dim, width, bias=False)

    def maps(self, x):
        dt, B, C = self.maps_proj(x).split(self.sizes, dim=-1)
        return self.dt_proj(dt), B, C

    def forward(self, u):
        """The layer on (batch, seqlen, width), and the states after the last step."""
        x, z = self.in_proj(self.norm(u)).transpose(1, 2).chunk(2, dim=1)
        x, inputs = statescan.causal_conv1d(x, self.conv_weight, self.conv_bias, activation="silu", return_final_states=True)
        dt, B, C = (m.transpose(1, 2) for m in self.maps(x.transpose(1, 2)))
        A = -torch.exp(self.A_log)
        y, state = statescan.selective_scan(x, dt, A, B, C, self.D, z=z, dt_bias=self.dt_bias, dt_softplus=True)
        return u + self.out_proj(y.transpose(1, 2)), (inputs, state)

    def step(self, u, states):
        """The layer on one step, (batch, width); the states change in place."""
        inputs, state = states
        x, z = self.in_proj(self.norm(u)).chunk(2, dim=1)
        x = statescan.causal_conv1d_update(x, inputs, self.conv_weight, self.conv_bias, activation="silu")
        dt, B, C = self.maps(x)
        A = -torch.exp(self.A_log)
        y = statescan.selective_state_update(state, x, dt, A, B, C, self.D, z=z, dt_bias=self.dt_bias, dt_softplus=True)
        return u + self.out_proj(y)


class Model(nn.Module):
    """Layers between an embedding of bytes and the logits of the next one."""

    def __init__(self, width=128, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.logits = nn.Sequential(nn.RMSNorm(width), nn.Linear(width, 256, bias=False))

    def forward(self, tokens):
        u, states = self.embedding(tokens), []
        for layer in self.layers:
            u, state = layer(u)
            states.append(state)
        return self.logits(u), states

    def step(self, tokens, states):
        u = self.embedding(tokens)
        for layer, state in zip(self.layers, states):
            u = layer.step(u, state)
        return self.logits(u)


def train(model, text, args):
    """The loss of every step, in bits for a byte."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.rate, total_steps=args.steps)
    losses = []
    bar = trange(args.steps, unit="step")
    for _ in bar:
        starts = torch.randint(len(text) - args.seqlen, (args.batch, 1), device=text.device)
        batch = text[starts + torch.arange(args.seqlen + 1, device=text.device)]
        logits, _ = model(batch[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item() / math.log(2))
        bar.set_postfix(loss=f"{losses[-1]:.3f} bits/byte")
    return losses


@torch.no_grad()
def write(model, prompt, length, device):
    """Continues a prompt, byte by byte, always with the likeliest."""
    tokens = torch.tensor([list(prompt)], device=device)
    logits, states = model(tokens)
    logits, written = logits[:, -1], []
    for _ in range(length):
        token = logits.argmax(-1)
        written.append(token.item())
        logits = model.step(token, states)
    return bytes(written)


def plot(losses, path):
    figure, axes = pyplot.subplots()
    axes.plot(losses)
    axes.set(xlabel="step", ylabel="bits for a byte", title="A small Mamba on statescan", ylim=(0, None))
    figure.savefig(path)
    pyplot.close(figure)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", help="where to train, cpu or cuda")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seqlen", type=int, default=256)
    parser.add_argument("--rate", type=float, default=5e-3, help="the highest learning rate")
    parser.add_argument("--prompt", default="Alice was beginning")
    parser.add_argument("--length", type=int, default=300, help="bytes to write at the end")
    parser.add_argument("--plot", type=pathlib.Path, default=pathlib.Path("loss.png"))
    args = parser.parse_args(arguments)

    torch.manual_seed(0)
    text = torch.tensor(list(TEXT.read_bytes()), device=args.device)
    model = Model().to(args.device)
    count = sum(p.numel() for p in model.parameters())
    print(f"{count} parameters, {len(text)} bytes of text, on {args.device}")
    losses = train(model, text, args)
    print(f"loss: {losses[0]:.3f} bits for a byte at first, {losses[-1]:.3f} at last")
    plot(losses, args.plot)
    print(f"plot: {args.plot}")
    sample = write(model, args.prompt.encode(), args.length, args.device)
    print(f"sample: {args.prompt}{sample.decode(errors='replace')}")


if __name__ == "__main__":
    main()
