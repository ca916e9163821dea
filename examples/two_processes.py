"""One long sequence over two processes, each of which has half of it, and the same gradients as one process has.

pip install statescan torch matplotlib
torchrun --nproc-per-node 2 two_processes.py    # some seconds on two cores; writes two_processes.svg
"""

import argparse

import matplotlib
import torch
from torch import distributed
from torch.nn.functional import mse_loss

import statescan.distributed
from statescan.nn import Mamba

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seqlen", type=int, default=4000)
    parser.add_argument("--plot", default="two_processes.svg")
    args = parser.parse_args(arguments)
    distributed.init_process_group("gloo")
    context = statescan.distributed.context()
    # all ranks have the same weights and the same sequence, of which each keeps its part
    torch.manual_seed(0)
    layer, x = Mamba(16, d_state=8), torch.randn(1, args.seqlen, 16)
    target = x.roll(1, 1)
    mine = slice(context.rank * args.seqlen // context.ranks, (context.rank + 1) * args.seqlen // context.ranks)
    optimizer, losses = torch.optim.Adam(layer.parameters(), lr=1e-2), []
    for _ in range(args.steps):
        # a mean over the whole: each rank has its part of the sum
        loss = mse_loss(layer(x[:, mine], context=context), target[:, mine], reduction="sum") / target.numel()
        optimizer.zero_grad()
        loss.backward()
        for parameter in layer.parameters():
            distributed.all_reduce(parameter.grad)
        optimizer.step()
        whole = loss.detach().clone()
        distributed.all_reduce(whole)
        losses.append(whole.item())
    if context.rank == 0:
        print(f"loss on {context.ranks} ranks: {losses[0]:.6f} at first, {losses[-1]:.6f} at last")
        pyplot.figure(figsize=(5, 2.5))
        pyplot.plot(losses)
        pyplot.xlabel("step")
        pyplot.ylabel("loss of the whole sequence")
        pyplot.tight_layout()
        pyplot.savefig(args.plot)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
