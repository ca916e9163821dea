"""Classifies noisy waves by their shape with two blocks of S5 that see both directions.

pip install statescan torch matplotlib tqdm
python s5_classifier.py    # half a minute on two cores; writes s5_classifier.svg
"""

import argparse

import matplotlib
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from tqdm import trange

from statescan.nn import S5Block, parameter_groups

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

SHAPES = ["sine", "square", "saw"]


def waves(count, seqlen=200):
    """Waves, (count, seqlen, 1), and the numbers of their shapes."""
    labels = torch.randint(3, (count,))
    phase = torch.rand(count, 1) + torch.arange(seqlen) * torch.empty(count, 1).uniform_(0.01, 0.05)
    sine = torch.sin(2 * torch.pi * phase)
    shapes = torch.stack([sine, sine.sign(), 2 * (phase % 1) - 1])
    x = shapes[labels, torch.arange(count)] + 0.8 * torch.randn(count, seqlen)
    return x[..., None], labels


class Classifier(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.encoder = nn.Linear(1, width)
        self.blocks = nn.Sequential(*(S5Block(width, 16, dropout=0.1, conj_sym=True, bidirectional=True) for _ in range(2)))
        self.decoder = nn.Linear(width, len(SHAPES))

    def forward(self, x):
        return self.decoder(self.blocks(self.encoder(x)).mean(1))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--plot", default="s5_classifier.svg")
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.AdamW(parameter_groups(model, lr=4e-3, scan_lr=1e-3))
    accuracies = []
    for _ in trange(args.steps):
        x, labels = waves(64)
        logits = model(x)
        optimizer.zero_grad()
        cross_entropy(logits, labels).backward()
        optimizer.step()
        accuracies.append((logits.argmax(1) == labels).float().mean().item())
    model.eval()
    with torch.no_grad():
        x, labels = waves(500)
        right = (model(x).argmax(1) == labels).float().mean().item()
    print(f"{right:.1%} of 500 new waves are classified as what they are")
    pyplot.figure(figsize=(5, 2.5))
    pyplot.plot(accuracies)
    pyplot.axhline(1 / 3, color="grey", linestyle=":", label="chance")
    pyplot.xlabel("step")
    pyplot.ylabel("right in training")
    pyplot.legend()
    pyplot.tight_layout()
    pyplot.savefig(args.plot)


if __name__ == "__main__":
    main()
