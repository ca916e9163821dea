"""Operations whose states lie in a pool, against the same calls beside states that were gathered."""

import numpy
import pytest
import torch

import statescan
from cases import CASES
from statescan import StatePool
from statescan._operations import POOLED


def op_of(case):
    return case.op.removesuffix("_fn")


# cases with a pool, without states of their own and with a state for each row or each packed sequence
NAMES = [
    name
    for name, case in CASES.items()
    if f"{op_of(case)}_pooled" in {op.name for op in POOLED} and "seq_idx" not in case.tensors and "context" not in case.options
]
each_case = pytest.mark.parametrize("name", NAMES)
ONE_EACH = [next(name for name in NAMES if op_of(CASES[name]) == op.name.removesuffix("_pooled")) for op in POOLED]
one_each = pytest.mark.parametrize("name", ONE_EACH)

SLOTS = 7
READ, WRITE = [2, -1, 2, 4], [1, 0, -1, 4]


def initial_name(case):
    return "initial_states" if case.op == "causal_conv1d" else "initial_state"


def keeping(case):
    """The flag with which a function returns its state."""
    flag = {"causal_conv1d": "return_final_states", "simplified_scan": "return_last_state", "s5_inner": "return_last_state"}
    return {flag[op_of(case)]: True} if op_of(case) in flag else {}


def gathered(case, pool, device="cpu"):
    """y and the pool as they should be."""
    case = case.to(torch.float32, device)
    flags = keeping(case)
    _, state = case(**{initial_name(case): None}, **flags)
    rows = state.shape[0]
    pool = torch.randn((SLOTS, *state.shape[1:]), dtype=state.dtype, device=device) if pool is None else pool
    before = torch.stack([pool[slot] if slot >= 0 else torch.zeros_like(pool[0]) for slot in READ[:rows]])
    y, after = case(**{initial_name(case): before}, **flags)
    expected = pool.clone()
    for row, slot in enumerate(WRITE[:rows]):
        if slot >= 0:
            expected[slot] = after[row]
    return case, pool, y, expected, flags


def slots(rows, kind=torch.int32):
    return torch.tensor(READ[:rows], dtype=kind), torch.tensor(WRITE[:rows], dtype=kind)


def rows_of(case):
    bounds = case.tensors.get("cu_seqlens")
    return len(bounds) - 1 if bounds is not None else next(iter(case.tensors.values())).shape[0]


@each_case
def test_a_pool_holds_what_gathered_states_would_be(name):
    case, pool, y, expected, flags = gathered(CASES[name], None)
    read, write = slots(rows_of(case), torch.int64)
    got, states = case(**{initial_name(case): StatePool(pool, read, write)}, **flags)
    assert states is pool
    assert torch.equal(got, y) and torch.equal(pool, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@each_case
def test_a_pool_on_a_gpu(name):
    case, pool, y, expected, flags = gathered(CASES[name], None, "cuda")
    kept = pool.clone()
    # numbers that are no slots count as negative
    read, write = (slot.cuda() for slot in slots(rows_of(case)))
    far = torch.where(write < 0, 2**31 - 1, write)
    for to in (write, far):
        pool.copy_(kept)
        got, _ = case(**{initial_name(case): StatePool(pool, read, to)}, **flags)
        assert torch.equal(got, y) and torch.equal(pool, expected)


@one_each
def test_numpy_and_jax(name):
    jax = pytest.importorskip("jax")
    case, pool, y, expected, flags = gathered(CASES[name], None)
    read, write = slots(rows_of(case))
    cpu = jax.devices("cpu")[0]
    for array in (numpy.array, lambda numbers: jax.device_put(numbers, cpu)):
        tensors = {name: array(tensor.numpy()) for name, tensor in case.tensors.items() if name != initial_name(case)}
        given = StatePool(array(pool.numpy()), array(read.numpy()), array(write.numpy()))
        function = getattr(statescan, case.op)
        got, states = function(**tensors, **{initial_name(case): given}, **{**case.options, **flags})
        assert numpy.array_equal(got, y.numpy()) and numpy.array_equal(states, expected.numpy())
        # a pool that cannot change is changed in a copy
        assert numpy.array_equal(given.states, (expected if array is numpy.array else pool).numpy())


@one_each
def test_compiled_calls_change_the_pool(name):
    case, pool, y, expected, flags = gathered(CASES[name], None)
    read, write = slots(rows_of(case))
    # PyTorch's inductor does not compile what changes a complex tensor
    backend = "aot_eager" if pool.is_complex() else "inductor"

    def run():
        return case(**{initial_name(case): StatePool(pool, read, write)}, **flags)[0]

    function = torch.compile(run, fullgraph=True, backend=backend)
    assert torch.equal(function(), y) and torch.equal(pool, expected)


@one_each
def test_registered_as_pytorch_wants_it(name):
    case, pool, _, _, _ = gathered(CASES[name], None)
    op = next(op for op in POOLED if op.name == f"{op_of(case)}_pooled")
    read, write = slots(rows_of(case))
    tensors = {**case.tensors, initial_name(case): None, "read_indices": read, "write_indices": write}
    arguments = tuple(tensors.get(name.rstrip("?")) for name in op.tensors)
    torch.library.opcheck(getattr(torch.ops.statescan, op.name).default, (pool, *arguments))


def test_slots_are_those_that_are_read():
    case, pool, *_ = gathered(CASES[ONE_EACH[1]], None)
    rows = rows_of(case)
    same = torch.arange(rows)
    expected = pool.clone()
    case(**{initial_name(case): StatePool(expected, same, same)})
    case(**{initial_name(case): StatePool(pool, same)})
    assert torch.equal(pool, expected)


def test_a_sequence_goes_on_from_its_slot():
    x, dt, A = torch.randn(1, 40, 4, 8), torch.rand(1, 40, 4), -torch.rand(4)
    B, C = torch.randn(2, 1, 40, 16)
    whole, _ = statescan.ssd(x, dt, A, B, C)
    pool, slot = torch.zeros(3, 4, 8, 16), torch.tensor([1])
    parts = [
        statescan.ssd(x[:, at], dt[:, at], A, B[:, at], C[:, at], initial_state=StatePool(pool, slot))[0]
        for at in (slice(0, 17), slice(17, 18), slice(18, 40))
    ]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=1e-5)


