"""The public functions hand their arguments on in the order of the signatures, and have their defaults."""

import pytest

import statescan
from statescan import _dispatch

OPERATIONS = {op.name: op for op in (*statescan._operations.OPERATIONS, *statescan._operations.STEPS)}
# functions of steps call these where there are slots to write
OPERATIONS |= {op.name: op for op in statescan._operations.SLOTTED}
each_function = pytest.mark.parametrize("name", OPERATIONS)


class Tensor:
    """Stands for a tensor."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return self.name


@pytest.fixture
def handed_on(monkeypatch):
    """What a function hands on: the operation, its state, its tensors and its options."""
    calls = []

    def record(op, *arguments, out=None):
        *state, tensors, options = arguments[:3] if op.state is not None else arguments[:2]
        calls.append((op, *state, tensors, options))
        return None, None

    monkeypatch.setattr(_dispatch, "call", record)
    monkeypatch.setattr(_dispatch, "step", record)

    def call(name, **arguments):
        getattr(statescan, name.removesuffix("_slots"))(**arguments)
        return calls.pop()

    return call


def required(name, handed_on):
    """The operation of a function, and stand-ins for what has to be given."""
    op = OPERATIONS[name]
    tensors = {argument.name: Tensor(argument.name) for argument in op.arguments if argument.required}
    return op, tensors if op.state is None else {op.state: Tensor(op.state), **tensors}


@each_function
def test_tensors_are_in_order(name, handed_on):
    op, given = required(name, handed_on)
    names = [argument.name for argument in op.arguments]
    if name == "simplified_scan":
        # with a skip it is `s5_inner`
        names[names.index("D")] = "None"
    given |= {name: Tensor(name) for name in names if name != "None"}
    found, *state, tensors, _ = handed_on(name, **given)
    assert found is op
    assert [str(tensor) for tensor in tensors] == names
    assert [str(tensor) for tensor in state] == ([op.state] if op.state is not None else [])


@each_function
def test_defaults_are_those_of_the_signature(name, handed_on):
    op, given = required(name, handed_on)
    *_, tensors, options = handed_on(name, **given)
    assert [str(tensor) for tensor in tensors] == [a.name if a.name in given else "None" for a in op.arguments]
    assert list(options) == [default for _, default in op.options]


@each_function
def test_options_are_in_order(name, handed_on):
    op, given = required(name, handed_on)
    usual = [default for _, default in op.options]
    for at, (schema, default) in enumerate(op.options):
        option = schema.split()[-1]
        if option in ("dt_low", "dt_high"):
            other, changed = {"dt_limit": (0.25, 0.5)}, {"dt_low": 0.25, "dt_high": 0.5}[option]
        elif isinstance(default, bool):
            other, changed = {option: not default}, not default
        else:
            words = {"discretization": "dirac", "activation": "silu", "kind": "layer"}
            changed = words[option] if option in words else default + 1
            other = {option: changed}
        *_, options = handed_on(name, **{**given, **other})
        assert len(options) == len(usual)
        assert options[at] == changed, schema
        beside = [i for i, (left, right) in enumerate(zip(options, usual)) if left != right and i != at]
        assert all(op.options[i][0].split()[-1] in ("dt_low", "dt_high") for i in beside), schema
