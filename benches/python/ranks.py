"""One sequence over several processes, beside one process: forward and backward passes, of operations and of layers.

    python benches/python/ranks.py
    python benches/python/ranks.py --backend nccl

With gloo each process has one core and the selective scan in f32 is measured; with NCCL each has a GPU, and every operation and
layers are. Results and gradients are compared before anything is timed. A time is the median of rounds that the processes start
together and end together. Memory is the peak of a process above what was there before.
"""

import argparse
import json
import os
import statistics
import tempfile
import time

import torch
from torch import distributed, multiprocessing

import statescan.distributed
from statescan import nn

# a result in one piece and one over ranks may differ by this share of its norm
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


class Operation:
    """A call whose tensors have the given axes of time, None for weights."""

    def __init__(self, function, tensors, **options):
        self.function, self.options = function, options
        self.tensors, self.axes = zip(*tensors)

    def part(self, steps):
        cut = (t if axis is None else t.movedim(axis, 0)[steps].movedim(0, axis) for t, axis in zip(self.tensors, self.axes))
        return [tensor.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for tensor in cut]

    def run(self, given, context=None):
        found = self.function(*given, **self.options, context=context)
        return found[0] if isinstance(found, tuple) else found


class Layers:
    """Some layers one behind the other, each with a sum around it."""

    def __init__(self, layers, u):
        self.layers, self.tensors, self.axes = layers, (u,), (1,)

    def part(self, steps):
        return [self.tensors[0][:, steps].detach().clone().requires_grad_()]

    def run(self, given, context=None):
        (u,) = given
        for layer in self.layers:
            u = u + layer(u, **({} if context is None else {"context": context}))
        return u


def random(device, dtype):
    """Makes tensors of normal and of uniform numbers, the same on every rank."""
    generator = torch.Generator(device).manual_seed(0)
    place = {"generator": generator, "device": device}

    def normal(*shape):
        return torch.randn(*shape, **place).to(dtype)

    def uniform(*shape):
        return torch.rand(*shape, **place).mul_(0.1).to(dtype)

    return normal, uniform


def selective_scan(args, length, device, dtype):
    normal, uniform = random(device, dtype)
    A = -torch.arange(1.0, args.dstate + 1, device=device).repeat(args.dim, 1)
    maps = [(normal(1, args.dstate, length), 2) for _ in range(2)]
    timed = [(normal(1, args.dim, length), 2), (uniform(1, args.dim, length), 2)]
    return Operation(statescan.selective_scan, [*timed, (A, None), *maps])


def ssd(args, length, device, dtype):
    normal, uniform = random(device, dtype)
    heads = args.dim // 64
    A = -torch.linspace(1.0, 16.0, heads, device=device)
    maps = [(normal(1, length, 128), 1) for _ in range(2)]
    timed = [(normal(1, length, heads, 64), 1), (uniform(1, length, heads).float(), 1)]
    return Operation(statescan.ssd, [*timed, (A, None), *maps])


def causal_conv1d(args, length, device, dtype):
    normal, _ = random(device, dtype)
    return Operation(statescan.causal_conv1d, [(normal(1, args.dim, length), 2), (normal(args.dim, 4), None)], activation="silu")


def linear_scan(args, length, device, dtype):
    normal, uniform = random(device, dtype)
    return Operation(statescan.linear_scan, [(1 - uniform(1, args.dim, length), 2), (normal(1, args.dim, length), 2)])


