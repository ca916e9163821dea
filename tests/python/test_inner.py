"""What a Mamba layer does between its projections as one function, with all that its origin takes: results and gradients are
those of a composition of plain operations."""

import pytest
import torch
from torch.nn.functional import conv1d, linear, rms_norm, silu

from statescan._inner import mamba_inner
from statescan.compat import inner
from statescan.compat.mamba_ssm import mamba_inner_fn
from statescan.compat.references import loops as reference

BATCH, SEQLEN, DIM, RANK, STATES, WIDTH = 2, 13, 6, 3, 4, 5
EPS = 1e-3


def arguments(maps=(), norms=(), biases=(), is_complex=False, groups=None, step_norm=RANK, seqlen=SEQLEN):
    """Tensors by name, in float64. `maps` are those that are given, with time ("B", "C") or without ("b", "c")."""
    generator = torch.Generator().manual_seed(8)

    def normal(*shape, of=torch.float64):
        return torch.randn(*shape, generator=generator, dtype=of)

    kind = torch.complex128 if is_complex else torch.float64
    rows = STATES * (2 if is_complex else 1)
    projected = sum(letter not in maps and letter.lower() not in maps for letter in "BC")
    A = -torch.rand(DIM, STATES, generator=generator, dtype=torch.float64) - 0.1
    found = {
        "xz": normal(BATCH, 2 * DIM, seqlen),
        "conv1d_weight": normal(DIM, 1, 3),
        "conv1d_bias": normal(DIM),
        "x_proj_weight": normal(RANK + projected * rows, DIM) / 2,
        "delta_proj_weight": normal(DIM, RANK) / 2,
        "out_proj_weight": normal(WIDTH, DIM),
        "out_proj_bias": normal(WIDTH),
        "A": torch.complex(A, normal(DIM, STATES)) if is_complex else A,
        "D": normal(DIM),
        "delta_bias": normal(DIM),
    }
    timed = (BATCH, STATES, seqlen) if groups is None else (BATCH, groups, STATES, seqlen)
    for letter in maps:
        found[letter.upper()] = normal(DIM, STATES, of=kind) if letter.islower() else normal(*timed, of=kind)
    found |= {f"{letter}_proj_bias": normal(rows) for letter in biases}
    found |= {f"{name}_rms_weight": normal(step_norm if name == "dt" else rows) for name in norms}
    return found | ({"b_c_dt_rms_eps": EPS} if norms else {})