def test_a_sequence_in_pieces_leaves_states_at_its_cuts():
    x, dt, A = torch.randn(1, 40, 4, 8), torch.rand(1, 40, 4), -torch.rand(4)
    B, C = torch.randn(2, 1, 40, 16)
    pool, bounds = torch.zeros(4, 4, 8, 16), torch.tensor([0, 17, 18, 40])
    slots = StatePool(pool, torch.tensor([-1]), torch.tensor([[2, -1, 0]]))
    y, _ = statescan.ssd(x, dt, A, B, C, cu_seqlens=bounds, initial_state=slots)
    whole, last = statescan.ssd(x, dt, A, B, C)
    _, cut = statescan.ssd(x[:, :17], dt[:, :17], A, B[:, :17], C[:, :17])
    torch.testing.assert_close(y, whole, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(pool, torch.stack([last[0], 0 * last[0], cut[0], 0 * last[0]]), atol=1e-4, rtol=1e-4)


def test_what_is_refused():
    x, dt, A = torch.randn(2, 9, 4, 8), torch.rand(2, 9, 4), -torch.rand(4)
    B, C = torch.randn(2, 2, 9, 16)
    pool = torch.zeros(3, 4, 8, 16)

    def refused(error, match, pool=pool, read=(0, 1), write=(0, 1), **more):
        kept = pool.clone()
        with pytest.raises(error, match=match):
            statescan.ssd(x, dt, A, B, C, initial_state=StatePool(pool, torch.tensor(read), torch.tensor(write)), **more)
        assert torch.equal(pool, kept)

    refused(ValueError, r"`read_indices`\[1\] must be less than the number of slots, 3, got 3", read=(0, 3))
    refused(ValueError, r"`write_indices`\[1\] must be used by one row only; also at position 0, got 2", write=(2, 2))
    refused(ValueError, "a slot that no other sequence writes", read=(1, -1))
    refused(ValueError, "`read_indices` must have shape", read=(0, 1, 2))
    refused(ValueError, "`state_pool` must have shape", pool=torch.zeros(3, 4, 8, 15))
    refused(ValueError, "`cu_seqlens` is needed where `write_indices` has two axes", write=((0,), (1,)))
    refused(ValueError, "excludes `state_pool`", seq_idx=torch.zeros(2, 9, dtype=torch.int32))
    x.requires_grad_()
    y, _ = statescan.ssd(x, dt, A, B, C, initial_state=StatePool(pool, torch.tensor([0, 1])))
    with pytest.raises(RuntimeError, match="ssd_pooled has no gradient"):
        y.sum().backward()
    with pytest.raises(ValueError, match=r"`b` must have shape \(rows, .., seqlen\) beside `state_pool`, got shape \(9,\)"):
        statescan.linear_scan(x[0, :, 0, 0], x[0, :, 0, 0].detach(), StatePool(torch.zeros(3), torch.tensor([0])))