def mamba2(args, length, device, dtype, layers=1):
    torch.manual_seed(0)
    made = [nn.Mamba2(args.dim // 2, device=device, dtype=dtype) for _ in range(layers)]
    return Layers(made, random(device, dtype)[0](1, length, args.dim // 2))


def two_layers(args, length, device, dtype):
    return mamba2(args, length, device, dtype, 2)


ROWS = {f.__name__: f for f in (selective_scan, ssd, causal_conv1d, linear_scan, mamba2, two_layers)}


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds(work, rounds, device):
    """The median time of some work, which all processes start together and end together."""
    found = []
    for _ in range(rounds + 2):
        synchronize(device)
        distributed.barrier()
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        taken = torch.tensor(time.perf_counter() - start, device=device)
        distributed.all_reduce(taken, distributed.ReduceOp.MAX)
        found.append(taken.item())
    return statistics.median(found[2:])


def memory(work, device):
    """The most memory of the device that some work takes, in MiB."""
    if device.type != "cuda":
        return None
    synchronize(device)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    synchronize(device)
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def passes(case, given, cotangent, context):
    y = case.run(given, context)
    return y, torch.autograd.grad(y, given, cotangent)


def compare(case, steps, cotangent, context, dtype):
    """The greatest difference of the slice's results and gradients from those in one piece, of their norms."""
    whole = passes(case, case.part(slice(None)), cotangent[0], None)
    part = passes(case, case.part(steps), cotangent[1], context)
    axis = 1 if isinstance(case, Layers) else 2
    pairs = [(part[0], whole[0].movedim(axis, 0)[steps].movedim(0, axis))]
    for got, wanted, axis in zip(part[1], whole[1], case.axes):
        if axis is None:
            got = got.clone()
            distributed.all_reduce(got)
        pairs.append((got, wanted if axis is None else wanted.movedim(axis, 0)[steps].movedim(0, axis)))
    error = max(((got.double() - wanted.double()).norm() / wanted.double().norm()).item() for got, wanted in pairs)
    worst = torch.tensor(error, device=cotangent[0].device)
    distributed.all_reduce(worst, distributed.ReduceOp.MAX)
    if not worst.item() < TOLERANCE[dtype]:
        raise SystemExit(f"one process and several differ by {worst.item():.1e}")
    return worst.item()


def measure(name, args, length, device, dtype, context):
    """A row: milliseconds and MiB of one process and of several."""
    case = ROWS[name](args, length, device, dtype)
    bounds = [length * at // context.ranks for at in range(context.ranks + 1)]
    steps = slice(bounds[context.rank], bounds[context.rank + 1])
    axis = 1 if isinstance(case, Layers) else 2
    y = random(device, dtype)[0](*case.run(case.part(slice(None))).shape)
    cotangent = y, y.movedim(axis, 0)[steps].movedim(0, axis).contiguous()
    error = compare(case, steps, cotangent, context, dtype)
    whole, part = case.part(slice(None)), case.part(steps)
    work = (
        lambda: passes(case, whole, cotangent[0], None) if context.rank == 0 else None,
        lambda: passes(case, part, cotangent[1], context),
    )
    times = [seconds(run, args.rounds, device) * 1e3 for run in work]
    peaks = [memory(run, device) for run in work]
    return {
        "name": name,
        "length": length,
        "dtype": str(dtype).removeprefix("torch."),
        "one": round(times[0], 3),
        "several": round(times[1], 3),
        "MiB": [peak and round(peak) for peak in peaks],
        "error": error,
    }


def rows(args):
    if args.backend == "gloo":
        yield "selective_scan", args.seqlen or 16384, torch.float32
        return
    lengths = [(4099, torch.float32), (131072, torch.bfloat16), (524288, torch.bfloat16)]
    for length, dtype in [(args.seqlen, torch.bfloat16)] if args.seqlen else lengths:
        for name in args.rows:
            layers = name in ("mamba2", "two_layers")
            if not (layers and length in (4099, 524288)):
                yield name, length, dtype


def work(rank, args, store):
    if args.backend == "gloo":
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
        torch.set_num_threads(1)
        device = torch.device("cpu")
    else:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    distributed.init_process_group(args.backend, init_method=f"file://{store}", rank=rank, world_size=args.ranks)
    context, found = statescan.distributed.context(), []
    if rank == 0:
        name = torch.cuda.get_device_name() if device.type == "cuda" else "a core"
        print(f"{args.ranks} times {name}, {args.backend}, PyTorch {torch.__version__}; milliseconds, forward and backward")
    for name, length, dtype in rows(args):
        row = measure(name, args, length, device, dtype, context)
        found.append(row)
        if rank == 0:
            ratio = row["one"] / row["several"]
            peaks = "" if row["MiB"][0] is None else f", MiB {row['MiB'][0]} -> {row['MiB'][1]}"
            times = f"{row['one']:8.2f} -> {row['several']:8.2f} = {ratio:.2f}"
            print(f"{name:<16}{length:>8} {row['dtype']:<9}{times}{peaks}, difference {row['error']:.0e}", flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if rank == 0 and args.json:
        with open(args.json, "w") as file:
            json.dump(found, file, indent=1)
    distributed.barrier()
    distributed.destroy_process_group()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--dim", type=int, default=1536)
    parser.add_argument("--seqlen", type=int, help="this length only")
    parser.add_argument("--dstate", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if args.backend == "nccl" and torch.cuda.device_count() < args.ranks:
        raise SystemExit(f"nothing is measured: there are {torch.cuda.device_count()} GPUs, {args.ranks} are asked for")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (args, os.path.join(folder, "store")), nprocs=args.ranks)


if __name__ == "__main__":
    main()
