"""Trains on rows of very different lengths, packed into one row without padding, and says what padding would have cost.

pip install statescan torch matplotlib tqdm
python packed_batch.py    # half a minute on two cores; writes packed_batch.svg
"""

import argparse
import time

import matplotlib
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from tqdm import tqdm

from statescan.nn import Mamba2

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

WIDTH = 32


def rows(count):
    """Numbers, and what is to be learned: their running mean since the start of the row."""
    lengths = (torch.rand(count).pow(4) * 400 + 5).long()
    for length in lengths.tolist():
        x = torch.randn(length, 1)
        yield x, x.cumsum(0) / torch.arange(1, length + 1)[:, None]


def packed(batch):
    """One row, its targets, and where sequences begin and end."""
    bounds = torch.tensor([0, *(len(x) for x, _ in batch)]).cumsum(0).int()
    x, target = (torch.cat(parts)[None] for parts in zip(*batch))
    return x, target, bounds


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(1, WIDTH), nn.Linear(WIDTH, 1)
        self.layer = Mamba2(WIDTH, d_state=16, headdim=16)

    def forward(self, x, cu_seqlens=None):
        return self.decoder(self.layer(self.encoder(x), cu_seqlens=cu_seqlens))


def timed(call):
    start = time.perf_counter()
    with torch.no_grad():
        call()
    return time.perf_counter() - start


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--plot", default="packed_batch.svg")
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    model, losses, data = Model(), [], list(rows(16 * args.steps))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for x, target, bounds in tqdm(DataLoader(data, batch_size=16, collate_fn=packed)):
        loss = mse_loss(model(x, bounds), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"mean square error: {losses[0]:.3f} at first, {losses[-1]:.3f} at last")
    x, _, bounds = packed(data)
    padded = pad_sequence([x for x, _ in data], batch_first=True)
    alone = torch.cat([model(row[None])[0] for row, _ in data[:16]])
    torch.testing.assert_close(model(x, bounds)[0, : bounds[16]], alone, rtol=1e-3, atol=1e-4)
    print(f"{x.numel()} steps packed take {timed(lambda: model(x, bounds)):.2f} s, the {padded.numel()} of padded rows ", end="")
    print(f"{timed(lambda: model(padded)):.2f} s")
    pyplot.figure(figsize=(5, 2.5))
    pyplot.plot(losses)
    pyplot.yscale("log")
    pyplot.xlabel("step")
    pyplot.ylabel("mean square error")
    pyplot.tight_layout()
    pyplot.savefig(args.plot)


if __name__ == "__main__":
    main()
