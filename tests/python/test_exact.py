"""`exact`: bits do not depend on how a text is cut, on the texts beside it, or on whether it was read or decoded."""

import random

import pytest
import torch

import statescan
from statescan import StatePool

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"))]
HEADS, WIDTH, DSTATE, DIM = 3, 16, 32, 21


class Case:
    """An operation and its step on tensors of (batch, steps, ..), by name; those that have no such axes are parameters."""

    def __init__(self, scan, step, tokens, parameters, options, own, axis=1):
        self.scan, self.step, self.options, self.axis = scan, step, options, axis
        self.tokens, self.parameters, self.own = tokens, parameters, own

    def run(self, at, initial, rows=slice(None), **more):
        """A call for steps `at` of some rows."""
        tokens = {name: tensor[rows, at] for name, tensor in self.tokens.items()}
        if self.axis != 1:
            tokens = {name: tensor.swapaxes(1, 2) for name, tensor in tokens.items()}
        name, flag = {
            statescan.causal_conv1d: ("initial_states", {"return_final_states": True}),
            statescan.simplified_scan: ("initial_state", {"return_last_state": True}),
            statescan.s5_inner: ("initial_state", {"return_last_state": True}),
        }.get(self.scan, ("initial_state", {}))
        y, state = self.scan(**tokens, **self.parameters, **self.options, **flag, **{name: initial}, **{"exact": True, **more})
        return y if self.axis == 1 else y.swapaxes(1, 2), state

    def token(self, at, state, rows=slice(None)):
        tokens = {name: tensor[rows, at] for name, tensor in self.tokens.items()}
        name = "conv_state" if self.scan is statescan.causal_conv1d else "state"
        return self.step(**{name: state}, **tokens, **self.parameters, **self.options)


def case_of(kind, batch, steps, dtype, device):
    def real(*shape, kind=torch.float32):
        return torch.randn(shape).to(device, kind)

    if kind == "mamba":
        x, z = real(2, batch, steps, DIM, kind=dtype)
        B, C = real(2, batch, steps, DSTATE, kind=dtype)
        tokens = {"x": x, "z": z, "dt": real(batch, steps, DIM, kind=dtype), "B": B, "C": C}
        own = {"A": -real(DIM, DSTATE).exp(), "D": real(DIM), "dt_bias": real(DIM)}
        return Case(
            statescan.selective_scan, statescan.selective_state_update, tokens, own, {"dt_softplus": True}, (DIM, DSTATE), 2
        )
    if kind == "mamba2":
        x, z = real(2, batch, steps, HEADS, WIDTH, kind=dtype)
        B, C = real(2, batch, steps, 1, DSTATE, kind=dtype)
        tokens = {"x": x, "z": z, "dt": real(batch, steps, HEADS, kind=dtype), "B": B, "C": C}
        own = {"A": -real(HEADS).exp(), "D": real(HEADS), "dt_bias": real(HEADS)}
        return Case(statescan.ssd, statescan.ssd_update, tokens, own, {"dt_softplus": True}, (HEADS, WIDTH, DSTATE))
    if kind == "delta":
        q, k = real(2, batch, steps, HEADS, DSTATE, kind=dtype)
        v, g = real(batch, steps, 2 * HEADS, WIDTH, kind=dtype), -real(batch, steps, 2 * HEADS).exp()
        tokens = {"q": q, "k": k, "v": v, "g": g, "beta": real(batch, steps, 2 * HEADS).sigmoid()}
        rule = statescan.gated_delta_rule, statescan.gated_delta_rule_update
        return Case(*rule, tokens, {}, {"qk_l2norm": True}, (2 * HEADS, DSTATE, WIDTH))
    if kind == "linear scan":
        tokens = {"a": real(batch, steps, DIM).sigmoid().to(dtype), "b": real(batch, steps, DIM, kind=dtype)}
        return Case(statescan.linear_scan, statescan.linear_scan_update, tokens, {}, {}, (DIM,), 2)
    if kind == "convolution":
        own, tokens = {"weight": real(DIM, 4), "bias": real(DIM)}, {"x": real(batch, steps, DIM, kind=dtype)}
        convolution = statescan.causal_conv1d, statescan.causal_conv1d_update
        return Case(*convolution, tokens, own, {"activation": "silu"}, (DIM, 3), 2)
    own = {"A": torch.complex(-real(DSTATE).exp(), real(DSTATE))}
    own |= {"B": torch.complex(*real(2, DSTATE, DIM)), "C": torch.complex(*real(2, DIM, DSTATE))}
    scan = statescan.simplified_scan
    if kind == "s5":
        scan, own = statescan.s5_inner, {**own, "D": real(DIM)}
    tokens = {"u": real(batch, steps, DIM), "delta": real(batch, steps, DSTATE).sigmoid()}
    return Case(scan, statescan.simplified_state_update, tokens, own, {}, (DSTATE,), 2)


