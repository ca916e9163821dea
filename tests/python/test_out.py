"""Results that are written where the caller wants them, against those that are made."""

import numpy
import pytest
import torch

import statescan
import test_slots
from cases import CASES, Case, Random
from statescan._operations import BY_NAME

ALL = {name: case for name, case in CASES.items() if "context" not in case.options}
ROWS = Random(9).real(2, 5, 8)
ALL["norm"] = Case("norm", {"x": ROWS})
ALL["norm of a sum"] = Case("norm", {"x": ROWS, "residual": ROWS.float().double() + 1}, {"kind": "layer"})
each_case = pytest.mark.parametrize("name", ALL)
DEVICES = test_slots.DEVICES
SOME = {case.op: name for name, case in ALL.items()}
one_each = pytest.mark.parametrize("name", SOME.values())


def returning(case):
    """The case with all results."""
    flag = {"causal_conv1d": "return_final_states", "simplified_scan_fn": "return_last_state", "s5_inner_fn": "return_last_state"}
    return Case(case.op, case.tensors, case.options | ({flag[case.op]: True} if case.op in flag else {}))


def room(tensor):
    """As much, with strides that no call gives a result, and full of what is no result."""
    wide = tensor.new_full((*tensor.shape, 2), 7)
    return wide.transpose(0, -1).contiguous().transpose(0, -1)[..., 0]


@pytest.mark.parametrize("device", DEVICES)
@each_case
def test_results_are_those_that_are_made(name, device):
    case = returning(ALL[name]).to(torch.float32, device)
    wanted = case()
    for own in ((True, True), (True, False), (False, True)):
        out = tuple(room(result) if mine else None for result, mine in zip(wanted, own))
        got = case(out=out[0] if len(wanted) == 1 else out)
        for result, expected, given in zip(got, wanted, out):
            assert torch.equal(result, expected) and (given is None or result is given)
    y = room(wanted[0])
    assert case(out=y)[0] is y and torch.equal(y, wanted[0])


def test_room_of_another_type():
    case = CASES["ssd"].to(torch.float32)
    (wanted, _), y = case(), torch.empty(2, 83, 4, 3, dtype=torch.bfloat16)
    assert torch.equal(case(out=y)[0], wanted.bfloat16())


@pytest.mark.parametrize("device", DEVICES)
@test_slots.each_kind
@pytest.mark.parametrize("between", [False, True])
def test_steps(kind, between, device):
    case = test_slots.case_of(kind, device)
    slots = {}
    if between:
        name = test_slots.indices_of(kind)
        slots = {name: torch.tensor(test_slots.READ), f"dst_{name}": torch.tensor(test_slots.LAST)}
        slots = {name: slot.to(device) for name, slot in slots.items()}
    states = [case[-1].clone() if between else case[-1][: test_slots.ROWS].clone() for _ in range(2)]
    wanted = test_slots.run(case, states[0], **slots)
    y = room(wanted)
    version = y._version
    assert test_slots.run(case, states[1], **slots, out=y) is y and y._version > version
    assert torch.equal(y, wanted) and torch.equal(*states)


@one_each
def test_arrays_of_numpy(name):
    case = returning(ALL[name])
    tensors = {name: tensor.numpy() for name, tensor in case.tensors.items()}
    out = tuple(numpy.full(result.shape, 7, result.numpy().dtype) for result in case())
    got = getattr(statescan, case.op)(**tensors, **case.options, out=out)
    for result, mine, expected in zip(got if isinstance(got, tuple) else (got,), out, case()):
        assert result is mine and numpy.array_equal(mine, expected.numpy())


@one_each
def test_compiled(name):
    torch.compiler.reset()
    case = returning(ALL[name])
    case, wanted = case.to(torch.float32), case.to(torch.float32)()
    # one is enough of what takes seconds
    backend = "inductor" if case.op == "ssd" else "aot_eager"
    for own in (wanted, wanted[:1]):
        out = tuple(torch.zeros_like(result) for result in own)
        got = torch.compile(lambda out: case(out=out), fullgraph=True, backend=backend)(out)
        assert all(torch.equal(a, b) for a, b in zip(got, wanted)) and all(torch.equal(a, b) for a, b in zip(out, wanted))


