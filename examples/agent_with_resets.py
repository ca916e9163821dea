"""A recurrent agent that remembers a signal until it is asked for it; episodes of any length lie one behind the other in a row.

    pip install statescan torch matplotlib tqdm
    python agent_with_resets.py    # half a minute on two cores; writes agent_with_resets.svg

Learning scans rows at once: a new number of `seq_idx` starts an episode from a state of zeros. Acting takes one step at a
time, and zeroes states.
"""

import argparse

import matplotlib
import torch
from torch import nn
from torch.nn.functional import cross_entropy, silu
from tqdm import trange

from statescan import selective_scan, selective_state_update

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402


class Agent(nn.Module):
    """Observations, (batch, seqlen, 3), to logits of two actions."""

    def __init__(self, width=32, states=8):
        super().__init__()
        self.encoder, self.policy = nn.Linear(3, width), nn.Linear(width, 2)
        self.maps = nn.Linear(width, width + 2 * states)
        self.A_log = nn.Parameter(torch.arange(1.0, states + 1).log().expand(width, states) - 3)
        self.sizes = [width, states, states]

    def parts(self, observed):
        x = silu(self.encoder(observed))
        dt, B, C = self.maps(x).split(self.sizes, -1)
        return x, dt, -self.A_log.exp(), B, C

    def learn(self, observed, starts):
        x, dt, A, B, C = self.parts(observed)
        x, dt, B, C = (t.transpose(1, 2) for t in (x, dt, B, C))
        y, _ = selective_scan(x, dt, A, B, C, dt_softplus=True, seq_idx=starts.cumsum(1).int())
        return self.policy(y.transpose(1, 2))

    @torch.no_grad()
    def act(self, observed, starts, state):
        """One step, (batch, 3); the state, (batch, width, states), is changed in place."""
        state.masked_fill_(starts[:, None, None], 0)
        return self.policy(selective_state_update(state, *self.parts(observed), dt_softplus=True))


def episodes(rows, seqlen=80):
    """What is observed (left or right at the start, whether one is asked), where episodes start, and answers; -100 unasked."""
    starts = torch.rand(rows, seqlen) < 0.08
    starts[:, 0] = True
    signal = torch.randint(2, (rows, seqlen))
    number = starts.cumsum(1) - 1
    right = signal.gather(1, number)
    asked = (torch.rand(rows, seqlen) < 0.15) & ~starts
    observed = torch.stack([starts & (right == 0), starts & (right == 1), asked], -1).float()
    return observed, starts, torch.where(asked, right, -100)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--plot", default="agent_with_resets.svg")
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    agent, losses = Agent(), []
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-2)
    for _ in trange(args.steps):
        observed, starts, answers = episodes(32)
        loss = cross_entropy(agent.learn(observed, starts).flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    observed, starts, answers = episodes(16)
    state = torch.zeros(16, *agent.A_log.shape)
    acted = torch.stack([agent.act(observed[:, t], starts[:, t], state) for t in range(observed.shape[1])], 1)
    asked = answers >= 0
    right = (acted.argmax(-1) == answers)[asked].float().mean().item()
    print(f"loss: {losses[0]:.3f} at first, {losses[-1]:.3f} at last; acting step by step, {right:.1%} of the answers are right")
    pyplot.figure(figsize=(5, 2.5))
    pyplot.plot(losses)
    pyplot.xlabel("step")
    pyplot.ylabel("loss")
    pyplot.tight_layout()
    pyplot.savefig(args.plot)


if __name__ == "__main__":
    main()
