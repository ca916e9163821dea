"""The same calls on a GPU: results, gradients, and what PyTorch and CuPy do with them there."""

import copy
import importlib

import pytest
import torch

import statescan
import statescan.compat
from cases import CASES, Case, Random, delta, results
from statescan import nn
from statescan.compat import fla, mamba_ssm
from test_results import TOLERANCE, assert_close, gradients

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

each_case = pytest.mark.parametrize("name", CASES)
# one for each operation
ONE_EACH = [
    "selective_scan_everything",
    "ssd_everything",
    "gated_delta_rule_everything",
    "s5_inner_real",
    "linear_scan_state",
    "causal_conv1d_everything",
]
one_each = pytest.mark.parametrize("name", ONE_EACH)


def on_gpu(name, dtype=torch.float32):
    return CASES[name].to(dtype, "cuda")


def moved(tensors, device="cuda", dtype=torch.float32):
    """Tensors in float32 or complex64, and indices, on a device."""
    matching = {torch.float64: dtype, torch.complex128: torch.complex64}
    return {name: tensor.to(device, matching.get(tensor.dtype, tensor.dtype)) for name, tensor in tensors.items()}


@each_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_results(name, dtype):
    case = on_gpu(name, dtype)
    for i, (got, expected) in enumerate(zip(case(), case.double().reference(), strict=True)):
        assert got.is_cuda
        assert_close(got.cpu(), expected, TOLERANCE[dtype], f"result {i}")


@each_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients(name, dtype):
    case = on_gpu(name, dtype)
    got, expected = gradients(case, case), gradients(case.double().reference, case.double())
    again = gradients(case, case)
    for argument, gradient in got.items():
        tensor = case.tensors[argument]
        assert gradient.dtype == tensor.dtype and gradient.device == tensor.device
        assert torch.equal(gradient, again[argument]), f"gradient of {argument} from run to run"
        tolerance = 10 * TOLERANCE[tensor.dtype if tensor.is_floating_point() else dtype]
        wide = 0.2 if dtype == torch.bfloat16 else tolerance
        assert_close(gradient.cpu(), expected[argument], wide, f"gradient of {argument}")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gated_delta_rule_as_models_call_it(dtype, channels_first, packed):
    """128 keys and values, which tensor cores take in bf16."""
    sizes = {"batch": 1 if packed else 2, "heads": 2, "value_heads": 4, "seqlen": 300, "key_width": 128, "value_width": 128}
    tensors = delta(**sizes)
    if not channels_first:
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    if packed:
        tensors["cu_seqlens"] = torch.tensor([0, 70, 70, 199, 300])
    case = Case("gated_delta_rule", tensors, {"qk_l2norm": True}).to(dtype, "cuda")
    got = case()
    for i, (result, again, expected) in enumerate(zip(got, case(), case.double().reference(), strict=True)):
        assert_close(result.cpu(), expected, TOLERANCE[dtype], f"result {i}")
        assert torch.equal(result, again), f"result {i} from run to run"


LONG = {
    "selective_scan": lambda r: {
        "x": r.real(1, 4, 30_000),
        "dt": r.step(1, 4, 30_000),
        "A": r.decay(4, 16),
        "B": r.real(1, 16, 30_000),
        "C": r.real(1, 16, 30_000),
    },
    "ssd": lambda r: {
        "x": r.real(1, 30_000, 2, 4),
        "dt": r.step(1, 30_000, 2),
        "A": r.decay(2),
        "B": r.real(1, 30_000, 16),
        "C": r.real(1, 30_000, 16),
    },
    "linear_scan": lambda r: {"a": 1 - r.step(2, 30_000), "b": r.real(2, 30_000)},
    "simplified_scan_fn": lambda r: {
        "u": r.complex(1, 4, 30_000),
        "delta": r.step(1, 3, 30_000),
        "A": r.oscillation(3),
        "B": r.complex(3, 4),
        "C": r.complex(4, 3),
    },
    "causal_conv1d": lambda r: {"x": r.real(1, 4, 30_000), "weight": r.real(4, 4), "bias": r.real(4)},
}


@pytest.mark.parametrize("op", LONG)
def test_long_rows_of_few_channels(op):
    """They are cut into pieces, which takes scratch memory."""
    case = Case(op, LONG[op](Random())).to(torch.float32, "cuda")
    for got, expected in zip(case(), case.double()(), strict=True):
        assert_close(got.cpu(), expected, 1e-5, "result")
    got, expected = gradients(case, case), gradients(case.double(), case.double())
    for argument, gradient in got.items():
        assert_close(gradient.cpu(), expected[argument], 1e-4, f"gradient of {argument}")


