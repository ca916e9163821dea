"""Steps of several tokens between slots, against steps of one token, one after another."""

import numpy
import pytest
import torch

import statescan
from statescan._operations import SLOTTED

SLOTS, ROWS = 13, 12
READ = [3, -4, 9]
BOUNDS = [0, 5, 5, 12]
# the slots after each token of sequences of four and of at most seven tokens, and after the last ones
EACH = {
    4: [[0, 1, -1, 2], [-2, 4, 5, -1], [6, 9, 7, 8]],
    7: [[0, 1, -1, 2, 4, -1, -1], [-1] * 7, [5, 6, -2, 9, -1, 8, 7]],
}
LAST = [1, 2, 9]

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"))]
KINDS = ["mamba", "mamba2", "ssd", "delta", "delta of channels", "convolution", "steps of a convolution", "s5"]
on_devices = pytest.mark.parametrize("device", DEVICES)
each_kind = pytest.mark.parametrize("kind", KINDS)
PARAMETERS = ("A", "D", "dt_bias", "weight", "bias", "A_log")


def indices_of(kind):
    return "conv_state_indices" if "convolution" in kind else "state_batch_indices"


def case_of(kind, device="cpu", dtype=torch.float32):
    """The function, its tensors by name, its options, and a pool."""
    torch.manual_seed(3)

    def real(*shape, kind=torch.float32):
        return torch.randn(shape).to(device, kind)

    heads, width, dstate = (4, 8, 32) if kind in ("mamba2", "ssd") else (1, 40, 16)
    x, dt = real(ROWS, heads, width, kind=dtype), real(ROWS, heads, width).sigmoid()
    A, D, bias = -real(heads, width, dstate).exp(), real(heads, width), real(heads, width)
    B, C = real(2, ROWS, 2, dstate, kind=dtype)
    pool = real(SLOTS, heads, width, dstate, kind=dtype)
    if kind == "mamba":
        tensors = {"x": x[:, 0], "dt": dt[:, 0], "A": A[0], "B": B[:, 0], "C": C[:, 0], "D": D[0], "z": x[:, 0] * 2}
        return statescan.selective_state_update, tensors | {"dt_bias": bias[0]}, {"dt_softplus": True}, pool[:, 0]
    if kind == "mamba2":
        return statescan.selective_state_update, {"x": x, "dt": dt, "A": A, "B": B, "C": C}, {}, pool
    if kind == "ssd":
        tensors = {"x": x, "dt": dt[..., 0], "A": A[:, 0, 0], "B": B, "C": C, "D": D[:, 0], "dt_bias": bias[:, 0], "z": x * 2}
        return statescan.ssd_update, tensors, {"dt_softplus": True}, pool
    if kind.startswith("delta"):
        q, k = real(2, ROWS, 2, 16, kind=dtype)
        g = -real(ROWS, 4, *([16] if kind == "delta of channels" else [])).exp()
        tensors = {"q": q, "k": k, "v": real(ROWS, 4, 24, kind=dtype), "g": g, "beta": real(ROWS, 4).sigmoid()}
        return statescan.gated_delta_rule_update, tensors, {"qk_l2norm": True}, real(SLOTS, 4, 16, 24, kind=dtype)
    if kind == "s5":
        tensors = {"u": real(ROWS, 6), "delta": real(ROWS, 8).sigmoid(), "A": -real(8).exp() + 1j, "B": real(8, 6) + 0j}
        return statescan.simplified_state_update, tensors | {"C": real(6, 8) + 0j}, {}, torch.complex(*real(2, SLOTS, 8))
    steps = [2] if kind == "steps of a convolution" else []
    tensors = {"x": real(ROWS, 20, *steps, kind=dtype), "weight": real(20, 4), "bias": real(20)}
    # more inputs than a filter remembers
    return statescan.causal_conv1d_update, tensors, {"activation": "silu"}, real(SLOTS, 20, 5, kind=dtype)


def run(case, state, at=slice(None), **slots):
    function, tensors, options, _ = case
    own = {
        name: tensor if name in PARAMETERS or (name in "BC" and tensor.is_complex()) else tensor[at]
        for name, tensor in tensors.items()
    }
    name = "conv_state" if "weight" in own else "state"
    return function(**{name: state}, **own, **options, **slots)


