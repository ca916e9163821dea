"""What a call costs besides its work: every function at a tiny size, beside an empty operation of PyTorch in the same run.

The empty operation is made with `torch.library` as well, and allocates one result. Without gradients, one thread; medians of
rounds that take turns, in microseconds. `--device cuda` times the launch, without waiting for the kernel. `--training` times a
forward and a backward pass with every gradient instead, beside an empty `autograd.Function` that takes, saves and gives as many
tensors as a selective scan with all options: what PyTorch takes of such a call. `--sizes` are those of its scans. `--engine off`
runs backward passes on the calling thread, and not on the one that PyTorch has for each GPU. `--ranks`, with `--training`, adds
the same calls as one of two ranks, of which the other one is pretended: what a pass over ranks takes besides waiting for others.
"""

import argparse
import statistics
import time

import torch

import statescan

CALLS = 500


def empty_operation():
    """An operation that does nothing but allocate."""
    library = torch.library.Library("statescan_overhead", "DEF")
    library.define("empty(Tensor x) -> Tensor")
    for device in ("CPU", "CUDA"):
        library.impl("empty", torch.empty_like, device)
    return library, torch.ops.statescan_overhead.empty.default


def calls(device):
    """The functions with tiny arguments, by name."""

    def real(*shape):
        return torch.randn(shape, device=device)

    x, A, B, D = real(1, 4, 8), -real(4, 2).abs(), real(1, 2, 8), real(4)
    heads, heads_dt, decays, maps = real(1, 8, 2, 4), real(1, 8, 2), -real(2).abs(), real(1, 8, 2)
    state, step, b, weight, inputs = real(1, 4, 2), real(1, 4), real(1, 2), real(4, 4), real(1, 4, 4)
    poles, b_map, c_map = torch.complex(-real(2).abs(), real(2)), real(2, 4), real(4, 2)
    return {
        "selective_scan": lambda: statescan.selective_scan(x, x, A, B, B),
        "selective_scan, all options": lambda: statescan.selective_scan(
            x, x, A, B, B, D, state, z=x, dt_bias=D, dt_softplus=True
        ),
        "ssd": lambda: statescan.ssd(heads, heads_dt, decays, maps, maps),
        "simplified_scan_fn": lambda: statescan.simplified_scan_fn(x, B, poles, b_map, c_map),
        "linear_scan": lambda: statescan.linear_scan(x, x),
        "causal_conv1d": lambda: statescan.causal_conv1d(x, weight, activation="silu"),
        "selective_state_update": lambda: statescan.selective_state_update(state, step, step, A, b, b),
        "causal_conv1d_update": lambda: statescan.causal_conv1d_update(step, inputs, weight),
    }


class Nothing(torch.autograd.Function):
    """Saves what it takes, and allocates its results and gradients."""

    @staticmethod
    def forward(ctx, *tensors):
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        return torch.empty_like(tensors[0]), torch.empty_like(tensors[-1])

    @staticmethod
    def backward(ctx, *gradients):
        return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors)


def training(device, dim, seqlen, dstate, context):
    """Forward and backward passes by name; the sizes are those of the selective scan. With a context they are a rank's, too."""

    def leaf(*shape, of=torch.randn):
        return of(shape, device=device).requires_grad_()

    def passes(function, *arguments, **options):
        leaves = [tensor for tensor in (*arguments, *options.values()) if isinstance(tensor, torch.Tensor)]
        tensors = list({id(tensor): tensor for tensor in leaves}.values())
        first = function(*arguments, **options)
        cotangent = torch.ones_like(first[0] if isinstance(first, tuple) else first)

        def call():
            result = function(*arguments, **options)
            torch.autograd.grad(result[0] if isinstance(result, tuple) else result, tensors, cotangent)

        return call

    x, dt, z = (leaf(1, dim, seqlen) for _ in range(3))
    A, B, C = leaf(dim, dstate), leaf(1, dstate, seqlen), leaf(1, dstate, seqlen)
    D, bias, state, weight = leaf(dim), leaf(dim), leaf(1, dim, dstate), leaf(dim, 4)
    options = {"z": z, "dt_bias": bias, "dt_softplus": True}
    heads, heads_dt, decays, b, c = leaf(1, 8, 2, 4), leaf(1, 8, 2), leaf(2), leaf(1, 8, 2), leaf(1, 8, 2)
    calls = {
        "selective_scan": (statescan.selective_scan, (x, dt, A, B, C), {}),
        "selective_scan, all options": (statescan.selective_scan, (x, dt, A, B, C, D, state), options),
        "ssd": (statescan.ssd, (heads, heads_dt, decays, b, c), {}),
        "linear_scan": (statescan.linear_scan, (x, dt), {}),
        "causal_conv1d": (statescan.causal_conv1d, (x, weight), {"activation": "silu"}),
    }
    found = {"(an empty Function)": passes(Nothing.apply, x, dt, A, B, C, D, z, bias, state)}
    for name, (function, arguments, more) in calls.items():
        found[name] = passes(function, *arguments, **more)
        if context is not None:
            found[f"{name}, a rank"] = passes(function, *arguments, **more, context=context)
    return found


class Told:
    """An exchange that is over at once: all ranks tell what this one does."""

    def __init__(self, rows, mine, group, async_op):
        rows.view(-1, mine.numel()).copy_(mine)

    def wait(self):
        pass


def pretended_context():
    """A context of the last one of two ranks."""
    from torch import distributed

    import statescan.distributed
    from statescan.distributed import _slices as slices

    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    context = statescan.distributed.context()
    context.rank, context.ranks, slices._gather = 1, 2, Told
    return context


def microseconds(call):
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--sizes", type=int, nargs=3, default=(4, 8, 2), metavar=("DIM", "SEQLEN", "DSTATE"))
    parser.add_argument("--engine", choices=("on", "off"), default="on")
    parser.add_argument("--ranks", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    library, empty = empty_operation()
    x = torch.randn(1, 4, 8, device=options.device)
    works = {"(an empty operation)": lambda: empty(x)}
    context = pretended_context() if options.ranks else None
    made = training(options.device, *options.sizes, context) if options.training else calls(options.device)
    with torch.set_grad_enabled(options.training), torch.autograd.set_multithreading_enabled(options.engine == "on"):
        for name, call in made.items():
            try:
                call()
                works[name] = call
            except RuntimeError as error:
                print(f"left out: {error}")
        times = {name: [] for name in works}
        for _ in range(options.rounds):
            for name, call in works.items():
                times[name].append(microseconds(call))
                if options.device != "cpu":
                    torch.cuda.synchronize()
    nothing = statistics.median(times["(an empty operation)"])
    print(f"PyTorch {torch.__version__}, {options.device}; microseconds a call, and more than the empty operation")
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"{name:<36} {median:6.1f} {median - nothing:6.1f}")
    del library


if __name__ == "__main__":
    main()