def steps():
    """The steps: each with a state, the tensors by name and options."""
    r = Random(5)
    index = torch.tensor([2, -1])
    selective = {"x": r.real(2, 6), "dt": r.step(2, 6), "A": r.decay(6, 5), "B": r.real(2, 5), "C": r.real(2, 5)}
    more = {"D": r.real(6), "z": r.real(2, 6), "dt_bias": r.real(6)}
    simple = {"u": r.complex(2, 3), "delta": r.step(2, 5), "A": r.oscillation(5), "B": r.complex(5, 3), "C": r.complex(3, 5)}
    shift = {"x": r.real(2, 6), "weight": r.real(6, 4), "bias": r.real(6)}
    rule = {"q": r.real(2, 2, 5), "k": r.real(2, 2, 5), "v": r.real(2, 4, 3), "g": -r.step(2, 4), "beta": r.real(2, 4)}
    channels = rule | {"g": r.real(2, 4, 5), "A_log": r.real(4), "dt_bias": r.real(4, 5), "state_batch_indices": index}
    return {
        "selective": ("selective_state_update", {"state": r.real(2, 6, 5)}, selective, {}),
        "selective, all": ("selective_state_update", {"state": r.real(2, 6, 5)}, selective | more, {"dt_softplus": True}),
        "selective, rows": (
            "selective_state_update",
            {"state": r.real(3, 6, 5)},
            {**selective, "state_batch_indices": index},
            {"discretization": "zoh"},
        ),
        "simplified": ("simplified_state_update", {"state": r.complex(2, 5)}, simple, {}),
        "delta rule": ("gated_delta_rule_update", {"state": r.real(2, 4, 5, 3)}, rule, {"qk_l2norm": True}),
        "delta rule, channels": ("gated_delta_rule_update", {"state": r.real(3, 4, 5, 3)}, channels, {"beta_sigmoid": True}),
        "convolution": ("causal_conv1d_update", {"conv_state": r.real(2, 6, 3)}, shift, {"activation": "silu"}),
    }


@pytest.mark.parametrize("name", steps())
def test_steps(name):
    op, state, tensors, options = steps()[name]
    function = getattr(statescan, op)
    expected = function(**state, **tensors, **options)
    state_on_gpu = moved(steps()[name][1])
    got = function(**state_on_gpu, **moved(tensors), **options)
    assert_close(got.cpu(), expected, 1e-5, "result")
    for argument, after in state.items():
        assert_close(state_on_gpu[argument].cpu(), after, 1e-5, argument)


def test_names_of_fla():
    case = on_gpu("gated_delta_rule", torch.bfloat16)
    y, state = fla.chunk_gated_delta_rule(**case.tensors, output_final_state=True)
    assert all(torch.equal(a, b) for a, b in zip((y, state), case(), strict=True))


