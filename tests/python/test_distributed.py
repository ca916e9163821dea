"""A sequence cut over the processes of a group is the whole sequence.

A process takes seconds to start, so those of a group go through many cases.
"""

import datetime
import os
import tempfile
import time
import traceback

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

if not torch.distributed.is_available():
    pytest.skip("PyTorch was built without distributed", allow_module_level=True)

from torch import distributed  # noqa: E402

import statescan.compat.mamba_ssm as mamba  # noqa: E402
import statescan.distributed  # noqa: E402
from processes import server  # noqa: E402
from statescan.distributed import _exchange as exchange  # noqa: E402
from statescan.distributed import _pieces as pieces  # noqa: E402
from statescan.distributed._slices import Call  # noqa: E402
from statescan.nn import S5, Mamba, Mamba2  # noqa: E402

B, D, H, P, N = 2, 160, 4, 3, 3


def rand(*shape, low=0.0, high=1.0):
    return low + (high - low) * torch.rand(*shape)


def scan(seqlen, packed, **options):
    tensors = dict(x=torch.randn(packed, D, seqlen), dt=rand(packed, D, seqlen), A=-rand(D, N), B=torch.randn(packed, N, seqlen))
    tensors |= dict(
        C=torch.randn(packed, 2, N, seqlen), D=torch.randn(D), z=torch.randn(packed, D, seqlen), dt_bias=torch.randn(D)
    )
    return statescan.selective_scan, tensors, {"dt_softplus": True, **options}, (D, N)


def complex_scan(seqlen, packed, **options):
    tensors = dict(
        x=torch.randn(packed, D, seqlen), dt=rand(packed, D, seqlen, high=0.5), A=torch.complex(-rand(D, N), torch.randn(D, N))
    )
    tensors |= dict(B=torch.randn(D, N), C=torch.randn(packed, N, seqlen, dtype=torch.complex64))
    return statescan.selective_scan, tensors, {"discretization": "bilinear", **options}, (D, N)


def ssd(seqlen, packed, **options):
    heads = 64
    tensors = dict(x=torch.randn(packed, seqlen, heads, P), dt=rand(packed, seqlen, heads), A=-rand(heads))
    tensors |= dict(B=torch.randn(packed, seqlen, N), C=torch.randn(packed, seqlen, N), dt_a=rand(packed, seqlen, heads))
    return statescan.ssd, tensors, options, (heads, P, N)


def simplified(seqlen, packed, **options):
    tensors = dict(u=torch.randn(packed, H, seqlen), delta=rand(packed, P, seqlen), A=torch.complex(-rand(P), torch.randn(P)))
    tensors |= dict(B=torch.randn(P, H, dtype=torch.complex64), C=torch.randn(H, P, dtype=torch.complex64))
    return statescan.simplified_scan_fn, tensors, {"return_last_state": True, **options}, (P,)


def inner(seqlen, packed, **options):
    _, tensors, options, state = simplified(seqlen, packed, **options)
    return statescan.s5_inner_fn, {**tensors, "D": torch.randn(H)}, {"discretization": "zoh", **options}, state


def linear(seqlen, packed, **options):
    tensors = dict(a=torch.polar(rand(packed, D, seqlen), rand(packed, D, seqlen)), b=torch.randn(packed, D, seqlen))
    return statescan.linear_scan, tensors, options, (D,)


def delta(seqlen, packed, channels=False, **options):
    heads, keys = 2, 5
    tensors = dict(q=torch.randn(packed, seqlen, heads, keys), k=torch.randn(packed, seqlen, heads, keys))
    tensors |= dict(v=torch.randn(packed, seqlen, H, P), g=torch.randn(packed, seqlen, H, *[keys] * channels))
    tensors |= dict(beta=torch.randn(packed, seqlen, H), A_log=-rand(H), dt_bias=torch.randn(H, *[keys] * channels))
    return statescan.gated_delta_rule, tensors, {"qk_l2norm": True, "beta_sigmoid": True, **options}, (H, keys, P)


def delta_of_channels(seqlen, packed, **options):
    return delta(seqlen, packed, channels=True, **options)


def convolution(seqlen, packed, **options):
    tensors = dict(x=torch.randn(packed, D, seqlen), weight=torch.randn(D, 4), bias=torch.randn(D))
    return statescan.causal_conv1d, tensors, {"activation": "silu", "return_final_states": True, **options}, (D, 3)


