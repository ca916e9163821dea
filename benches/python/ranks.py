"""One sequence over processes of one core each, beside one process of one core: `selective_scan`, forward and backward, by gloo.

    python benches/python/ranks.py

Medians of rounds that the processes start together. `summary` is what a rank between others does besides, in either direction.
"""

import argparse
import functools
import os
import statistics
import tempfile
import time

import torch
from torch import distributed, multiprocessing

import statescan.distributed
from statescan import _native
from statescan.operations import SELECTIVE_SCAN


def inputs(args, steps):
    torch.manual_seed(0)
    x, dt = torch.randn(1, args.dim, args.seqlen), torch.rand(1, args.dim, args.seqlen) * 0.1
    B, C = torch.randn(2, 1, args.dstate, args.seqlen)
    A = -torch.arange(1.0, args.dstate + 1).repeat(args.dim, 1)
    timed = (tensor[..., steps].contiguous() for tensor in (x, dt, B, C))
    x, dt, B, C = (tensor.requires_grad_() for tensor in timed)
    return x, dt, A.requires_grad_(), B, C


def seconds(work, rounds):
    """The median time of some work, which all processes start together."""
    found = []
    for _ in range(rounds + 1):
        distributed.barrier()
        start = time.perf_counter()
        work()
        distributed.barrier()
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])


def passes(given, cotangent, context):
    y, _ = statescan.selective_scan(*given, context=context)
    torch.autograd.grad(y, given, cotangent)


def summary(given):
    """Of a slice, and the gradient that flows out of it."""
    tensors = (*(tensor.detach() for tensor in given), *(None,) * (len(SELECTIVE_SCAN.tensors) - len(given)))
    options = tuple(default for _, default in SELECTIVE_SCAN.options)
    state = tensors[0].new_empty(1, *tensors[2].shape)
    decay, place = torch.empty_like(state), (-1, 1, None, False)
    initial = list(tensors)
    at = next(at for at, argument in enumerate(SELECTIVE_SCAN.arguments) if argument.name == "initial_state")
    initial[at] = torch.zeros_like(state)
    outputs = tuple(state if i == at else None for i in range(SELECTIVE_SCAN.differentiable))
    call = (*initial, *options, None, tensors[0], None)
    number = SELECTIVE_SCAN.number
    forwards = functools.partial(_native.summary, number, (*tensors, *options), (state, decay), place)
    return forwards, functools.partial(_native.backward, number, call, outputs, place)


def work(rank, args, store):
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=args.ranks)
    context = statescan.distributed.context()
    whole = inputs(args, slice(None))
    start, end = (args.seqlen * at // args.ranks for at in (rank, rank + 1))
    part = inputs(args, slice(start, end))
    y, own = torch.randn(1, args.dim, args.seqlen), torch.randn(1, args.dim, end - start)
    one = seconds(lambda: rank == 0 and passes(whole, y, None), args.rounds)
    several = seconds(lambda: passes(part, own, context), args.rounds)
    nothing = (lambda: None, lambda: None)
    told = [seconds(extra, args.rounds) for extra in (summary(part) if rank == 0 else nothing)]
    if rank == 0:
        state = args.dim * args.dstate * 4
        print(f"(1, {args.dim}, {args.seqlen}, {args.dstate}), f32, forward and backward")
        print(f"1 process {one * 1e3:.1f} ms, {args.ranks} processes {several * 1e3:.1f} ms, {one / several:.2f} times as fast")
        print(f"summary of a slice {told[0] * 1e3:.1f} ms forward, {told[1] * 1e3:.1f} ms backward", flush=True)
        print(f"each process tells {2 * state} bytes forward, {state} backward", flush=True)
    distributed.barrier()
    distributed.destroy_process_group()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--dim", type=int, default=1536)
    parser.add_argument("--seqlen", type=int, default=16384)
    parser.add_argument("--dstate", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (args, os.path.join(folder, "store")), nprocs=args.ranks)


if __name__ == "__main__":
    main()
