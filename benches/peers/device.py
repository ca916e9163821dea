"""What benchmarks on a CUDA device share: times out of graphs, and the Triton compiler's cache filled by several processes."""

import contextlib
import itertools
import multiprocessing
import statistics

import torch

REPEATS = 15
# more bytes than any cache holds
CACHED = 256 << 20


def _time(graph, scratch):
    # reads leave lines in the cache that need not be written back
    scratch.sum()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end)


def kernel_times(steps, stream):
    """Microseconds of the device for what each of some functions puts into a stream, with nothing of it in the caches: medians
    of turns."""
    graphs, scratch = [torch.cuda.CUDAGraph() for _ in steps], torch.zeros(CACHED // 4, device="cuda")
    kept = []
    for graph, step in zip(graphs, steps):
        with torch.cuda.graph(graph, stream=stream):
            kept.append(step())
    times = [[_time(graph, scratch) for graph in graphs] for _ in range(REPEATS)]
    del kept
    return [statistics.median(column) for column in zip(*times)]


def call_times(steps):
    """`kernel_times` of functions that compile and tune when they are first called."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for step in steps:
            step()
            step()
    torch.cuda.synchronize()
    return kernel_times(steps, stream)


def _compile_some(call, arguments, part, parts):
    """Every `parts`-th configuration of the kernels that a call runs, none of which is run."""
    from triton.runtime.autotuner import Autotuner

    seen = itertools.count()

    def compiled(kernel, *arguments, grid, warmup, **options):
        for config in kernel.configs:
            if next(seen) % parts == part:
                # a configuration that does not compile is not chosen later either
                with contextlib.suppress(Exception):
                    kernel.fn.warmup(*arguments, grid=grid, **options, **config.all_kwargs())
        kernel.best_config = kernel.configs[0]

    Autotuner.run = compiled
    call(*arguments)


def compile_kernels(call, arguments, processes):
    """The Triton kernels of a function of a module in all configurations; one after another they would take minutes.

    Sizes are those that are timed: kernels are specialized for those that 16 divides, and by the number of multiprocessors.
    """
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_compile_some, args=(call, arguments, part, processes)) for part in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
