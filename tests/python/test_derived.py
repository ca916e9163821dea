"""Operations that are built from others against plain loops in float64, with every gradient, and on a GPU where there is one."""

import pytest
import torch
from torch.nn.functional import softplus

import statescan
from agreement import agree
from cases import Random
from statescan import derived

BATCH, DIM, SEQLEN = 2, 6, 83
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"))]


def loop(a, b, initial_state):
    state, steps = initial_state, []
    for t in range(b.shape[2]):
        state = a[..., t] * state + b[..., t]
        steps.append(state)
    return torch.stack(steps, -1), state


def rg_lru(x, recurrent_gate, input_gate, param, initial_state, reset):
    a = torch.exp(-8 * recurrent_gate * softplus(param)[:, None])
    a, factor = a * ~reset[:, None], torch.where(reset[:, None], 1, (1 - a * a).sqrt())
    return loop(a, factor * input_gate * x, initial_state)


def lru(x, nu_log, theta_log, gamma_log, initial_state, reset):
    a = torch.exp(-nu_log.exp() + 1j * theta_log.exp())[:, None] * ~reset[:, None]
    return loop(a, gamma_log.exp()[:, None] * x, initial_state)


def s7(x, A, initial_state, reset):
    return loop((1 - 1 / (A * A + 0.5)) * ~reset[:, None], x, initial_state)


def rules(is_complex=False):
    """The arguments of each of them; of x, A and the state complex ones."""
    r = Random(30)
    make = r.complex if is_complex else r.real
    reset = torch.zeros(BATCH, SEQLEN, dtype=torch.bool)
    reset[0, [0, 40, 41]] = reset[1, 70] = True
    x, gates, channels = (
        (BATCH, DIM, SEQLEN),
        [r.real(BATCH, DIM, SEQLEN).sigmoid() for _ in range(2)],
        [r.real(DIM) for _ in range(3)],
    )
    given = {
        rg_lru: {
            "x": make(*x),
            "recurrent_gate": gates[0],
            "input_gate": gates[1],
            "param": channels[0],
            "initial_state": make(BATCH, DIM),
        },
        lru: {"x": make(*x), **dict(zip(("nu_log", "theta_log", "gamma_log"), channels)), "initial_state": r.complex(BATCH, DIM)},
        s7: {"x": make(*x), "A": make(*x), "initial_state": make(BATCH, DIM)},
    }
    return {rule: {**tensors, "reset": reset} for rule, tensors in given.items()}


each_rule = pytest.mark.parametrize("rule", [rg_lru, lru, s7])


@pytest.mark.parametrize("is_complex", [False, True])
@each_rule
def test_rules(rule, is_complex):
    agree(getattr(derived, rule.__name__), rule, rules(is_complex)[rule])


@each_rule
def test_rules_without_what_is_optional(rule):
    tensors = rules()[rule]
    x, reset = tensors["x"], torch.zeros_like(tensors["reset"])
    less = {name: t for name, t in tensors.items() if name not in ("initial_state", "reset", "gamma_log")}
    zeros = {"initial_state": x.new_zeros(BATCH, DIM), "reset": reset}
    if rule is lru:
        zeros["gamma_log"] = x.new_zeros(DIM)
    agree(getattr(derived, rule.__name__), lambda **given: rule(**given, **zeros), less)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@each_rule
def test_types_and_devices(rule, dtype, device):
    """Parameters and states stay in f32; the results of real rules have x's type."""
    exact = rules()[rule]
    kinds = {torch.float64: dtype, torch.complex128: torch.complex64}
    wide = ("param", "nu_log", "theta_log", "gamma_log", "initial_state")

    def converted(name, t):
        kind = torch.float32 if name in wide and not t.is_complex() else kinds.get(t.dtype, t.dtype)
        return t.to(device, kind)

    given = {name: converted(name, t) for name, t in exact.items()}
    exact = {name: t.cpu().to(exact[name].dtype).detach() for name, t in given.items()}
    names = [name for name in given if name != "reset"]
    leaves = {name: t.requires_grad_(name in names) for name, t in given.items()}
    exact_leaves = {name: t.requires_grad_(name in names) for name, t in exact.items()}
    h, state = getattr(derived, rule.__name__)(**leaves)
    expected = rule(**exact_leaves)
    assert h.dtype == (torch.complex64 if rule is lru else dtype) and h.device.type == device

    def gradients(results, leaves):
        return torch.autograd.grad(sum(torch.view_as_real(t).sum() if t.is_complex() else t.sum() for t in results), leaves)

    pairs = zip(
        (h, state, *gradients((h, state), [leaves[n] for n in names])),
        (*expected, *gradients(expected, [exact_leaves[n] for n in names])),
    )
    for got, wanted in pairs:
        bound = (0.02 if dtype == torch.bfloat16 else 1e-5) * wanted.abs().max()
        assert (got.detach().cpu().to(wanted.dtype) - wanted).abs().max() <= bound