OPERATIONS = (scan, complex_scan, ssd, simplified, inner, linear, delta, delta_of_channels, convolution)
TIMED = {"x": -1, "dt": -1, "z": -1, "B": -1, "C": -1, "u": -1, "delta": -1, "a": -1, "b": -1, "seq_idx": -1}

# these tensors have their time before their channels
TIME_FIRST = {
    statescan.ssd: ("x", "dt", "dt_a", "B", "C", "seq_idx"),
    statescan.gated_delta_rule: ("q", "k", "v", "g", "beta", "seq_idx"),
}


def time_axis(function, name, tensor):
    """The axis of time of an argument; None if it has none."""
    if function in TIME_FIRST:
        return 1 if name in TIME_FIRST[function] else None
    if name in ("B", "C") and (function in (statescan.simplified_scan_fn, statescan.s5_inner_fn) or tensor.dim() == 2):
        return None
    return tensor.dim() - 1 if name in TIMED else None


def build(operation, lengths, packing, initial, reverse):
    """A call on the whole sequence, the same on every rank."""
    seqlen, torch_seed = sum(lengths), 7
    torch.manual_seed(torch_seed)
    if operation is linear:
        packing = None
    rows = 1 if packing == "bounds" else B
    function, tensors, options, state = operation(seqlen, rows, reverse=reverse)
    starts = [0, 1, seqlen // 3, seqlen // 3, seqlen // 2 + 1, seqlen]
    sequences = len(starts) - 1
    of_step = torch.tensor([sum(start <= t for start in starts[1:-1]) for t in range(seqlen)]).expand(rows, seqlen)
    shape = (rows, *state)
    if packing == "bounds":
        options["cu_seqlens"], shape = torch.tensor(starts), (sequences, *state)
    elif packing is not None:
        tensors["seq_idx"] = of_step
    if packing == "index with states":
        shape = (rows, sequences, *state)
    if initial or packing == "index with states":
        is_complex = operation in (complex_scan, simplified, inner, linear)
        name = "initial_states" if operation is convolution else "initial_state"
        tensors[name] = torch.randn(shape, dtype=torch.complex64 if is_complex else torch.float32)
    return function, tensors, options


def run(function, tensors, options, weights, last, context=None):
    """Results, and the gradients of sums of them with weights."""
    tensors = {name: t.detach().requires_grad_(t.is_floating_point() or t.is_complex()) for name, t in tensors.items()}
    y, state = function(**tensors, **options, **({} if context is None else {"context": context}))
    loss = (y * weights[0]).real.sum() + (state * weights[1] * float(last)).real.sum()
    names = [name for name, tensor in tensors.items() if tensor.requires_grad]
    found = torch.autograd.grad(loss, [tensors[name] for name in names])
    return y.detach(), state.detach(), dict(zip(names, found))


def compare(context, lengths, operation, packing, initial, reverse):
    """Says what of the slice of this rank is not as in the whole."""
    function, tensors, options = build(operation, lengths, packing, initial, reverse)
    start = sum(lengths[: context.rank])
    length = lengths[context.rank]

    def own(name, tensor):
        axis = time_axis(function, name, tensor)
        return tensor if axis is None else tensor.narrow(axis, start, length)

    with torch.no_grad():
        shapes = function(**tensors, **options)
    weights = [torch.randn_like(shapes[0]), torch.randn_like(shapes[1])]
    y, state, grads = run(function, tensors, options, weights, True)
    y_axis = 1 if function in TIME_FIRST else 2
    mine = {name: own(name, tensor) for name, tensor in tensors.items()}
    last = context.rank == (0 if reverse else context.ranks - 1)
    first = context.rank == (context.ranks - 1 if reverse else 0)
    part = [weights[0].narrow(y_axis, start, length), weights[1]]
    (found_y, found_state, found), other = [run(function, mine, options, part, last, context) for _ in range(2)]
    found = {name: summed(grad) if is_weight(function, name, grad) else grad for name, grad in found.items()}
    # whoever fails from here on leaves nobody waiting
    pairs = [("y", found_y, y.narrow(y_axis, start, length))]
    if last:
        pairs.append(("state", found_state, state))
    for name, grad in found.items():
        axis = time_axis(function, name, tensors[name])
        whole = grads[name] if axis is None else grads[name].narrow(axis, start, length)
        pairs.append((name, grad, torch.zeros_like(whole) if name.startswith("initial") and not first else whole))
    for name, got, expected in pairs:
        scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
        if not torch.allclose(got, expected, rtol=2e-4, atol=2e-5 * scale):
            yield f"{name} differs by {(got - expected).abs().max().item():.3g} from up to {scale:.3g}"
    if not torch.equal(other[0], found_y) or not all(
        torch.equal(grad, found[name]) for name, grad in other[2].items() if not is_weight(function, name, grad)
    ):
        yield "results differ from run to run"


def is_weight(function, name, tensor):
    return not name.startswith("initial") and time_axis(function, name, tensor) is None


def summed(grad):
    """A weight's gradient of all ranks."""
    total = (torch.view_as_real(grad.resolve_conj()) if grad.is_complex() else grad).contiguous().clone()
    distributed.all_reduce(total)
    return torch.view_as_complex(total) if grad.is_complex() else total


def compare_all(context, operations, cases):
    wrong = []
    for operation in operations:
        for lengths, packing, initial, reverse in cases:
            found = compare(context, lengths, operation, packing, initial, reverse)
            wrong += [f"{operation.__name__}, {lengths}, {packing}, {initial}, {reverse}: {words}" for words in found]
    assert not wrong, "\n".join(wrong)


def identities(context):
    """Every operation, packing and direction, over slices of some lengths."""
    packings = (None, "bounds", "index", "index with states")
    if context.ranks == 2:
        cases = [([37, 70], packing, at % 2 == 0, False) for at, packing in enumerate(packings)]
        cases += [([66, 3], packing, at % 2 == 1, True) for at, packing in enumerate(packings)]
    else:
        cases = [([20, 30, 40], None, True, False)]
        for lengths in ([9, 0, 70], [2, 1, 30], [1, 2, 0]):
            cases += [(lengths, "index", True, False), (lengths, "bounds", True, True)]
    compare_all(context, OPERATIONS, cases)


def summaries_first(context):
    """As passes go on GPUs: whoever computes tells its summary in front."""
    cases = [([37, 70], None, True, False), ([66, 3], "index", True, True)]
    if context.ranks == 3:
        cases = [
            ([20, 30, 40], None, True, False),
            ([9, 0, 70], "bounds", True, True),
            ([1, 2, 0], "index with states", True, False),
        ]
    before = pieces._SUMMARY_FIRST, pieces._PIECES
    pieces._SUMMARY_FIRST, pieces._PIECES = ("cpu", "cuda"), 1
    try:
        compare_all(context, (scan, ssd, simplified, linear, delta, convolution), cases)
    finally:
        pieces._SUMMARY_FIRST, pieces._PIECES = before


def identities_on_gpus(context):
    """Fewer of them, since a GPU's kernels are compiled for each; in one piece, and in as many as there may be."""
    cases = [([37, 70], None, True, False), ([66, 3], "index", True, True)]
    compare_all(context, (scan, ssd, linear, delta, delta_of_channels, convolution), cases)
    enough, pieces._WORK = pieces._WORK, 1
    try:
        compare_all(context, (scan, ssd, linear), cases)
    finally:
        pieces._WORK = enough


def two_phases_on_gpus(context):
    """Long slices, whose passes are in two phases, and beside one whose pass is not."""
    lengths = ([4099, 3000], [3001, 70]) if context.ranks == 2 else ([3001, 2600, 2801], [2700, 0, 3000])
    cases = [(lengths[0], None, True, False), (lengths[1], None, True, True), (lengths[0], None, False, True)]
    calls, first_phase = [], Call.forward_ends
    Call.forward_ends = lambda call, *others: calls.append(call) or first_phase(call, *others)
    try:
        compare_all(context, (scan,), cases)
        # two calls each
        assert len(calls) == 2 * sum(lengths[context.rank] >= 2560 for lengths, *_ in cases)
        calls.clear()
        compare_bf16(context, lengths[0])
        assert calls or torch.cuda.get_device_capability() != (9, 0)
    finally:
        Call.forward_ends = first_phase


def compare_bf16(context, lengths):
    """SSD in bf16, whose passes are in two phases on Hopper; bounds are those of products of bf16."""
    steps, start, length = sum(lengths), sum(lengths[: context.rank]), lengths[context.rank]
    tensors = dict(x=torch.randn(1, steps, 4, 64), dt=rand(1, steps, 4, high=0.1), B=torch.randn(1, steps, 64))
    tensors = {name: t.bfloat16() for name, t in (tensors | {"C": torch.randn(1, steps, 64)}).items()} | {"A": -rand(4)}
    weights, last = [torch.randn(1, steps, 4, 64), torch.randn(1, 4, 64, 64)], context.rank == context.ranks - 1

    def own(name, tensor):
        axis = time_axis(statescan.ssd, name, tensor)
        return tensor if axis is None else tensor.narrow(axis, start, length)

    y, state, grads = run(statescan.ssd, tensors, {}, weights, True)
    mine = {name: own(name, tensor) for name, tensor in tensors.items()}
    found_y, found_state, found = run(statescan.ssd, mine, {}, [weights[0].narrow(1, start, length), weights[1]], last, context)
    pairs = [(found_y, y.narrow(1, start, length)), *([(found_state, state)] if last else [])]
    pairs += [(summed(grad) if name == "A" else grad, own(name, grads[name])) for name, grad in found.items()]
    for got, expected in pairs:
        assert (got - expected).abs().max() <= 3e-2 * expected.abs().max()


def options_of_models(context):
    """16-bit storage, drop-ins, no gradients, compiled calls, NaN beside a cut, what goes over the wires."""
    rank = context.rank
    lengths = [40, 24]
    start, length = sum(lengths[:rank]), lengths[rank]
    torch.manual_seed(1)
    xz, conv, bias = torch.randn(B, 2 * D, 64), torch.randn(D, 1, 4), torch.randn(D)
    maps, steps, out, A = torch.randn(4 + 2 * N, D) * 0.1, torch.randn(D, 4), torch.randn(5, D), -rand(D, N)
    whole = mamba.mamba_inner_fn(xz, conv, bias, maps, steps, out, None, A, D=bias, delta_bias=bias)
    part = xz.narrow(2, start, length)
    got = mamba.mamba_inner_fn(part, conv, bias, maps, steps, out, None, A, D=bias, delta_bias=bias, context=context)
    torch.testing.assert_close(got, whole.narrow(1, start, length), rtol=1e-4, atol=1e-4)

    heads, headdim = 4, 3
    dim = heads * headdim
    zxbcdt, conv = torch.randn(B, 64, 2 * dim + 2 * N + heads), torch.randn(dim + 2 * N, 4)
    given = (conv, torch.randn(dim + 2 * N), torch.randn(heads), -rand(heads), torch.randn(heads), 16)
    whole = mamba.mamba_split_conv1d_scan_combined(zxbcdt, *given, headdim=headdim)
    part = zxbcdt.narrow(1, start, length)
    got = mamba.mamba_split_conv1d_scan_combined(part, *given, headdim=headdim, context=context)
    torch.testing.assert_close(got, whole.narrow(1, start, length), rtol=1e-4, atol=1e-4)

    for layer in (Mamba(16), Mamba2(16, d_state=8, headdim=8), S5(16, 8)):
        u = torch.randn(B, 64, 16)
        with torch.no_grad():
            got, whole = layer(u.narrow(1, start, length), context=context), layer(u)
        torch.testing.assert_close(got, whole.narrow(1, start, length), rtol=1e-4, atol=1e-4)

    # 16 bits, and the shared map's gradient with it
    function, tensors, options, _ = scan(64, B)
    tensors = {name: t.bfloat16() if t.dim() > 2 else t for name, t in tensors.items()}
    weights = [torch.randn(B, D, 64), torch.zeros(())]
    y, _, grads = run(function, tensors, options, weights, False)
    mine = {name: t.narrow(-1, start, length) if t.shape[-1] == 64 else t for name, t in tensors.items()}
    got, _, found = run(function, mine, options, [weights[0].narrow(2, start, length), weights[1]], False, context)
    torch.testing.assert_close(got, y.narrow(2, start, length), rtol=2e-2, atol=2e-2)
    scale = grads["B"].abs().max().item()
    torch.testing.assert_close(found["B"], grads["B"].narrow(2, start, length), rtol=2e-2, atol=2e-2 * scale)

    # a sequence full of NaN ends at the cut
    clean = {name: t.narrow(-1, start, length).float() if t.shape[-1] == 64 else t for name, t in tensors.items()}
    clean["x"] = clean["x"] * (float("nan") if rank == 0 else 1.0)
    index = torch.full((B, length), rank)
    y, _ = function(**clean, **options, seq_idx=index, context=context)
    assert y.isnan().all() if rank == 0 else y.isfinite().all()

    # compiled, with its gradient, in one graph
    def compiled(x, dt, A, B, C):
        return statescan.selective_scan(x * 2, dt, A, B, C, context=context)[0].square()

    given = [mine[name].float().requires_grad_() for name in ("x", "dt", "A", "B", "C")]
    expected = torch.autograd.grad(compiled(*given).sum(), given)
    program = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    for a, b in zip(torch.autograd.grad(program(*given).sum(), given), expected):
        torch.testing.assert_close(a, b)

    # one exchange forwards and one backwards, each of states and decays whatever the length
    sent, gather = [], exchange.gather_rows

    def counted(rows, own, group):
        sent.append(own.numel() * own.element_size())
        return gather(rows, own, group)

    exchange.gather_rows = counted
    try:
        function(**{name: t.float() for name, t in mine.items()}, **options, context=context)
        forwards = sum(sent)
        sent.clear()
        run(function, mine, options, [weights[0].narrow(2, start, length), weights[1]], False, context)
        both = sum(sent)
        sent.clear()
        statescan.causal_conv1d(part.transpose(1, 2), torch.randn(part.shape[2], 4), context=context)
        halo = sum(sent)
    finally:
        exchange.gather_rows = gather
    state = B * D * N * 4
    # the numbers that tell of calls go by another name
    assert forwards == 2 * state, (forwards, state)
    assert both == 3 * state, (both, state)
    assert halo == B * (part.shape[2] + 1) * 3 * 4


def called_modules(context):
    """A convolution that is called, since something happens beside its weight, sees the inputs of the ranks before."""
    cuts = ([20, 9], [1, 28], [27, 2]) if context.ranks == 2 else ([2, 1, 26], [9, 0, 20], [1, 28, 0])
    numbers = torch.tensor([[0] * 3 + [1] * 8 + [2] * 18, [0] * 28 + [5]])
    torch.manual_seed(6)
    for layer, packed in ((Mamba(16), False), (Mamba2(16, d_state=8, headdim=8), False), (Mamba2(16, 8, headdim=8), True)):
        layer.conv1d.register_forward_hook(lambda module, args, y: y * 1.5)
        u, weights = torch.randn(2, B, 29, 16).unbind()
        u.requires_grad_()
        whole = layer(u, **({"seq_idx": numbers} if packed else {}))
        wanted = torch.autograd.grad((whole * weights).sum(), [u, *layer.parameters()])
        for lengths in cuts:
            own = (1, sum(lengths[: context.rank]), lengths[context.rank])
            part = u.detach().narrow(*own).requires_grad_()
            got = layer(part, context=context, **({"seq_idx": numbers.narrow(*own)} if packed else {}))
            found = torch.autograd.grad((got * weights.narrow(*own)).sum(), [part, *layer.parameters()])
            found = [found[0], *(summed(gradient) for gradient in found[1:])]
            torch.testing.assert_close(got, whole.narrow(*own), rtol=1e-4, atol=1e-4)
            for one, other in zip(found, [wanted[0].narrow(*own), *wanted[1:]]):
                scale = other.abs().max().item() if other.numel() else 0
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * scale)


