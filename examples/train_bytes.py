"""Trains a small Mamba to write the next byte of a text, and lets it go on from a prompt.

    pip install . torch matplotlib tqdm             # in a clone; `statescan` in the place of `.` from the first release on
    python examples/train_bytes.py                  # on the CPU, a minute or two
    python examples/train_bytes.py --device cuda    # the same on a GPU
    python examples/train_bytes.py --ranks 2        # the same by two processes, each of which has half of every sequence

Training scans whole sequences, forward and backward; writing takes one step of the same layers at a time, from the states that a
scan of the prompt leaves.
"""

import argparse
import math
import os
import pathlib
import tempfile
from types import SimpleNamespace

import matplotlib
import torch
from torch import distributed, multiprocessing, nn
from torch.nn.functional import cross_entropy
from tqdm import trange

import statescan.distributed
from statescan.nn import Mamba

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

# a chapter of a book in a clone of the repository; without one, what is here
CHAPTER = pathlib.Path(__file__).parent.parent / "crates/statescan-cases/assets/alice.txt"
TEXT = CHAPTER if CHAPTER.exists() else pathlib.Path(__file__)


class Layer(nn.Module):
    """A layer of Mamba with its norm and residual."""

    def __init__(self, width, index):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.mixer = Mamba(width, layer_idx=index)

    def forward(self, u, cache=None, context=None):
        return u + self.mixer(self.norm(u), cache, context=context)


class Model(nn.Module):
    """Layers between an embedding of bytes and the logits of the next one."""

    def __init__(self, width=128, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.layers = nn.ModuleList(Layer(width, index) for index in range(layers))
        self.logits = nn.Sequential(nn.RMSNorm(width), nn.Linear(width, 256, bias=False))

    def forward(self, tokens, cache=None, context=None):
        """Logits for (batch, seqlen); with a cache the tokens follow those that it has seen, with a context they are a slice."""
        u = self.embedding(tokens)
        for layer in self.layers:
            u = layer(u, cache, context)
        if cache is not None:
            cache.seqlen_offset += tokens.shape[1]
        return self.logits(u)


def train(model, text, args, context=None):
    """The loss of every step, in bits for a byte. With a context each process has a slice of every sequence."""
    rank, ranks = (0, 1) if context is None else (context.rank, context.ranks)
    start, end = (args.seqlen * at // ranks for at in (rank, rank + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.rate, total_steps=args.steps)
    losses = []
    bar = trange(args.steps, unit="step", disable=rank > 0)
    for _ in bar:
        starts = torch.randint(len(text) - args.seqlen, (args.batch, 1), device=text.device)
        batch = text[starts + torch.arange(args.seqlen + 1, device=text.device)]
        logits = model(batch[:, start:end], context=context)
        targets = batch[:, start + 1 : end + 1]
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / (args.batch * args.seqlen)
        optimizer.zero_grad()
        loss.backward()
        if context is not None:
            # the loss and the gradients of weights are sums over slices
            loss = loss.detach()
            for part in (loss, *(parameter.grad for parameter in model.parameters())):
                distributed.all_reduce(part, group=context.group)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item() / math.log(2))
        bar.set_postfix(loss=f"{losses[-1]:.3f} bits/byte")
    return losses


@torch.no_grad()
def write(model, prompt, length, device):
    """Continues a prompt, byte by byte, always with the likeliest."""
    tokens, written = torch.tensor([list(prompt)], device=device), []
    cache = SimpleNamespace(key_value_memory_dict={}, seqlen_offset=0)
    for _ in range(length):
        tokens = model(tokens, cache)[:, -1:].argmax(-1)
        written.append(tokens.item())
    return bytes(written)


def plot(losses, path):
    figure, axes = pyplot.subplots()
    axes.plot(losses)
    axes.set(xlabel="step", ylabel="bits for a byte", title="A small Mamba on statescan", ylim=(0, None))
    figure.savefig(path)
    pyplot.close(figure)


def work(rank, args, store):
    """One of several processes."""
    backend = "gloo" if args.device == "cpu" else "nccl"
    distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=args.ranks)
    if args.device == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // args.ranks))
    else:
        args.device = f"cuda:{rank}"
        torch.cuda.set_device(rank)
    run(args, statescan.distributed.context())
    distributed.barrier()
    distributed.destroy_process_group()
    # threads of a group may still want the interpreter, which must not have begun to end
    os._exit(0)


def run(args, context=None):
    """Trains, and shows what came of it."""
    torch.manual_seed(0)
    text = torch.tensor(list(args.text.read_bytes()), device=args.device)
    model = Model().to(args.device)
    losses = train(model, text, args, context)
    if context is not None and context.rank > 0:
        return
    count = sum(p.numel() for p in model.parameters())
    print(f"{count} parameters, {len(text)} bytes of text, on {args.device}")
    print(f"loss: {losses[0]:.6f} bits for a byte at first, {losses[-1]:.6f} at last")
    plot(losses, args.plot)
    print(f"plot: {args.plot}")
    sample = write(model, args.prompt.encode(), args.length, args.device)
    print(f"sample: {args.prompt}{sample.decode(errors='replace')}", flush=True)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", help="where to train, cpu or cuda")
    parser.add_argument("--ranks", type=int, default=1, help="processes that share every sequence, each with a GPU on cuda")
    parser.add_argument("--text", type=pathlib.Path, default=TEXT, help="the text to learn")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seqlen", type=int, default=256)
    parser.add_argument("--rate", type=float, default=5e-3, help="the highest learning rate")
    parser.add_argument("--prompt", default="Alice was beginning")
    parser.add_argument("--length", type=int, default=300, help="bytes to write at the end")
    parser.add_argument("--plot", type=pathlib.Path, default=pathlib.Path("loss.png"))
    args = parser.parse_args(arguments)

    if args.ranks == 1:
        run(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (args, os.path.join(folder, "store")), nprocs=args.ranks)


if __name__ == "__main__":
    main()
