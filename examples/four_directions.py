"""Fills a picture in from a few of its pixels, by scans over rows and columns from both ends.

pip install statescan torch matplotlib tqdm
python four_directions.py    # half a minute on two cores; writes four_directions.svg
"""

import argparse

import matplotlib
import torch
from torch import nn
from torch.nn.functional import mse_loss, silu
from tqdm import trange

from statescan import selective_scan

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402


class FourDirections(nn.Module):
    """The selective scan over an image, (batch, channels, height, width), from its four sides: as image models have it."""

    def __init__(self, channels, states=4):
        super().__init__()
        self.states = states
        self.maps = nn.Conv2d(channels, 4 * (channels + 2 * states), 1)
        self.A_log = nn.Parameter(torch.arange(1.0, states + 1).log().expand(4, channels, states).clone())
        self.D = nn.Parameter(torch.ones(4, channels))

    def forward(self, x):
        y = torch.zeros_like(x)
        for number, maps in enumerate(self.maps(x).chunk(4, 1)):
            turned, backwards = number >= 2, number % 2 == 1
            tensors = [x, *maps.split([x.shape[1], self.states, self.states], 1)]
            tensors = [t.transpose(2, 3) if turned else t for t in tensors]
            rows, dt, B, C = (t.flatten(2) for t in tensors)
            part, _ = selective_scan(
                rows, dt, -self.A_log[number].exp(), B, C, self.D[number], dt_softplus=True, reverse=backwards
            )
            part = part.view(tensors[0].shape)
            y = y + (part.transpose(2, 3) if turned else part)
        return y


class Model(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.first, self.last = nn.Conv2d(2, width, 1), nn.Conv2d(width, 1, 1)
        self.layers = nn.ModuleList(FourDirections(width) for _ in range(2))

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = x + silu(layer(x))
        return self.last(x)


def pictures(count, size=24):
    """Smooth pictures, and the same with most of the pixels missing and a mask of those that are there."""
    axis = torch.linspace(0, 1, size)
    a, b, c = torch.rand(3, count, 1, 1, 1) * 6
    whole = torch.sin(a + 4 * axis[:, None] + b * axis) * torch.cos(c * axis[:, None])
    there = (torch.rand(count, 1, size, size) < 0.15).float()
    return whole, torch.cat([whole * there, there], 1)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--plot", default="four_directions.svg")
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    model, losses = Model(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in trange(args.steps):
        whole, given = pictures(8)
        loss = mse_loss(model(given), whole)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"mean square error: {losses[0]:.3f} at first, {losses[-1]:.3f} at last")
    whole, given = pictures(1)
    with torch.no_grad():
        shown = {"given": given[0, 0], "filled in": model(given)[0, 0], "whole": whole[0, 0]}
    _, axes = pyplot.subplots(1, 3, figsize=(6, 2.2))
    for axis, (name, image) in zip(axes, shown.items()):
        axis.imshow(image, vmin=-1, vmax=1)
        axis.set(title=name, xticks=[], yticks=[])
    pyplot.savefig(args.plot, bbox_inches="tight")


if __name__ == "__main__":
    main()