BY_STEPS = ["mamba", "mamba2", "delta", "convolution", "simplified scan", "s5"]
KINDS = [*BY_STEPS, "linear scan"]
each_kind = pytest.mark.parametrize("kind", KINDS)
by_steps = pytest.mark.parametrize("kind", BY_STEPS)
on_devices = pytest.mark.parametrize("device", DEVICES)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def drawn(kind, dtype, device, batch=4, steps=40):
    torch.manual_seed(5)
    return case_of(kind, batch, steps, dtype, device)


@on_devices
@each_kind
@each_dtype
def test_reading_and_decoding_have_the_same_bits(kind, dtype, device):
    draw, case = random.Random(7), drawn(kind, dtype, device)
    y, last = case.run(slice(0, 40), None)
    for row in range(4):
        # each text alone: some of it in pieces, then token by token, in company that changes
        cuts = sorted(draw.sample(range(1, 30), 3))
        parts, state = [], None
        for start, end in zip([0, *cuts], cuts):
            part, state = case.run(slice(start, end), state, slice(row, row + 1))
            parts.append(part)
        state = state.clone()
        for at in range(cuts[-1], 40):
            parts.append(case.token(at, state, slice(row, row + 1))[:, None])
        assert torch.equal(torch.cat(parts, 1), y[row : row + 1]) and torch.equal(state, last[row : row + 1])
    states = torch.zeros_like(last)
    for at in range(40):
        assert torch.equal(case.token(at, states), y[:, at])
    assert torch.equal(states, last)


@on_devices
@by_steps
def test_packed_texts_from_a_pool(kind, device):
    draw, case = random.Random(3), drawn(kind, torch.bfloat16, device, batch=1, steps=60)
    pool_type = (
        torch.zeros(1).to(torch.bfloat16).dtype if kind in ("mamba", "mamba2", "delta", "convolution") else torch.complex64
    )
    for _ in range(3):
        bounds = [0, *sorted(draw.choices(range(61), k=3)), 60]
        before = torch.randn(9, *case.own, device=device).to(pool_type)
        read, write = [3, -1, 3, 8], [0, 1, -1, 8]
        places = [torch.tensor(numbers, device=device) for numbers in (read, write)]
        pool, expected = before.clone(), before.clone()
        y, after = case.run(slice(0, 60), StatePool(pool, *places), cu_seqlens=torch.tensor(bounds, device=device))
        assert after is pool
        for number, (start, end) in enumerate(zip(bounds, bounds[1:])):
            state = before[read[number]][None].clone() if read[number] >= 0 else torch.zeros_like(before[:1])
            for at in range(start, end):
                assert torch.equal(case.token(at, state)[0], y[0, at])
            if write[number] >= 0:
                expected[write[number]] = state[0]
        assert torch.equal(pool, expected)


@on_devices
@each_kind
def test_results_and_gradients_are_those_of_the_scan(kind, device):
    case = drawn(kind, torch.float32, device)
    tensors = {**case.tokens, **case.parameters}
    for tensor in tensors.values():
        tensor.requires_grad_()
    plain, exact = (case.run(slice(0, 40), None, exact=exact) for exact in (False, True))
    cotangents = [torch.randn_like(result) for result in plain]
    found = [torch.autograd.grad(results, list(tensors.values()), cotangents) for results in (plain, exact)]
    for one, other in zip((*plain, *found[0]), (*exact, *found[1])):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    # a gradient of the linear scan uses the states that were computed
    assert kind == "linear scan" or all(torch.equal(one, other) for one, other in zip(*found))


@by_steps
def test_what_steps_have_not_is_refused(kind):
    case = drawn(kind, torch.float32, "cpu")
    numbers = torch.zeros(4, 40, dtype=torch.int32)
    for name, value in (("reverse", True), ("seq_idx", numbers), ("out", torch.zeros(1)), ("context", object())):
        with pytest.raises(ValueError, match=f"`exact` excludes `{name}`"):
            case.run(slice(0, 40), None, **{name: value})
    pieces = StatePool(torch.zeros(3, *case.own), torch.zeros(1, dtype=torch.int32), torch.zeros(1, 2, dtype=torch.int32))
    with pytest.raises(ValueError, match="excludes states at positions"):
        case.run(slice(0, 40), pieces)


def test_constant_maps_are_refused():
    case = drawn("mamba", torch.float32, "cpu", batch=1, steps=DIM)
    x, A = case.tokens["x"].movedim(1, -1), case.parameters["A"]
    with pytest.raises(ValueError, match=r"`exact` takes `B` of each step, got shape \(21, 32\)"):
        statescan.selective_scan(x, x, A, A, A, exact=True)


