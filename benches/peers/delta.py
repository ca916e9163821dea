"""The gated delta rule beside the plain path of `transformers`, in turns in one process on a CPU.

Each row is verified before it is timed: results of both against each other. Times are the least of many; the peer is what a model
of `transformers` runs without a package: `torch_chunk_gated_delta_rule` and `torch_recurrent_gated_delta_rule` of Qwen3-Next, and
`chunk_kimi_delta_attention` of Kimi Linear.

    python benches/peers/delta.py [--threads 1] [--repeats 9] [--seqlen 512 2048] [--ggml FOLDER]

`--ggml` names a folder with the shared libraries of ggml's CPU backend (`cmake -DBUILD_SHARED_LIBS=ON`). Its operation
then takes turns with ours on keys and queries of length 1, since it leaves their norms to other operations.
"""

import argparse
import ctypes
import pathlib
import time

import torch
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

import statescan

HEADS, WIDTH = 16, 128


def plain(function):
    """A function of a model as it is without a package."""
    return getattr(function, "__wrapped__", function)


def inputs(seqlen, channels, across):
    generator = torch.Generator().manual_seed(1)
    real = lambda *shape: torch.randn(shape, generator=generator)  # noqa: E731
    if across:
        rows = [real(1, HEADS, WIDTH, seqlen).permute(0, 3, 1, 2) for _ in range(3)]
    else:
        rows = [real(1, seqlen, HEADS, WIDTH) for _ in range(3)]
    gate = (1, seqlen, HEADS, WIDTH) if channels else (1, seqlen, HEADS)
    return [*rows, -0.1 * torch.rand(gate, generator=generator), torch.rand((1, seqlen, HEADS), generator=generator)]


def ours(q, k, v, g, beta, state=None):
    return statescan.gated_delta_rule(q, k, v, g, beta, state, qk_l2norm=True)


def theirs(function):
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    return lambda q, k, v, g, beta, state=None: plain(function)(q, k, v, g=g, beta=beta, initial_state=state, **options)


class Ggml:
    """`ggml_gated_delta_net` of ggml's CPU backend, which copies nothing: its tensors are filled once."""

    def __init__(self, folder, tensors, threads):
        find = lambda part: next(pathlib.Path(folder).rglob(f"libggml-{part}.so"))  # noqa: E731
        self.base, self.cpu = (ctypes.CDLL(find(part), ctypes.RTLD_GLOBAL) for part in ("base", "cpu"))
        self.threads = threads
        names = ("ggml_init", "ggml_new_tensor_4d", "ggml_gated_delta_net", "ggml_new_graph", "ggml_get_data")
        for name in names:
            getattr(self.base, name).restype = ctypes.c_void_p

        class Memory(ctypes.Structure):
            _fields_ = [("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("unallocated", ctypes.c_bool)]

        seqlen = tensors[0].shape[1]
        self.context = ctypes.c_void_p(self.base.ggml_init(Memory(48 * seqlen * HEADS * WIDTH + (256 << 20), None, False)))
        rows = [(WIDTH, HEADS, seqlen)] * 3 + [(1, HEADS, seqlen)] * 2 + [(WIDTH, WIDTH, HEADS)]
        state = torch.zeros(HEADS, WIDTH, WIDTH)
        inputs = [self.filled(sizes, tensor) for sizes, tensor in zip(rows, [*tensors, state])]
        self.result = ctypes.c_void_p(self.base.ggml_gated_delta_net(self.context, *inputs, ctypes.c_int64(1)))
        self.graph = ctypes.c_void_p(self.base.ggml_new_graph(self.context))
        self.base.ggml_build_forward_expand(self.graph, self.result)
        self.y = torch.frombuffer(self.memory(self.result, tensors[2].numel()), dtype=torch.float32).view(tensors[2].shape)

    def memory(self, tensor, numbers):
        return (ctypes.c_float * numbers).from_address(self.base.ggml_get_data(tensor))

    def filled(self, sizes, tensor):
        own = ctypes.c_void_p(self.base.ggml_new_tensor_4d(self.context, 0, *(ctypes.c_int64(size) for size in (*sizes, 1))))
        torch.frombuffer(self.memory(own, tensor.numel()), dtype=torch.float32).copy_(tensor.flatten())
        return own

    def __call__(self, *_):
        self.cpu.ggml_graph_compute_with_ctx(self.context, self.graph, self.threads)
        return self.y, None


def with_gradients(function, cotangent):
    def both(*tensors):
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        y, _ = function(*leaves)
        return y, torch.autograd.grad((y * cotangent).sum(), leaves)

    return both


def least(functions, tensors, repeats, burst):
    """The least time of each, in turns of so many calls: a step finds its states in the cache from the second one on."""
    times = [[] for _ in functions]
    for _ in range(repeats):
        for function, found in zip(functions, times):
            for _ in range(burst):
                start = time.perf_counter()
                function(*tensors)
                found.append(time.perf_counter() - start)
    return [min(found) for found in times]


def row(name, functions, tensors, repeats, burst=1):
    # the step replaces its state: each gets its own
    got, expected = (function(*(tensor.clone() for tensor in tensors))[0] for function in functions)
    assert (got - expected).abs().max() <= 1e-4 * expected.abs().max(), name
    own, peer = least(functions, tensors, repeats, burst)
    print(f"| {name} | {own * 1e3:.3f} | {peer * 1e3:.2f} | {peer / own:.1f} |", flush=True)


def step(q, k, v, g, beta, state):
    return statescan.gated_delta_rule_update(state, q, k, v, g, beta, qk_l2norm=True)[:, None], state


def plain_step(q, k, v, g, beta, state):
    one = (tensor[:, None] for tensor in (q, k, v, g, beta))
    return theirs(qwen.torch_recurrent_gated_delta_rule)(*one, state)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seqlen", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--ggml")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    statescan.set_num_threads(options.threads)
    print("| ms | statescan | plain path | ratio |\n|---|---|---|---|")
    chunk, kda = theirs(qwen.torch_chunk_gated_delta_rule), theirs(kimi.chunk_kimi_delta_attention)
    with torch.no_grad():
        for seqlen in options.seqlen:
            for across in (False, True):
                name = f"forward, {seqlen} steps{', channels first' if across else ''}"
                row(name, (ours, chunk), inputs(seqlen, False, across), options.repeats)
        for seqlen in options.seqlen if options.ggml else ():
            tensors = inputs(seqlen, False, False)
            tensors[:2] = (torch.nn.functional.normalize(tensor, dim=-1) for tensor in tensors[:2])
            peer = Ggml(options.ggml, tensors, options.threads)
            row(f"forward, {seqlen} steps, beside ggml", (statescan.gated_delta_rule, peer), tensors, options.repeats)
        tensors = inputs(options.seqlen[0], True, False)
        row(f"forward, {options.seqlen[0]} steps, by channel", (ours, kda), tensors, min(options.repeats, 3))
        tensors = [*(tensor[:, 0] for tensor in inputs(1, False, False)), torch.zeros(1, HEADS, WIDTH, WIDTH)]
        row("a step, its states in the cache", (step, plain_step), tensors, options.repeats, burst=20)
    for seqlen in options.seqlen:
        tensors = inputs(seqlen, False, False)
        cotangent = torch.randn(tensors[2].shape)
        pair = with_gradients(ours, cotangent), with_gradients(chunk, cotangent)
        row(f"forward and backward, {seqlen} steps", pair, tensors, min(options.repeats, 5))


if __name__ == "__main__":
    main()
