"""Serves conversations that come and go from one pool of states: prompts of any length and single tokens go in one call a round.

pip install statescan torch matplotlib tqdm
python serving_pool.py    # seconds; writes serving_pool.svg
"""

import argparse

import matplotlib
import torch
from tqdm import tqdm

from statescan import StatePool, ssd

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

HEADS, WIDTH, DSTATE = 4, 16, 32
A = -torch.rand(HEADS, generator=torch.Generator().manual_seed(1))


def inputs(steps):
    """What a layer's projections and convolution would make of some tokens."""
    return torch.randn(steps, HEADS, WIDTH), torch.rand(steps, HEADS), torch.randn(steps, DSTATE), torch.randn(steps, DSTATE)


def run(x, dt, B, C, **more):
    return ssd(x[None], dt[None], A, B[None], C[None], **more)[0][0]


class Conversation:
    def __init__(self, slot):
        self.slot, self.is_new = slot, True
        # a prompt, and one token after another
        self.parts = [inputs(int(torch.randint(1, 200, ())))] + [inputs(1) for _ in range(int(torch.randint(1, 30, ())))]
        self.done, self.results = 0, []

    def is_over(self):
        return self.done == len(self.parts)


def serve(pool, conversations):
    """The next part of each conversation, all in one call; a new one starts from zeros, whatever its slot has."""
    parts = [one.parts[one.done] for one in conversations]
    bounds = torch.tensor([0, *(len(part[0]) for part in parts)]).cumsum(0)
    slots = torch.tensor([one.slot for one in conversations])
    read = torch.where(torch.tensor([one.is_new for one in conversations]), -1, slots)
    tensors = (torch.cat(tensors) for tensors in zip(*parts))
    y = run(*tensors, cu_seqlens=bounds, initial_state=StatePool(pool, read, slots))
    for one, start, end in zip(conversations, bounds.tolist(), bounds.tolist()[1:]):
        one.results.append(y[start:end])
        one.done, one.is_new = one.done + 1, False


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--plot", default="serving_pool.svg")
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    pool, free = torch.zeros(args.slots, HEADS, WIDTH, DSTATE), list(range(args.slots))
    active, finished, used = [], [], []
    for _ in tqdm(range(args.steps)):
        if free and (not active or torch.rand(()) < 0.7):
            active.append(Conversation(free.pop()))
        serve(pool, active)
        used.append(len(active))
        over = [one for one in active if one.is_over()]
        free += [one.slot for one in over]
        finished += over
        active = [one for one in active if not one.is_over()]
    for one in finished + active:
        whole = run(*(torch.cat(tensors) for tensors in zip(*one.parts[: one.done])))
        torch.testing.assert_close(torch.cat(one.results), whole, rtol=1e-3, atol=1e-4)
    print(f"{len(finished)} conversations from {args.slots} slots, each as if it had been alone")
    pyplot.figure(figsize=(5, 2.5))
    pyplot.step(range(len(used)), used)
    pyplot.xlabel("round")
    pyplot.ylabel("slots in use")
    pyplot.tight_layout()
    pyplot.savefig(args.plot)


if __name__ == "__main__":
    main()