def failures(context):
    """Calls that do not fit together, or are wrong on one rank, raise on all of them, and the next call is none the worse."""
    rank = context.rank
    torch.manual_seed(2)
    a, b = rand(B, 5, 8), torch.randn(B, 5, 8)

    def message(error, function, *arguments, **options):
        with pytest.raises(error) as caught:
            function(*arguments, **options, context=context)
        return str(caught.value)

    wider = rank + 5
    words = message(ValueError, statescan.linear_scan, rand(B, wider, 8), rand(B, wider, 8))
    assert words.startswith("linear_scan: `a` must be alike on all ranks, got") and "rank 1" in words, words
    words = message(ValueError, statescan.linear_scan, a.double() if rank else a, b)
    assert "`a`" in words and "float64" in words, words
    words = message(ValueError, statescan.linear_scan, a, b, None if rank else a[..., 0])
    assert "`initial_state`" in words, words
    words = message(ValueError, statescan.linear_scan, a, b, reverse=rank == 1)
    assert "`reverse`" in words, words
    words = message(ValueError, statescan.linear_scan, a.requires_grad_(rank == 1), b)
    assert "gradients" in words, words
    a = a.detach()
    # wrong on one rank only: that one says what, the others that it failed
    words = message(ValueError if rank == 1 else RuntimeError, statescan.linear_scan, a, b[:, :3] if rank == 1 else b)
    assert "`a`" in words or "`b`" in words, words
    assert rank == 1 or words.startswith("linear_scan: rank 1 failed: linear_scan:"), words
    words = message(ValueError, statescan.linear_scan if rank else statescan.causal_conv1d, a, b if rank else rand(5, 2))
    assert "rank 1 calls linear_scan" in words, words
    bounds = torch.tensor([0, 4, 15 + rank])
    function, tensors, _, _ = scan(8, 1)
    words = message(ValueError, function, **tensors, cu_seqlens=bounds)
    assert "`cu_seqlens`" in words, words
    words = message(ValueError, function, **tensors, cu_seqlens=torch.tensor([0, 4, 15]))
    assert "`cu_seqlens`" in words and "16" in words, words
    with pytest.raises(TypeError, match="`context` goes with PyTorch"):
        statescan.linear_scan(a.numpy(), b.numpy(), context=context)
    y, _ = statescan.linear_scan(a, b, context=context)
    assert y.isfinite().all()


