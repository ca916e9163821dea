"""Trains a small Mamba in plain JAX to write the next byte of a text, and lets it go on from a prompt.

    pip install . jax matplotlib tqdm     # in a clone; `statescan` in the place of `.` from the first release on
    python examples/train_bytes_jax.py    # on JAX's default device

Training scans whole sequences under `jit` and `grad`; writing takes one step at a time, within `lax.scan`.
"""

import argparse
import functools
import math
import pathlib

import jax
import jax.numpy as jnp
import matplotlib
from tqdm import trange

import statescan

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

# a chapter of a book in a clone of the repository; without one, what is here
CHAPTER = pathlib.Path(__file__).parent.parent / "crates/statescan-cases/assets/alice.txt"
TEXT = CHAPTER if CHAPTER.exists() else pathlib.Path(__file__)
WIDTH, INNER, STATE, TAPS, RANK = 128, 256, 16, 4, 8


def uniform(key, *shape):
    return jax.random.uniform(key, shape, minval=-1, maxval=1) / math.sqrt(shape[-1])


def layer(key):
    """The weights of a layer: those of a Mamba, and of its norm."""
    keys = jax.random.split(key, 6)
    steps = jnp.exp(jax.random.uniform(keys[0], (INNER,), minval=math.log(1e-3), maxval=math.log(0.1)))
    return {
        "norm": jnp.ones(WIDTH),
        "in": uniform(keys[1], 2 * INNER, WIDTH),
        "taps": uniform(keys[2], INNER, TAPS),
        "bias": jnp.zeros(INNER),
        "maps": uniform(keys[3], RANK + 2 * STATE, INNER),
        "dt": uniform(keys[4], INNER, RANK),
        # softplus makes these steps of it
        "dt_bias": jnp.log(jnp.expm1(steps)),
        "A_log": jnp.log(jnp.broadcast_to(jnp.arange(1.0, STATE + 1), (INNER, STATE))),
        "D": jnp.ones(INNER),
        "out": uniform(keys[5], WIDTH, INNER),
    }


def model(key, layers=2):
    keys = jax.random.split(key, layers + 1)
    embedding = jax.random.normal(keys[0], (256, WIDTH))
    return {
        "embedding": embedding,
        "layers": [layer(key) for key in keys[1:]],
        "norm": jnp.ones(WIDTH),
        "logits": embedding * 0.1,
    }


def forward(weights, tokens):
    """Logits for (batch, seqlen), and the states of the layers after the last step."""
    u, states = weights["embedding"][tokens], []
    for w in weights["layers"]:
        x, z = jnp.split(jnp.einsum("ow,blw->bol", w["in"], statescan.norm(u, w["norm"])), 2, axis=1)
        x, inputs = statescan.causal_conv1d(x, w["taps"], w["bias"], activation="silu", return_final_states=True)
        dt, B, C = jnp.split(w["maps"] @ x, [RANK, RANK + STATE], axis=1)
        options = {"z": z, "dt_bias": w["dt_bias"], "dt_softplus": True}
        y, state = statescan.selective_scan(x, w["dt"] @ dt, -jnp.exp(w["A_log"]), B, C, w["D"], **options)
        u = u + jnp.einsum("wo,bol->blw", w["out"], y)
        states.append((inputs, state))
    return statescan.norm(u, weights["norm"]) @ weights["logits"].T, states


def step(weights, states, token):
    """Logits for (batch,), which follow what has led to the states."""
    u, after = weights["embedding"][token], []
    for w, (inputs, state) in zip(weights["layers"], states):
        x, z = jnp.split(statescan.norm(u, w["norm"]) @ w["in"].T, 2, axis=1)
        x, inputs = statescan.causal_conv1d_update(x, inputs, w["taps"], w["bias"], activation="silu")
        dt, B, C = jnp.split(x @ w["maps"].T, [RANK, RANK + STATE], axis=1)
        options = {"z": z, "dt_bias": w["dt_bias"], "dt_softplus": True}
        A = -jnp.exp(w["A_log"])
        y, state = statescan.selective_state_update(state, x, dt @ w["dt"].T, A, B, C, w["D"], **options)
        u = u + y @ w["out"].T
        after.append((inputs, state))
    return statescan.norm(u, weights["norm"]) @ weights["logits"].T, after