def test_a_decay_of_one_has_a_bounded_gradient():
    """A gate that is shut: a is 1, the input's factor 0, and the derivative of its root 1000, not infinite."""
    r, x = torch.zeros(1, 1, 3, requires_grad=True), torch.ones(1, 1, 3)
    h, _ = derived.rg_lru(x, r, x, torch.zeros(1))
    assert torch.equal(h, torch.zeros_like(h))
    (gradient,) = torch.autograd.grad(h.sum(), r)
    # 1000 du, and du = 16 log 2 dr; a step has 3, 2 and 1 states behind it
    expected = 1000.0 * 16 * torch.log(torch.tensor(2.0)) * torch.tensor([[[3.0, 2.0, 1.0]]])
    torch.testing.assert_close(gradient, expected)


@each_rule
def test_steps_are_the_scan(rule):
    tensors = rules()[rule]
    function = getattr(derived, rule.__name__)
    whole, last = function(**tensors)
    state, steps = tensors["initial_state"], []
    for t in range(SEQLEN):
        of_step = {name: v[..., t : t + 1] if name == "reset" or v.dim() == 3 else v for name, v in tensors.items()}
        h, state = function(**{**of_step, "initial_state": state})
        steps.append(h)
    assert torch.equal(torch.cat(steps, -1), whole) and torch.equal(state, last)


@each_rule
def test_compiled(rule):
    tensors = rules()[rule]
    function = getattr(derived, rule.__name__)
    for got, expected in zip(torch.compile(function, fullgraph=True, backend="aot_eager")(**tensors), function(**tensors)):
        torch.testing.assert_close(got, expected)


def test_wrong_shapes():
    tensors = rules()[rg_lru]
    for name, wrong, words in (
        ("param", tensors["param"][:1], r"`param` must be of \(dim,\), \(6,\), got \(1,\)"),
        ("input_gate", tensors["x"][:1], "`input_gate` must have the shape of `x`"),
        ("reset", tensors["reset"][:1], r"`reset` must be of \(batch, seqlen\), \(2, 83\), got \(1, 83\)"),
        ("x", tensors["x"][0], r"`x` must be of \(batch, dim, seqlen\)"),
    ):
        with pytest.raises(ValueError, match=f"rg_lru: {words}"):
            derived.rg_lru(**{**tensors, name: wrong})


class TestUpdate:
    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("is_complex", [False, True])
    def test_of_tensors(self, is_complex, device):
        r = Random(31)
        kind = torch.complex64 if is_complex else torch.float32
        a, b, state = (
            t.to(device, kind) for t in ((r.complex if is_complex else r.real)(2, 3, 9), r.real(2, 3, 9), r.real(2, 3))
        )
        expected, last = statescan.linear_scan(a, b, state)
        got = [statescan.linear_scan_update(state, a[..., t], b[..., t]) for t in range(9)]
        torch.testing.assert_close(torch.stack(got, -1), expected)
        torch.testing.assert_close(state, last)

    def test_types(self):
        """The state keeps its type, and h has that of a and b."""
        state = torch.ones(3)
        h = statescan.linear_scan_update(state, torch.ones(3).bfloat16(), torch.full((3,), 1 / 256).bfloat16())
        assert h.dtype == torch.bfloat16 and torch.equal(state, torch.full((3,), 1 + 1 / 256))

    def test_of_arrays(self):
        numpy = pytest.importorskip("numpy")
        state, a = numpy.ones((2, 3), numpy.float32), numpy.full((2, 3), 0.5, numpy.float32)
        h = statescan.linear_scan_update(state, a, a)
        assert h.dtype == numpy.float32 and (h == 1).all() and (state == 1).all() and not numpy.shares_memory(h, state)
        jax = pytest.importorskip("jax.numpy")
        before = jax.ones((2, 3))
        h, after = statescan.linear_scan_update(before, jax.full((2, 3), 0.5), jax.full((2, 3), 1.0))
        assert (h == 1.5).all() and (after == 1.5).all() and (before == 1).all()

    def test_what_is_refused(self):
        state = torch.ones(2, 3)
        with pytest.raises(ValueError, match=r"linear_scan_update: `a` must have the shape of `state`, \(2, 3\), got \(1, 3\)"):
            statescan.linear_scan_update(state, state[:1], state)
        with pytest.raises(TypeError, match="linear_scan_update: `state` must be complex, as `b` is"):
            statescan.linear_scan_update(state, state, state.to(torch.complex64))
        with pytest.raises(TypeError, match="linear_scan_update: `b` must be of the same kind as `state`, got ndarray"):
            statescan.linear_scan_update(state, state, state.numpy())
        assert torch.equal(state, torch.ones(2, 3))