@one_each
def test_the_current_stream(name):
    """A call is behind what its stream does before, and nothing waits."""
    case = on_gpu(name)
    expected = case()
    waiting = {n: torch.zeros_like(t) for n, t in case.tensors.items()}
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        for n, tensor in case.tensors.items():
            waiting[n].copy_(tensor)
        got = case(**waiting)
        assert not stream.query(), "the call waited"
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@one_each
def test_graph(name):
    """Forward and backward in one recording, run again on other numbers."""
    case = on_gpu(name)
    leaves = {n: t.clone().requires_grad_() for n, t in case.floats().items()}

    def step():
        out = case(**leaves)
        loss = sum((2 * part).sum() for o in out for part in ((o.real, o.imag) if o.is_complex() else (o,)))
        return *out, *torch.autograd.grad(loss, list(leaves.values()))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    with torch.no_grad():
        for leaf in leaves.values():
            leaf.mul_(0.5)
    graph.replay()
    for got, expected in zip(recorded, step(), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("kind", ["Mamba", "Mamba2"])
def test_a_layer_in_graphs(kind):
    """PyTorch's `make_graphed_callables` records both passes: the same bits, for other inputs, too."""
    layer = getattr(nn, kind)(64, device="cuda")
    x, other = torch.randn(2, 2, 77, 64, device="cuda")
    graphed = torch.cuda.make_graphed_callables(copy.deepcopy(layer), (x.clone().requires_grad_(),))
    for inputs in (other, x):
        inputs = inputs.clone().requires_grad_()
        found = [(y := graphed(inputs)), *torch.autograd.grad(y.square().sum(), [inputs, *graphed.parameters()])]
        expected = [(y := layer(inputs)), *torch.autograd.grad(y.square().sum(), [inputs, *layer.parameters()])]
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@one_each
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(name, backend):
    case = on_gpu(name)
    torch._dynamo.reset()
    compiled = torch.compile(lambda **leaves: case(**leaves), fullgraph=True, backend=backend)
    expected, got = gradients(case, case), gradients(compiled, case)
    for argument in expected:
        assert_close(got[argument], expected[argument], 1e-5, argument)


@one_each
def test_opcheck(name):
    case = on_gpu(name)
    seen = []

    class Spy(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            seen.append((function, arguments))
            return function(*arguments, **(options or {}))

    with Spy():
        gradients(case, case)
    ours = [(f, a) for f, a in seen if f.namespace == "statescan"]
    assert len(ours) == 2
    for function, arguments in ours:
        arguments = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in arguments)
        # saved states have room that nothing is written to, so that their values cannot be compared
        torch.library.opcheck(function, arguments, test_utils=("test_schema", "test_faketensor"))


def test_packed_sequences_are_rows_of_their_own():
    """On Hopper results and gradients of packed sequences are those of each by itself, bit by bit."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("other devices cut rows at multiples of a chunk, whatever sequences are")
    lengths = 3 * [1, 2, 7, 65, 64, 63, 8] + [300, 129, 1, 1, 1, 1, 50]
    seqlen, heads, headdim, states = sum(lengths), 3, 64, 128
    numbers = torch.arange(len(lengths), dtype=torch.int32).repeat_interleave(torch.tensor(lengths))[None].cuda()
    normal = torch.Generator("cuda").manual_seed(1)

    def tensor(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, generator=normal, device="cuda", dtype=torch.float32).to(dtype)

    timed = {
        "x": tensor(1, seqlen, heads, headdim),
        "dt": tensor(1, seqlen, heads),
        "B": tensor(1, seqlen, 1, states),
        "C": tensor(1, seqlen, 1, states),
        "z": tensor(1, seqlen, heads, headdim),
    }
    fixed = {"A": -tensor(heads, dtype=torch.float32).exp(), "D": tensor(heads, dtype=torch.float32)}
    dy = tensor(1, seqlen, heads, headdim)

    def run(steps, **options):
        tensors = {name: t[:, steps].detach().requires_grad_() for name, t in timed.items()}
        own = {name: t.detach().requires_grad_() for name, t in fixed.items()}
        y = mamba_ssm.mamba_chunk_scan_combined(**tensors, **own, chunk_size=128, dt_softplus=True, **options)
        return [y.detach(), *torch.autograd.grad(y, list(tensors.values()), dy[:, steps])]

    packed = run(slice(None), seq_idx=numbers)
    ends = [sum(lengths[: k + 1]) for k in range(len(lengths))]
    apart = [run(slice(end - length, end)) for length, end in zip(lengths, ends, strict=True)]
    for name, got, parts in zip(["y", *timed], packed, zip(*apart, strict=True), strict=True):
        assert torch.equal(got, torch.cat(parts, 1)), name


@pytest.mark.parametrize("name", ["selective_scan_everything", "ssd_everything"])
def test_autocast(name):
    case = on_gpu(name)
    width = case.tensors["x"].shape[1]
    project = torch.nn.Linear(width, width, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        x = project(case.tensors["x"].transpose(1, -1)).transpose(1, -1)
        y, state = case(x=x)
    assert x.dtype == y.dtype == torch.bfloat16 and state.dtype == torch.float32
    (y.float().sum() + state.sum()).backward()
    assert project.weight.grad.dtype == torch.float32 and project.weight.grad.abs().sum() > 0


def test_tf32_where_pytorch_allows_it():
    case = on_gpu("ssd_everything")
    exact = case()
    setting = torch.backends.cuda.matmul
    setting.allow_tf32 = True
    try:
        rounded = case()
    finally:
        setting.allow_tf32 = False
    for got, again, expected in zip(rounded, case(), exact, strict=True):
        assert not torch.equal(got, expected)
        assert_close(got, expected, 2e-3, "with tf32")
        assert torch.equal(again, expected)


def test_devices_are_not_mixed():
    case = on_gpu("selective_scan")
    for name, tensor in case.tensors.items():
        if name != "x":
            with pytest.raises(ValueError, match=f"selective_scan: `{name}` must be on cuda:0, got one on cpu"):
                case(**{name: tensor.cpu()})
            with pytest.raises(ValueError, match=f"selective_scan: `{name}`"):
                case(**{name: tensor.cpu().requires_grad_()})


def test_double_precision_is_refused():
    case = on_gpu("selective_scan")
    with pytest.raises(RuntimeError, match="selective_scan in float64 .* compute in float32"):
        case(**{n: t.double() for n, t in case.tensors.items()})


@pytest.mark.parametrize("name", ["selective_scan_everything", "linear_scan_state", "causal_conv1d_everything"])
def test_cupy(name):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    case = on_gpu(name)
    arrays = {n: cupy.from_dlpack(t) for n, t in case.tensors.items()}
    with cupy.cuda.Stream(non_blocking=True) as stream:
        got = results(getattr(statescan, case.op)(**arrays, **case.options))
    stream.synchronize()
    for array, expected in zip(got, case(), strict=True):
        assert isinstance(array, cupy.ndarray)
        assert torch.equal(torch.from_dlpack(array), expected)


def test_example(tmp_path, capsys):
    for module in ("matplotlib", "tqdm"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    example = importlib.import_module("test_examples").train_bytes.__wrapped__()
    options = ["--device", "cuda", "--steps", "40", "--length", "20", "--plot", str(tmp_path / "loss.png")]
    example.main(options)
    printed = capsys.readouterr().out
    assert "on cuda" in printed and "sample: Alice was beginning" in printed