def one_by_one(case, written, bounds):
    """y and the pool by steps of one token; `written` has the slot after each, or the one after the last."""
    pool = case[-1]
    expected, ys = pool.clone(), []
    for sequence, (start, stop) in enumerate(zip(bounds, bounds[1:])):
        read = READ[sequence]
        states = pool.clone()
        states[0] = pool[read] if read >= 0 else 0
        slot = torch.tensor([0], device=pool.device)
        for token in range(start, stop):
            own = {"conv_state_indices" if "weight" in case[1] else "state_batch_indices": slot}
            ys.append(run(case, states, slice(token, token + 1), **own))
            to = written[sequence]
            to = to[token - start] if isinstance(to, list) else to if token + 1 == stop else -1
            if to >= 0:
                expected[to] = states[0]
        if start == stop and not isinstance(written[sequence], list):
            expected[written[sequence]] = states[0]
    return torch.cat(ys), expected


def slots_of(kind, written, bounds, device="cpu"):
    name = indices_of(kind)
    slots = {name: torch.tensor(READ, dtype=torch.int32, device=device), f"dst_{name}": torch.tensor(written, device=device)}
    return slots if bounds is None else slots | {"cu_seqlens": torch.tensor(bounds, device=device)}


@on_devices
@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_several_tokens_are_single_ones(kind, dtype, device):
    case = case_of(kind, device, dtype)
    for bounds in (None, BOUNDS):
        for written in (EACH[4 if bounds is None else 7], LAST):
            y, expected = one_by_one(case, written, bounds or [0, 4, 8, 12])
            pool, slots = case[-1].clone(), slots_of(kind, written, bounds, device)
            got = run(case, pool, **slots)
            assert torch.equal(got, y) and torch.equal(pool, expected)


@on_devices
@each_kind
def test_a_token_goes_from_slot_to_slot(kind, device):
    case, name = case_of(kind, device), indices_of(kind)
    pool, rows = case[-1].clone(), torch.arange(ROWS, device=device)
    expected = case[-1].clone()
    y = run(case, expected, **{name: rows})
    # slots are the same by default and by name; then from one to the next, as a ring cannot be: the last row has a free one
    for more in ({f"dst_{name}": rows}, {"cu_seqlens": torch.arange(ROWS + 1, device=device)}):
        again = pool.clone()
        assert torch.equal(run(case, again, **{name: rows}, **more), y) and torch.equal(again, expected)
    far = torch.full_like(rows, -1)
    far[0] = SLOTS - 1
    again = pool.clone()
    assert torch.equal(run(case, again, **{name: rows, f"dst_{name}": far}), y)
    assert torch.equal(again[:-1], pool[:-1]) and torch.equal(again[-1], expected[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@each_kind
def test_hostile_numbers_touch_nothing_on_a_gpu(kind):
    case, name = case_of(kind, "cuda"), indices_of(kind)
    wide = [[2**62, SLOTS, -(2**63), 2**33]] * 3
    for bounds in (None, [-5, 2**62, -(2**62), 2**40]):
        pool, slots = case[-1].clone(), slots_of(kind, wide, bounds, "cuda")
        slots[name] = torch.tensor([2**31 - 1, SLOTS, -(2**31)], dtype=torch.int32, device="cuda")
        run(case, pool, **slots)
        torch.cuda.synchronize()
        assert torch.equal(pool, case[-1])


# arrays of JAX have no strides: what `ssd_update` spreads over a head is made there, and sums are other ones
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "ssd"])
def test_numpy_and_jax(kind):
    jax = pytest.importorskip("jax")
    case, slots = case_of(kind), slots_of(kind, EACH[7], BOUNDS)
    pool = case[-1].clone()
    y = run(case, pool, **slots)
    cpu = jax.devices("cpu")[0]
    for array in (numpy.array, lambda numbers: jax.device_put(numbers, cpu)):
        tensors = {name: array(tensor.numpy()) for name, tensor in {**case[1], **slots}.items()}
        state = array(case[-1].numpy())
        got = case[0](**{"conv_state" if "weight" in tensors else "state": state}, **tensors, **case[2])
        got, after = (got, state) if array is numpy.array else got
        assert numpy.array_equal(got, y.numpy()) and numpy.array_equal(after, pool.numpy())


@pytest.mark.parametrize("kind", ["ssd", "delta", "convolution", "s5"])
def test_compiled_calls_change_the_pool(kind):
    case, slots = case_of(kind), slots_of(kind, EACH[4], None)
    expected, pool = case[-1].clone(), case[-1].clone()
    y = run(case, expected, **slots)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def call():
        return run(case, pool, **slots)

    assert torch.equal(call(), y) and torch.equal(pool, expected)