def bits(weights, batch):
    """The loss, in bits for a byte."""
    logits, _ = forward(weights, batch[:, :-1])
    likely = jnp.take_along_axis(jax.nn.log_softmax(logits), batch[:, 1:, None], -1)
    return -likely.mean() / math.log(2)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def update(weights, moments, batch, number, rate):
    """A step of Adam, with gradients of a norm of 1 at most."""
    loss, gradients = jax.value_and_grad(bits)(weights, batch)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients)))
    gradients = jax.tree.map(lambda g: g / jnp.maximum(norm, 1), gradients)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
    second = jax.tree.map(lambda m, g: 0.999 * m + 0.001 * g**2, moments[1], gradients)
    scale = rate * jnp.sqrt(1 - 0.999**number) / (1 - 0.9**number)
    weights = jax.tree.map(lambda w, m, v: w - scale * m / (jnp.sqrt(v) + 1e-8), weights, first, second)
    return weights, (first, second), loss


def train(weights, text, args):
    """The weights, and the loss of every step. The rate rises over a tenth of the steps, and falls to nothing."""
    zeros = functools.partial(jax.tree.map, jnp.zeros_like)
    moments, losses, key = (zeros(weights), zeros(weights)), [], jax.random.key(1)
    bar = trange(args.steps, unit="step")
    for number in bar:
        key, own = jax.random.split(key)
        starts = jax.random.randint(own, (args.batch, 1), 0, len(text) - args.seqlen)
        part = min(10 * (number + 1) / args.steps, 1) * 0.5 * (1 + math.cos(math.pi * number / args.steps))
        batch = text[starts + jnp.arange(args.seqlen + 1)]
        weights, moments, loss = update(weights, moments, batch, number + 1.0, args.rate * part)
        losses.append(float(loss))
        bar.set_postfix(loss=f"{losses[-1]:.3f} bits/byte")
    return weights, losses


@functools.partial(jax.jit, static_argnums=2)
def write(weights, prompt, length):
    """Continues a prompt, byte by byte, always with the likeliest."""

    def one(carried, _):
        states, token = carried
        logits, states = step(weights, states, token)
        return (states, logits.argmax(-1)), token

    logits, states = forward(weights, prompt)
    return jax.lax.scan(one, (states, logits[:, -1].argmax(-1)), None, length=length)[1][:, 0]


def plot(losses, path):
    figure, axes = pyplot.subplots()
    axes.plot(losses)
    axes.set(xlabel="step", ylabel="bits for a byte", title="A small Mamba on statescan, in JAX", ylim=(0, None))
    figure.savefig(path)
    pyplot.close(figure)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=pathlib.Path, default=TEXT, help="the text to learn")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seqlen", type=int, default=256)
    parser.add_argument("--rate", type=float, default=5e-3, help="the highest learning rate")
    parser.add_argument("--prompt", default="Alice was beginning")
    parser.add_argument("--length", type=int, default=300, help="bytes to write at the end")
    parser.add_argument("--plot", type=pathlib.Path, default=pathlib.Path("loss.png"))
    args = parser.parse_args(arguments)

    text = jnp.array(list(args.text.read_bytes()), jnp.int32)
    weights = model(jax.random.key(0))
    count = sum(w.size for w in jax.tree.leaves(weights))
    weights, losses = train(weights, text, args)
    print(f"{count} parameters, {len(text)} bytes of text, on {jax.default_backend()}")
    print(f"loss: {losses[0]:.6f} bits for a byte at first, {losses[-1]:.6f} at last")
    plot(losses, args.plot)
    print(f"plot: {args.plot}")
    sample = bytes(write(weights, jnp.array([list(args.prompt.encode())]), args.length).tolist())
    print(f"sample: {args.prompt}{sample.decode(errors='replace')}", flush=True)


if __name__ == "__main__":
    main()