def composed(xz, A, D, conv1d_weight, x_proj_weight, delta_proj_weight, **more):
    """The same by a loop over time, and operations of PyTorch."""
    x, z = xz.chunk(2, 1)
    x = silu(conv1d(x, conv1d_weight, more["conv1d_bias"], padding=conv1d_weight.shape[2] - 1, groups=DIM)[..., :SEQLEN])
    rows = STATES * (2 if A.is_complex() else 1)
    dt, *parts = linear(x.transpose(1, 2), x_proj_weight).split([RANK, *[rows] * ((len(x_proj_weight) - RANK) // rows)], -1)

    def projected(letter):
        part = parts.pop(0) + more.get(f"{letter}_proj_bias", 0)
        weight = more.get(f"{letter.lower()}_rms_weight")
        part = part if weight is None else rms_norm(part, (rows,), weight, EPS)
        return (torch.view_as_complex(part.unflatten(-1, (-1, 2))) if A.is_complex() else part).transpose(1, 2)

    B, C = (more[letter] if letter in more else projected(letter) for letter in "BC")
    weight, behind = more.get("dt_rms_weight"), 1
    if weight is not None:
        if len(weight) != RANK:
            weight, behind = torch.ones(RANK, dtype=weight.dtype), weight[:, None]
        dt = rms_norm(dt, (RANK,), weight, EPS)
    dt = linear(dt, behind * delta_proj_weight).transpose(1, 2)
    y, _ = reference.selective_scan(x, dt, A, B, C, D, z=z, dt_bias=more["delta_bias"], dt_softplus=True)
    return linear(y.transpose(1, 2), more["out_proj_weight"], more["out_proj_bias"])


CASES = {
    "plain": {},
    "norms": {"norms": ("b", "c", "dt")},
    "norm of the step alone": {"norms": ("dt",)},
    "a weight behind the step": {"norms": ("b", "dt"), "step_norm": DIM},
    "biases": {"biases": "BC"},
    "biases and norms": {"biases": "BC", "norms": ("b", "c", "dt")},
    "a bias of C": {"biases": "C"},
    "B given": {"maps": "B"},
    "C given, for all times": {"maps": "c", "norms": ("b",)},
    "both given": {"maps": "BC"},
    "groups": {"maps": "BC", "groups": 2},
    "both given, for all times": {"maps": "bc"},
    "complex": {"is_complex": True},
    "complex, with norms and biases": {"is_complex": True, "norms": ("b", "c", "dt"), "biases": "BC"},
    "complex, B given": {"is_complex": True, "maps": "B"},
    "complex, C given, for all times": {"is_complex": True, "maps": "c", "biases": "B"},
}
each_case = pytest.mark.parametrize("name", CASES)


def as_given(tensors):
    """Complex maps that vary with time are given as the origin takes them: real, (.., dstate, 2 seqlen)."""

    def real(name, value):
        if name not in ("B", "C") or not value.is_complex() or value.dim() == 2:
            return value
        return torch.view_as_real(value).flatten(-2)

    return {name: real(name, value) for name, value in tensors.items()}


def outcome(function, tensors, arrange=lambda tensors: tensors):
    """The result, and the gradients by name."""
    leaves = {name: t.detach().clone().requires_grad_() for name, t in tensors.items() if isinstance(t, torch.Tensor)}
    y = function(**arrange({**tensors, **leaves}))
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64, device=y.device).view_as(y)
    gradients = torch.autograd.grad((y.double() * weights).sum(), list(leaves.values()))
    return {"y": y.detach(), **dict(zip(leaves, gradients, strict=True))}


@pytest.fixture
def only_as_one(monkeypatch):
    """Fails where the function is not taken."""

    def never(*arguments, **options):
        raise AssertionError("operations are called one by one")

    monkeypatch.setattr(inner, "_convolved", never)


@each_case
def test_results_and_gradients(name, only_as_one):
    tensors = arguments(**CASES[name])
    got, expected = outcome(mamba_inner_fn, tensors, as_given), outcome(composed, tensors)
    for at, wanted in expected.items():
        torch.testing.assert_close(got[at], wanted, msg=lambda words, at=at: f"{at}: {words}")


def on_gpu(value):
    """In single precision; what is no tensor stays."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.to("cuda", torch.complex64 if value.is_complex() else torch.float32)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@each_case
def test_results_and_gradients_on_a_gpu(name, only_as_one):
    tensors = arguments(**CASES[name])
    got = outcome(mamba_inner_fn, {at: on_gpu(value) for at, value in tensors.items()}, as_given)
    for at, wanted in outcome(composed, tensors).items():
        assert got[at].is_cuda
        largest = wanted.abs().max().item()
        torch.testing.assert_close(
            got[at].cpu().to(wanted.dtype), wanted, rtol=1e-4, atol=1e-4 * largest, msg=lambda words, at=at: f"{at}: {words}"
        )


@each_case
def test_operations_one_by_one_are_the_same(name, monkeypatch):
    tensors = arguments(**CASES[name])
    expected = outcome(mamba_inner_fn, tensors, as_given)
    monkeypatch.setattr("statescan._inner.mamba.has_kernel", lambda op, tensor: False)
    for at, wanted in outcome(mamba_inner_fn, tensors, as_given).items():
        torch.testing.assert_close(wanted, expected[at], msg=lambda words, at=at: f"{at}: {words}")


@each_case
def test_gradients_of_some(name, only_as_one):
    """Those that are not wanted are not computed, and the others are the same."""
    tensors = arguments(**CASES[name])
    whole = outcome(mamba_inner_fn, tensors, as_given)
    for wanted in (tensors.keys() & {"B", "b_rms_weight", "C_proj_bias", "dt_rms_weight", "A"}) | {"xz"}:
        leaf = tensors[wanted].clone().requires_grad_()
        y = mamba_inner_fn(**as_given({**tensors, wanted: leaf}))
        weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64, device=y.device).view_as(y)
        assert torch.equal(torch.autograd.grad((y * weights).sum(), leaf)[0], whole[wanted]), wanted


@each_case
def test_16_bits(name, only_as_one):
    tensors = arguments(**CASES[name])

    def narrow(name, value):
        if not isinstance(value, torch.Tensor):
            return value
        wide = torch.complex64 if value.is_complex() else torch.float32
        weight = name in ("A", "D", "delta_bias") or value.is_complex()
        return value.to(wide if weight else torch.bfloat16)

    got = outcome(mamba_inner_fn, {name: narrow(name, value) for name, value in tensors.items()}, as_given)
    for at, wanted in outcome(composed, tensors).items():
        assert at == "y" or got[at].dtype == narrow(at, tensors[at]).dtype
        error = torch.linalg.norm(got[at].to(wanted.dtype) - wanted) / torch.linalg.norm(wanted)
        assert error < 0.1, (at, error)


@pytest.mark.sampled(6)
@each_case
def test_compiled(name):
    torch._dynamo.reset()
    tensors = arguments(**CASES[name])
    program = torch.compile(mamba_inner_fn, fullgraph=True, backend="aot_eager")
    expected = outcome(mamba_inner_fn, tensors, as_given)
    for at, got in outcome(program, tensors, as_given).items():
        torch.testing.assert_close(got, expected[at], msg=lambda words, at=at: f"{at}: {words}")


ORDERS = {
    "time last": lambda xz: xz.contiguous(),
    "channels last": lambda xz: xz.transpose(1, 2).contiguous().transpose(1, 2),
    "batch last": lambda xz: xz.permute(1, 2, 0).contiguous().permute(2, 0, 1),
    "sliced": lambda xz: xz.repeat_interleave(2, dim=2).transpose(1, 2).repeat(1, 1, 2)[:, ::2, : xz.shape[1]].transpose(1, 2),
}


@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_memory(order, only_as_one):
    """Parts of the input, and of the gradient by it, are where their channels are."""
    tensors = arguments(**CASES["norms"])
    expected = outcome(mamba_inner_fn, tensors)
    arrange = lambda tensors: {**tensors, "xz": ORDERS[order](tensors["xz"])}  # noqa: E731
    for at, got in outcome(mamba_inner_fn, tensors, arrange).items():
        torch.testing.assert_close(got, expected[at], msg=lambda words, at=at: f"{at}: {words}")


def test_what_is_no_input():
    tensors = arguments()
    lazily = torch.complex(tensors["xz"], tensors["xz"]).conj().imag
    torch.testing.assert_close(mamba_inner_fn(**{**tensors, "xz": lazily}), mamba_inner_fn(**{**tensors, "xz": -tensors["xz"]}))
    with pytest.raises(ValueError, match=r"`xz` must have shape \(batch, seqlen, channels\), got \[24, 6\]"):
        mamba_inner(torch.randn(24, 6), (None, None, torch.empty(11, 3), torch.empty(3, 3), None, torch.empty(3, 4), *[None] * 3))


def test_rows_that_are_not_those_of_the_maps():
    tensors = arguments(maps="B")
    tensors["x_proj_weight"] = torch.cat([tensors["x_proj_weight"]] * 2)
    with pytest.raises(ValueError, match="mamba_inner: `x_proj_weight` must have 7 rows for a rank of 3 .* got 14"):
        mamba_inner_fn(**tensors)