@on_devices
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("steps", [9, 2051])
def test_linear_scans_of_any_rows(dtype, steps, channels_last, device):
    """Rows and steps on every way through the kernels, between slots, from either end."""
    torch.manual_seed(2)
    real = torch.complex64 if dtype.is_complex else torch.float32
    a = torch.rand(3, 70, steps, device=device).to(torch.bfloat16)
    b, before = torch.randn(3, 70, steps, device=device, dtype=dtype), torch.randn(5, 70, device=device, dtype=real)
    if channels_last:
        a, b = (tensor.mT.contiguous().mT for tensor in (a, b))
    read, write = (torch.tensor(slots, device=device) for slots in ([4, -1, 0], [1, 2, -1]))
    state = torch.stack([before[4], torch.zeros_like(before[0]), before[0]])
    for reverse in (False, True):
        pool = before.clone()
        h, _ = statescan.linear_scan(a, b, StatePool(pool, read, write), reverse=reverse, exact=True)
        parts, left = [], state
        for part in (slice(0, 5), slice(5, 6), slice(6, steps)):
            part = slice(steps - part.stop, steps - part.start) if reverse else part
            found, left = statescan.linear_scan(a[..., part], b[..., part], left, reverse=reverse, exact=True)
            parts.append(found)
        assert torch.equal(torch.cat(parts[:: -1 if reverse else 1], -1), h)
        assert torch.equal(pool, torch.stack([before[0], left[0], left[1], *before[3:]]))
    with pytest.raises(ValueError, match="linear_scan: `exact` takes a pool of float32, .* got torch.bfloat16"):
        statescan.linear_scan(a.real, a.real, StatePool(pool.real.bfloat16(), read, write), exact=True)
    with pytest.raises(ValueError, match="linear_scan: `exact` excludes `context`"):
        statescan.linear_scan(a, b, exact=True, context=object())


def arrays_of(case, convert):
    """The case of arrays of another package."""
    tokens, parameters = ({name: convert(t) for name, t in tensors.items()} for tensors in (case.tokens, case.parameters))
    return Case(case.scan, case.step, tokens, parameters, case.options, case.own, case.axis)


@each_kind
@pytest.mark.parametrize("package, device", [("numpy", "cpu"), ("cupy", "cuda")])
def test_arrays_have_the_same_bits(kind, package, device):
    arrays = pytest.importorskip(package)
    case = drawn(kind, torch.float32, device, batch=2, steps=9)
    expected = case.run(slice(0, 9), None)
    case = arrays_of(case, arrays.asarray)
    y, last = case.run(slice(0, 9), None)
    assert arrays.array_equal(y, arrays.asarray(expected[0])) and arrays.array_equal(last, arrays.asarray(expected[1]))
    part, state = case.run(slice(0, 6), None)
    assert arrays.array_equal(part, y[:, :6])
    for at in range(6, 9):
        assert arrays.array_equal(case.token(at, state), y[:, at])
    assert arrays.array_equal(state, last)
    pool = arrays.zeros((3, *case.own), last.dtype)
    places = StatePool(pool, arrays.array([-1, -1]), arrays.array([2, 0]))
    assert arrays.array_equal(case.run(slice(0, 9), places)[0], y) and arrays.array_equal(pool[[2, 0]], last)


@each_kind
def test_jax_has_the_same_bits_under_its_transforms(kind):
    jax = pytest.importorskip("jax")
    case = arrays_of(drawn(kind, torch.float32, "cpu", batch=2, steps=9), lambda tensor: jax.numpy.asarray(tensor.numpy()))
    own = {**case.tokens, **case.parameters}

    def run(own, at=slice(0, 9), initial=None, **more):
        tokens = {name: own[name] for name in case.tokens}
        inner = Case(case.scan, case.step, tokens, {n: own[n] for n in case.parameters}, case.options, case.own, case.axis)
        return inner.run(at, initial, **more)

    def equal(one, other):
        return all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), one, other)))

    y, last = run(own)
    assert equal(jax.jit(run)(own), (y, last))
    state = run(own, slice(0, 6))[1]
    for at in range(6, 9):
        found, state = case.token(at, state)
        assert equal(found, y[:, at])
    assert equal(state, last)
    pool = StatePool(jax.numpy.zeros((3, *case.own), last.dtype), jax.numpy.array([-1, -1]), jax.numpy.array([2, 0]))
    found, states = run(own, initial=pool)
    assert equal((found, states[jax.numpy.array([2, 0])]), (y, last))

    def loss(own, **more):
        y, last = run(own, **more)
        return abs(y).sum() + abs(last).sum()

    gradients = jax.jit(jax.grad(loss))(own)
    for name, expected in jax.grad(lambda own: loss(own, exact=False))(own).items():
        assert jax.numpy.allclose(gradients[name], expected, rtol=1e-4, atol=1e-4), name
    mapped = jax.vmap(lambda own: run(own), in_axes=({name: None if name in case.parameters else 0 for name in own},))
    split = {name: value if name in case.parameters else value[:, None] for name, value in own.items()}
    assert equal(mapped(split), (y[:, None], last[:, None]))


@each_kind
def test_compiled_calls_have_the_same_bits(kind):
    case = drawn(kind, torch.float32, "cpu", batch=2, steps=9)
    function = torch.compile(lambda: case.run(slice(0, 9), None), backend="aot_eager", fullgraph=True)
    assert all(torch.equal(one, other) for one, other in zip(function(), case.run(slice(0, 9), None)))