def silence(context):
    """A rank that does not come ends the others' wait when the group's time is over."""
    group = distributed.new_group(timeout=datetime.timedelta(seconds=2))
    context = statescan.distributed.context(group)
    distributed.barrier()
    if context.rank == 1:
        time.sleep(4)
        return
    started = time.monotonic()
    with pytest.raises(RuntimeError):
        statescan.linear_scan(rand(B, 5, 8), rand(B, 5, 8), context=context)
    assert time.monotonic() - started < 60


def process(rank, ranks, store, backend, bodies, answers):
    """Goes through the bodies, and answers what went wrong. The others do not wait for one that has ended."""
    try:
        torch.set_num_threads(1)
        if backend == "nccl":
            torch.cuda.set_device(rank)
            torch.set_default_device(f"cuda:{rank}")
        distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=ranks)
        context = statescan.distributed.context()
        assert context is statescan.distributed.context() and (context.rank, context.ranks) == (rank, ranks)
        for body in bodies:
            body(context)
        answers.put(None)
        distributed.barrier()  # nobody leaves while another one still receives
    except BaseException:
        answers.put(f"rank {rank}: {traceback.format_exc()}")
    # groups have threads that may still want the interpreter, which must not have begun to end
    os._exit(0)


def run_ranks(ranks, backend, bodies):
    context = server()
    answers = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (ranks, os.path.join(folder, "store"), backend, bodies, answers)
        processes = [context.Process(target=process, args=(rank, *arguments)) for rank in range(ranks)]
        for one in processes:
            one.start()
        for one in processes:
            one.join(600)
    assert [one.exitcode for one in processes] == [0] * ranks
    wrong = [words for words in (answers.get() for _ in processes) if words]
    assert not wrong, "\n".join(wrong)


ALIKE = (identities, summaries_first, called_modules)
BODIES = [(2, (*ALIKE, options_of_models, failures, silence)), (3, ALIKE)]


@pytest.mark.parametrize("ranks, bodies", BODIES)
def test_ranks(ranks, bodies):
    run_ranks(ranks, "gloo", bodies)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")
def test_ranks_of_gpus():
    run_ranks(2, "nccl", (identities_on_gpus, two_phases_on_gpus))


@pytest.mark.skipif(torch.cuda.device_count() < 3, reason="there are no three GPUs")
def test_three_ranks_of_gpus():
    run_ranks(3, "nccl", (two_phases_on_gpus,))


def test_a_group_is_needed():
    with pytest.raises(RuntimeError, match="init_process_group"):
        statescan.distributed.context()
    with pytest.raises(TypeError, match="`context`"):
        statescan.linear_scan(torch.ones(3), torch.ones(3), context=1)