@pytest.mark.parametrize("op", SLOTTED, ids=lambda op: op.name)
def test_registered_as_pytorch_wants_it(op):
    kinds = {"selective_state_update": "mamba", "gated_delta_rule_update": "delta", "simplified_state_update": "s5"}
    kind = kinds.get(op.name.removesuffix("_slots"), "convolution")
    case, slots = case_of(kind), slots_of(kind, EACH[4], None)
    tensors = {**case[1], **slots}
    arguments = tuple(tensors.get(name.rstrip("?")) for name in op.tensors)
    torch.library.opcheck(getattr(torch.ops.statescan, op.name).default, (case[-1].clone(), *arguments))


def test_wrong_slots_are_refused():
    case, pool = case_of("ssd"), case_of("ssd")[-1]
    kept = pool.clone()

    def refused(match, read=READ, written=LAST, bounds=None, **more):
        slots = {"state_batch_indices": torch.tensor(read), "dst_state_batch_indices": torch.tensor(written)}
        bounds = {} if bounds is None else {"cu_seqlens": torch.tensor(bounds)}
        with pytest.raises(ValueError, match=match):
            run(case, pool, **slots, **bounds, **more)
        assert torch.equal(pool, kept)

    refused(r"`state_batch_indices`\[0\] must be less than the number of slots", read=[13, 1, 2])
    refused(r"`state_batch_indices`\[1\] must be a slot that no other sequence writes", read=[3, 1, 3])
    refused(r"`dst_state_batch_indices`\[2\] must be used by one row only", written=[4, -1, 4])
    refused("`dst_state_batch_indices` must have shape", written=[[1, 2, 3]] * 3)
    refused("`state_batch_indices` must be of a number of sequences that divides", read=[1] * 5, written=[-1] * 5)
    refused(r"`cu_seqlens`\[3\]", bounds=[0, 5, 5, 11])
    refused(r"`cu_seqlens`\[1\] must be at most as many tokens", written=EACH[4], bounds=[0, 5, 8, 12])
    x, state = torch.randn(2, 3), torch.zeros(3, 3, 3)
    with pytest.raises(ValueError, match="`cache_seqlens` excludes slots"):
        seen = torch.tensor([0, 0])
        slots = {"conv_state_indices": seen[:1], "dst_conv_state_indices": seen[:1]}
        statescan.causal_conv1d_update(x, state, torch.randn(3, 4), cache_seqlens=seen, **slots)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("tied", [True, False])
def test_large_batches_have_the_bits_of_single_rows_on_a_gpu(tied):
    """Where rows fill the device, threads have several channels, which changes no sum."""
    torch.manual_seed(4)
    rows, heads, width, dstate = 32, 80, 64, 128
    pool = torch.randn(rows + 3, heads, width, dstate, device="cuda").bfloat16()
    x, z = torch.randn(2, rows, heads, width, device="cuda").bfloat16()
    B, C = torch.randn(2, rows, 2, dstate, device="cuda")
    dt, bias = torch.rand(rows, heads, width, device="cuda"), torch.randn(heads, width, device="cuda")
    if tied:
        dt, bias = dt[..., :1].expand(dt.shape), bias[..., :1].expand(bias.shape)
    A, D = -torch.rand(heads, 1, 1, device="cuda").expand(heads, width, dstate), torch.randn(heads, width, device="cuda")
    slots = torch.randperm(rows + 3, device="cuda")[:rows]
    slots[5], slots[9] = -1, rows + 3
    options = {"dt_bias": bias, "dt_softplus": True}
    expected, ys = pool.clone(), []
    for row in range(rows):
        at = slice(row, row + 1)
        own = (x[at], dt[at], A, B[at], C[at], D)
        ys.append(statescan.selective_state_update(expected, *own, z=z[at], state_batch_indices=slots[at], **options))
    for more in ({}, {"dst_state_batch_indices": torch.where(slots < rows + 3, slots, -1)}):
        after = pool.clone()
        y = statescan.selective_state_update(after, x, dt, A, B, C, D, z=z, state_batch_indices=slots, **options, **more)
        kept = (slots >= 0) & (slots < rows + 3) if more else slice(None)
        assert torch.equal(y[kept], torch.cat(ys)[kept]) and torch.equal(after, expected)
