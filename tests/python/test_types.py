"""Annotations of the public functions are those of the native tables, and a program for type checkers runs."""

import inspect
import typing

import pytest

import statescan
from statescan import _pool, _types
from statescan._operations import BY_NAME

each_function = pytest.mark.parametrize("name", BY_NAME)
OPTIONAL = _types.Array | None
# an initial state may be a pool
STATE = _pool.State | None
# functions have these beside the table: whether they return a second result or go by steps, ranks, room for results
BESIDE = {
    "return_last_state": bool,
    "return_final_states": bool,
    "context": _types.Context | None,
    "exact": bool,
    "out": _types.Out,
}
# options that are made from other things where they are None
NUMBERS_OR_NONE = ("scale", "lower_bound")


def settings(op):
    """The options of an operation in its order, limits as one."""
    schemas = [schema.rsplit(maxsplit=1) for schema, _ in op.options]
    return {
        name.removesuffix("_low") + ("_limit" if name.endswith("_low") else ""): kind
        for kind, name in schemas
        if name != "dt_high"
    }


def check_annotation(op, name, parameter, kind):
    annotation = parameter.annotation
    if name in op.words:
        words = [one for one in typing.get_args(annotation) if typing.get_origin(one) is typing.Literal] or [annotation]
        assert typing.get_args(words[0]) == op.words[name], name
        assert (parameter.default is None) == (type(None) in typing.get_args(annotation)), name
    elif name.endswith("_limit"):
        assert annotation == _types.Limits, name
    else:
        expected = {"bool": bool, "int": int, "float": float}[kind]
        assert annotation == (expected | None if name in NUMBERS_OR_NONE else expected), name


def check_signature(op, signature, is_overload=False):
    parameters = dict(signature.parameters)
    parameters.pop("renamed", None)
    options = settings(op)
    if op.name == "simplified_scan":
        # with a skip it is `s5_inner`
        assert "D" not in parameters
    expected = {
        argument.name for argument in op.arguments if (op.name, argument.name) != ("simplified_scan", "D")
    } | options.keys()
    # arguments of a step between slots
    beside = {argument.name for argument in op.slotted.arguments} - expected if op.slotted is not None else set()
    expected |= beside
    found = {name for name in parameters if name not in BESIDE or name in options} - {op.state}
    assert found == expected
    for argument in op.arguments:
        if argument.name in parameters and not (is_overload and argument.name in ("residual", "residual_scale")):
            annotation, default = parameters[argument.name].annotation, parameters[argument.name].default
            if argument.required:
                assert annotation in (_types.Array, _types.T, _types.J) and default is inspect.Parameter.empty, argument.name
            else:
                at_pool = op.pooled is not None and argument is op.arguments[op.initial]
                assert annotation == (STATE if at_pool else OPTIONAL) and default is None, argument.name
    assert all((parameters[name].annotation, parameters[name].default) == (OPTIONAL, None) for name in beside)
    for name, kind in options.items():
        check_annotation(op, name, parameters[name], kind)
    for name, annotation in BESIDE.items():
        if name in parameters and not (is_overload and annotation is bool):
            # a step has one result
            assert parameters[name].annotation == (OPTIONAL if op.state and name == "out" else annotation)
    assert parameters["out"].default is None or is_overload
    assert signature.return_annotation is not inspect.Signature.empty


@each_function
def test_annotations_are_those_of_the_table(name):
    check_signature(BY_NAME[name], inspect.signature(getattr(statescan, name)))


@each_function
def test_overloads_are_the_function(name):
    if not hasattr(typing, "get_overloads"):
        pytest.skip("Python 3.10 does not keep overloads")
    function = getattr(statescan, name)
    own = inspect.signature(function)
    for overload in typing.get_overloads(function):
        signature = inspect.signature(overload)
        check_signature(BY_NAME[name], signature, is_overload=True)
        assert {n: p.default for n, p in own.parameters.items() if n != "renamed"}.keys() == signature.parameters.keys()
        for parameter in signature.parameters.values():
            assert parameter.default in (own.parameters[parameter.name].default, inspect.Parameter.empty), parameter


def test_the_program_for_type_checkers_runs():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    typed = pytest.importorskip("typed")
    x, dt, B = torch.randn(2, 4, 6), torch.rand(2, 4, 6), torch.randn(2, 3, 6)
    assert typed.scans(x, dt, -torch.rand(4, 3), B).shape == x.shape
    assert typed.convolutions(x, torch.randn(4, 3), True).shape == x.shape
    assert typed.norms(x).shape == x.shape
    assert typed.arrays(x.numpy()).shape == x.shape
    assert typed.layers(torch.randn(2, 5, 8)).shape == (2, 5, 8)
    assert typed.everything()["ranks"] == "1"
