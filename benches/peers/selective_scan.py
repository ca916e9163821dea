"""Mamba's CUDA kernels (`mamba_ssm`) beside statescan's, on a CUDA device, in one run.

Both are called through the same function, `selective_scan_fn`, with gate, skip, bias and softplus. Each row is verified before
it is timed: outputs and gradients of both, for the first steps of its first sequence, against a plain loop over time in float64.
Errors are relative: the norm of the difference by the norm of what is exact. Times are those of the device for all launches of a
pass, out of a CUDA graph, with nothing of the call in the caches; medians.

Without `mamba_ssm`, whose extension must have been built for this PyTorch, ours is verified and timed alone.
"""

import argparse

import torch
from device import kernel_times
from ssd_triton import largest_error

from statescan.compat.mamba_ssm import selective_scan_fn as ours

VERIFIED_STEPS = 200
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
# errors beyond which a pass is wrong rather than inexact
TOLERANCE = {"bf16": 0.1, "f16": 0.02, "f32": 1e-4}

# (batch, dim, seqlen, dstate), and whether steps come before channels in memory
ROWS = {
    "batch 8": ((8, 2048, 2048, 16), False),
    "one prompt": ((1, 5120, 4096, 16), False),
    "long prompt": ((1, 1536, 65536, 16), False),
    "batch 64": ((64, 2048, 512, 16), False),
    "one step less": ((8, 2048, 2047, 16), False),
    "one step more": ((8, 2048, 2049, 16), False),
    "1001 steps": ((8, 2048, 1001, 16), False),
    "333 steps": ((2, 1536, 333, 16), False),
    "steps first": ((8, 2048, 2048, 16), True),
    "256 steps": ((1, 1536, 256, 16), False),
    "64 steps": ((1, 768, 64, 16), False),
}
NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")


def import_peer():
    """The peer's function, or None with the reason printed."""
    try:
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
    except ImportError as error:
        print(f"the peer is left out, since it cannot be imported: {error}")
        return None
    return selective_scan_fn


def arguments(sizes, steps_first, dtype, device="cuda"):
    """The arguments of both functions, with the distributions of Mamba's first parameters, and the gradient by the output."""
    batch, dim, seqlen, dstate = sizes
    generator = torch.Generator(device).manual_seed(0)

    def normal(rows):
        shape = (batch, seqlen, rows) if steps_first else (batch, rows, seqlen)
        drawn = torch.randn(shape, generator=generator, device=device).to(dtype)
        return drawn.transpose(1, 2) if steps_first else drawn

    step = torch.empty(dim, device=device).uniform_(-6.9, -2.3, generator=generator).exp()
    decays = torch.arange(1, dstate + 1, dtype=torch.float32, device=device)
    tensors = (
        normal(dim),
        0.5 * normal(dim),
        -decays.repeat(dim, 1),
        normal(dstate),
        normal(dstate),
        torch.ones(dim, device=device),
        normal(dim),
        step.expm1().log(),
    )
    return tensors, normal(dim)


def loop(u, delta, A, B, C, D, z, delta_bias, delta_softplus):
    """The same by a loop over time, in the types of the arguments."""
    step = torch.nn.functional.softplus(delta + delta_bias[:, None])
    state, outputs = torch.zeros_like(A).expand(len(u), -1, -1), []
    for t in range(u.shape[2]):
        decay = torch.exp(step[:, :, t, None] * A)
        state = decay * state + (step * u)[:, :, t, None] * B[:, None, :, t]
        outputs.append((state * C[:, None, :, t]).sum(-1))
    y = torch.stack(outputs, 2) + D[:, None] * u
    return y * torch.nn.functional.silu(z)


def outcome(function, tensors, dy):
    """The output and the gradients by name."""
    tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    y = function(*tensors, delta_softplus=True)
    return {"y": y}, dict(zip(NAMES, torch.autograd.grad(y, tensors, dy.to(y.dtype))))


def first_steps(tensors, dy):
    """A small call out of a large one."""
    cut = [tensor[:1, :, :VERIFIED_STEPS] if tensor.dim() == 3 else tensor for tensor in tensors]
    return cut, dy[:1, :, :VERIFIED_STEPS]


def times(function, tensors, dy):
    """Microseconds of the forward and of the backward pass."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    tensors = [tensor.detach().requires_grad_() for tensor in tensors]

    def forward():
        with torch.no_grad():
            return function(*tensors, delta_softplus=True)

    # gradients are computed in the stream of their forward pass; both have been compiled when they are recorded
    with torch.cuda.stream(stream):
        forward()
        y = function(*tensors, delta_softplus=True)

        def backward():
            return torch.autograd.grad(y, tensors, dy, retain_graph=True)

        backward()
    torch.cuda.synchronize()
    return kernel_times((forward, backward), stream)


def measure(name, word, functions):
    """The lines of a row: one for each pass."""
    sizes, steps_first = ROWS[name]
    tensors, dy = arguments(sizes, steps_first, TYPES[word])
    small, small_dy = first_steps(tensors, dy)
    expected = outcome(loop, [tensor.double() for tensor in small], small_dy.double())
    columns = []
    for function in functions:
        errors = [largest_error(*pair) for pair in zip(outcome(function, small, small_dy), expected)]
        if max(errors)[0] > TOLERANCE[word]:
            raise SystemExit(f"{name}, {word}: {function.__module__} is wrong, {errors}")
        columns.append((times(function, tensors, dy), errors))
    for i, which in enumerate(("forward", "backward")):
        taken = [of[i] for of, _ in columns]
        figures = "".join(f"{time:>9.1f} " for time in taken) + (f"{taken[1] / taken[0]:>6.2f}" if len(taken) > 1 else "")
        errors = "  ".join(f"{errors[i][0]:.1e} {errors[i][1]:<12}" for _, errors in columns)
        yield f"{name:<14} {word:<5} {which:<9} {figures}  {errors}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--types", nargs="+", choices=TYPES, default=["bf16", "f32"], metavar="TYPE", help=", ".join(TYPES))
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("nothing is measured: PyTorch has no CUDA device")
    functions = [ours, *filter(None, [import_peer()])]
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    print("row, type, pass, microseconds of ours and of the peer with their ratio, largest errors of both")
    for name in args.rows:
        for word in args.types:
            for line in measure(name, word, functions):
                print(line, flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
