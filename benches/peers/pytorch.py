"""PyTorch's loop over time beside statescan, on the CPU, in one run.

Mamba's selective scan with gate, bias and softplus, forward and backward with every gradient, in float32 at
(batch, dim, seqlen, dstate) = (1, 1536, 1024, 16). First `statescan verify` checks results and gradients of the loop at a
small shape, so that both compute the same thing; then rounds take turns, and medians are printed.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch
from safetensors.torch import save_file
from torch.nn.functional import silu, softplus

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPE = (1, 1536, 1024, 16)
NAMES = ("x", "dt", "A", "B", "C", "D", "z", "dt_bias")


def steps_by_index(tensor):
    """Every step of (batch, dim, seqlen, ...), cut out when its turn comes: how such loops are mostly written."""
    return (tensor[:, :, t] for t in range(tensor.shape[2]))


def steps_unbound(tensor):
    """The same, cut at once: the backward pass joins the gradients once instead of adding a whole tensor a step."""
    return tensor.unbind(2)


def selective_scan(x, dt, A, B, C, D, z, dt_bias, steps):
    """h[t] = exp(dt A) h[t-1] + dt B x, y = (<C, h> + D x) silu(z), one step of time after another."""
    dt = softplus(dt + dt_bias[:, None])
    decay = torch.exp(dt[..., None] * A[:, None, :])
    drive = (dt * x)[..., None] * B.transpose(1, 2)[:, None]
    # C as (batch, 1, seqlen, dstate), for all channels
    outward = C.transpose(1, 2)[:, None]
    h = torch.zeros_like(decay[:, :, 0])
    y = []
    for decay_t, drive_t, outward_t in zip(steps(decay), steps(drive), steps(outward)):
        h = decay_t * h + drive_t
        y.append((h * outward_t).sum(-1))
    return (torch.stack(y, 2) + D[:, None] * x) * silu(z)


def arguments(batch, dim, seqlen, dstate):
    """What a layer with Mamba's first parameters sees."""
    torch.manual_seed(0)
    channels, maps = (batch, dim, seqlen), (batch, dstate, seqlen)
    step = torch.exp(torch.empty(dim).uniform_(-6.9, -2.3))
    values = {
        "x": torch.randn(channels),
        "dt": 0.5 * torch.randn(channels),
        "A": -torch.arange(1.0, dstate + 1).repeat(dim, 1),
        "B": torch.randn(maps),
        "C": torch.randn(maps),
        "D": torch.ones(dim),
        "z": torch.randn(channels),
        "dt_bias": torch.log(torch.expm1(step)),
    }
    return [values[name].requires_grad_() for name in NAMES]


def statescan(*args):
    """Runs the program and gives what it printed."""
    command = ["cargo", "run", "--release", "--quiet", "--package", "statescan-cli", "--", *args]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"statescan {' '.join(args)}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def verify(steps):
    """Has the program compare its results and gradients with the loop's; raises if they differ."""
    inputs = arguments(2, 48, 100, 16)
    y = selective_scan(*inputs, steps)
    cotangent = torch.randn_like(y)
    gradients = torch.autograd.grad(y, inputs, cotangent)
    tensors = {"out.y": y, "cot.y": cotangent, **dict(zip(NAMES, inputs))}
    tensors |= {f"grad.{name}": gradient for name, gradient in zip(NAMES, gradients)}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "pytorch.safetensors"
        case = json.dumps({"op": "selective_scan", "args": {"dt_softplus": True}})
        save_file({name: t.detach().contiguous() for name, t in tensors.items()}, path, {"case": case})
        statescan("verify", str(path))


def seconds(run):
    begin = time.perf_counter()
    result = run()
    return time.perf_counter() - begin, result


def time_loop(steps, backward):
    """Seconds of the loop's passes."""
    inputs = arguments(*SHAPE)
    with torch.set_grad_enabled(backward):
        forward, y = seconds(lambda: selective_scan(*inputs, steps))
    if not backward:
        return {"forward": forward}
    # a forward pass that records is not what inference pays
    return {"backward": seconds(lambda: torch.autograd.grad(y, inputs, torch.ones_like(y)))[0]}


def time_statescan(threads):
    """Seconds of the program's passes at the same shape, each a median of its own."""
    lines = statescan("bench", "selective_scan", "--quick", "--json", "--threads", str(threads)).splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows:
        assert tuple(row["shape"][letter] for letter in "BDLN") == SHAPE, row
    return {row["pass"]: row["median_ns"] / 1e9 for row in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--indexed-backward", action="store_true", help="also the backward pass of the indexed loop: a minute a round"
    )
    args = parser.parse_args()
    for steps in (steps_unbound, steps_by_index):
        verify(steps)
    peers = {"PyTorch, indexed": (steps_by_index, args.indexed_backward), "PyTorch, unbound": (steps_unbound, True)}
    state_steps = SHAPE[0] * SHAPE[1] * SHAPE[2] * SHAPE[3]
    print(f"PyTorch {torch.__version__}, {args.rounds} rounds, medians")
    print("a state-step is one element of batch x dim x seqlen x dstate")
    print(f"{'threads':>7} {'pass':<9} {'by':<17} {'ms':>9} {'ns/state-step':>14} {'of ours':>8}")
    for threads in args.threads:
        torch.set_num_threads(threads)
        times = {}
        for _ in range(args.rounds):
            for name, (steps, backward) in peers.items():
                for passes in (False, True) if backward else (False,):
                    for key, value in time_loop(steps, passes).items():
                        times.setdefault((key, name), []).append(value)
            for key, value in time_statescan(threads).items():
                times.setdefault((key, "statescan"), []).append(value)
        medians = {key: statistics.median(values) for key, values in times.items()}
        for (key, name), value in sorted(medians.items(), key=lambda item: (item[0][0] == "backward", -item[1])):
            ratio = value / medians[key, "statescan"]
            print(f"{threads:>7} {key:<9} {name:<17} {1e3 * value:>9.1f} {1e9 * value / state_steps:>14.2f} {ratio:>8.1f}")


if __name__ == "__main__":
    main()