@pytest.mark.parametrize("op", BY_NAME.values(), ids=lambda op: op.name)
def test_registered_as_pytorch_wants_it(op):
    registered = getattr(torch.ops.statescan, f"{op.name}_out").default
    names = {case.op.removesuffix("_fn"): name for name, case in ALL.items()}
    if op.state is None:
        case = returning(ALL[names[op.name]]).to(torch.float32)
        written = [room(result) for result in case()]
        tensors = tuple(case.tensors.get(name.rstrip("?")) for name in op.tensors)
        written += [None] * (2 - len(written))
    else:
        kinds = {test_slots.case_of(kind)[0].__name__: kind for kind in test_slots.KINDS if kind != "ssd"}
        _, given, _, pool = test_slots.case_of(kinds[op.name])
        written = [pool[: test_slots.ROWS].clone(), room(given["v" if "delta" in op.name else op.tensors[0]])]
        if op.name == "simplified_state_update":
            written[1] = written[1] + 0j
        tensors = tuple(given.get(name.rstrip("?")) for name in op.tensors)
    torch.library.opcheck(registered, (*written, *tensors))


def test_a_pool_takes_room_for_y():
    case = CASES["ssd"].to(torch.float32)
    pools = [torch.zeros(3, 4, 3, 5) for _ in range(2)]
    slots = [statescan.StatePool(pool, torch.tensor([0, 2])) for pool in pools]
    (wanted, _), y = case(initial_state=slots[0]), torch.empty(2, 83, 4, 3)
    got, states = case(initial_state=slots[1], out=y)
    assert got is y and states is pools[1] and torch.equal(y, wanted) and torch.equal(*pools)
    with pytest.raises(TypeError, match="ssd_pooled: `out` has room for `y`, got 2 of them"):
        case(initial_state=slots[1], out=(y, pools[0]))


def test_what_is_refused():
    case = CASES["ssd"].to(torch.float32)
    y, state = case()

    def refused(error, match, out, **changed):
        kept = [tensor.clone() for tensor in (y, state)]
        with pytest.raises(error, match=match):
            case(out=out, **changed)
        assert torch.equal(y, kept[0]) and torch.equal(state, kept[1])

    refused(ValueError, r"ssd: `y` must have shape \(2, 83, 4, 3\), got \(2, 82, 4, 3\)", y[:, 1:])
    refused(ValueError, r"ssd: `final_state` must have shape", (y, state[:1]))
    refused(TypeError, "ssd: `y` must be real .*, got int64", y.long())
    refused(TypeError, "ssd: `y` must be real .*, got complex64", y + 0j)
    refused(ValueError, "ssd: `y` is written and must not share memory with `x`", case.tensors["x"])
    refused(ValueError, "ssd: `y` .* elements", y[:, :1].expand(2, 83, 4, 3))
    refused(TypeError, "ssd: `out` has room for `y` and `final_state`, got 3 of them", (y, state, y))
    refused(TypeError, "ssd: `out` must be of the same kind as the others, torch.Tensor, got ndarray", y.numpy())
    refused(TypeError, "ssd: `out` must be a PyTorch tensor or", [y])
    refused(RuntimeError, "ssd: `out` excludes gradients", y, x=case.tensors["x"].clone().requires_grad_())
    refused(RuntimeError, "ssd: `out` excludes gradients", y.clone().requires_grad_())
    refused(RuntimeError, "ssd: `out` excludes gradients", y, x=torch.nn.Parameter(case.tensors["x"]))
    x = case.tensors["x"].clone().requires_grad_()
    with torch.no_grad():
        assert torch.equal(case(x=x, out=torch.empty_like(y))[0], y)
    with pytest.raises(RuntimeError, match="ssd: `out` excludes gradients"):
        torch.func.grad(lambda x: case(x=x, out=torch.empty_like(y))[0].sum())(case.tensors["x"])
    with pytest.raises(ValueError, match="norm: `out` has room for `sum`, which goes with `residual`"):
        statescan.norm(y, out=(torch.empty_like(y), torch.empty_like(y)))


def test_arrays_that_cannot_be_written():
    x = numpy.ones((2, 3), numpy.float32)
    y = numpy.empty_like(x)
    y.flags.writeable = False
    with pytest.raises(Exception, match="norm: `y` "):
        statescan.norm(x, out=y)
    jax = pytest.importorskip("jax")
    with pytest.raises(TypeError, match="norm: `out` must be None where arrays are JAX's"):
        statescan.norm(jax.numpy.ones((2, 3)), out=jax.numpy.ones((2, 3)))
