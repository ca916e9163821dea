"""Learns the decays of a linear recurrence from its results, in JAX.

pip install statescan jax matplotlib tqdm
python scan_in_jax.py    # some seconds; writes scan_in_jax.svg
"""

import argparse

import jax
import jax.numpy as jnp
import matplotlib
from tqdm import trange

import statescan

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

CHANNELS, SEQLEN = 4, 200


def recurrence(decays, b):
    """h[t] = decay h[t-1] + b[t] of each channel."""
    a = jnp.broadcast_to(jax.nn.sigmoid(decays)[:, None], b.shape)
    h, _ = statescan.linear_scan(a, b)
    return h


@jax.jit
def step(decays, b, target, rate):
    def loss(decays):
        return jnp.mean((recurrence(decays, b) - target) ** 2)

    value, gradient = jax.value_and_grad(loss)(decays)
    return decays - rate * jnp.sign(gradient), value


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--plot", default="scan_in_jax.svg")
    args = parser.parse_args(arguments)
    key = jax.random.key(0)
    true = jnp.array([0.5, 0.8, 0.9, 0.97])
    decays, found, losses = jnp.zeros(CHANNELS), [], []
    for number in trange(args.steps):
        key, of_b = jax.random.split(key)
        b = jax.random.normal(of_b, (CHANNELS, SEQLEN))
        target = recurrence(jnp.log(true / (1 - true)), b)
        decays, loss = step(decays, b, target, 0.05 * (1 - number / args.steps))
        found.append(jax.nn.sigmoid(decays))
        losses.append(float(loss))
    print(f"loss: {losses[0]:.4f} at first, {losses[-1]:.4f} at last; decays {jnp.round(found[-1], 3)}")
    pyplot.figure(figsize=(5, 2.5))
    for channel in range(CHANNELS):
        (line,) = pyplot.plot([float(one[channel]) for one in found])
        pyplot.axhline(float(true[channel]), color=line.get_color(), linestyle=":")
    pyplot.xlabel("step")
    pyplot.ylabel("decay, found and true")
    pyplot.tight_layout()
    pyplot.savefig(args.plot)


if __name__ == "__main__":
    main()
