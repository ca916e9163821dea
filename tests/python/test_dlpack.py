"""The door for foreign tensors: whatever comes through it gives a result or an exception that names the argument."""

import ctypes

import numpy
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import statescan

CPU, CUDA = 1, 2


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# functions of their own: JAX gives those of `ctypes.pythonapi` other types
new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, *[ctypes.c_void_p] * 3)(("PyCapsule_New", ctypes.pythonapi))
capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))


class Foreign(numpy.ndarray):
    """A NumPy array whose DLPack description is what a test says, whatever that is."""

    # plain classes have no room for what a test sets
    description: dict

    def __dlpack__(self, **options):
        return self.capsule

    def __dlpack_device__(self):
        return (CPU, 0)


def describe(array, versioned=False, deleter=True, name=None, major=1, flags=0, strides=True, **fields):
    """An array with a description that is right but for the fields given."""
    foreign = array.view(Foreign)
    kind = {"f": 2, "c": 5, "i": 0}[array.dtype.kind]
    shape = fields.pop("shape", array.shape)
    steps = fields.pop("steps", [s // array.itemsize for s in array.strides])
    managed = Versioned(major=major, flags=flags) if versioned else Managed()
    tensor = managed.tensor
    tensor.data, tensor.device_type, tensor.ndim = array.ctypes.data, CPU, array.ndim
    tensor.code, tensor.bits, tensor.lanes = kind, 8 * array.itemsize, 1
    foreign.shape_memory = None if shape is None else (ctypes.c_int64 * max(len(shape), 8))(*shape)
    foreign.strides_memory = (ctypes.c_int64 * max(len(steps), 8))(*steps)
    if shape is not None:
        tensor.shape = ctypes.cast(foreign.shape_memory, ctypes.POINTER(ctypes.c_int64))
    if strides:
        tensor.strides = ctypes.cast(foreign.strides_memory, ctypes.POINTER(ctypes.c_int64))
    for field, value in fields.items():
        setattr(tensor, field, value)
    foreign.deleted = []
    foreign.callback = Deleter(foreign.deleted.append)
    if deleter:
        managed.deleter = ctypes.cast(foreign.callback, ctypes.c_void_p)
    foreign.managed = managed
    word = name or (b"dltensor_versioned" if versioned else b"dltensor")
    foreign.name_memory = ctypes.create_string_buffer(word)
    foreign.capsule = new_capsule(ctypes.addressof(managed), ctypes.addressof(foreign.name_memory), None)
    return foreign


A = numpy.full((3, 40), 0.5, numpy.float32)
B = numpy.arange(120, dtype=numpy.float32).reshape(3, 40)


def scan(b, a=A):
    return statescan.linear_scan(a, b)[0]


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("deleter", [False, True])
@pytest.mark.parametrize("strides", [False, True])
def test_a_right_description(versioned, deleter, strides):
    foreign = describe(B, versioned, deleter, strides=strides)
    numpy.testing.assert_array_equal(scan(foreign), scan(B))
    # it went back to its producer, once
    assert foreign.deleted == ([ctypes.addressof(foreign.managed)] if deleter else [])
    assert capsule_name(foreign.capsule) == (b"used_dltensor_versioned" if versioned else b"used_dltensor")


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize(
    "fields, error, words",
    [
        ({"ndim": -1}, ValueError, "axes"),
        ({"ndim": 7, "shape": (1,) * 7, "steps": (1,) * 7}, ValueError, "at most 6 axes"),
        ({"ndim": 2**31 - 1}, ValueError, "axes"),
        ({"shape": None}, ValueError, "no shape"),
        ({"shape": (3, -40)}, ValueError, "size -40"),
        ({"shape": (2**40, 2**40)}, ValueError, "b"),
        ({"shape": (2**62, 2)}, ValueError, "beyond all memory"),
        ({"steps": (2**62, 1)}, ValueError, "beyond all memory"),
        ({"steps": (-(2**62), 1)}, ValueError, "beyond all memory"),
        ({"steps": (-(2**63), 1)}, ValueError, "beyond all memory"),
        ({"data": 0}, ValueError, "null"),
        ({"data": 2**64 - 8}, ValueError, "beyond all memory"),
        ({"byte_offset": 2**64 - 4}, ValueError, "beyond all memory"),
        ({"byte_offset": 2**63}, ValueError, "beyond all memory"),
        ({"byte_offset": 2}, ValueError, "aligned"),
        ({"lanes": 0}, TypeError, "elements of type"),
        ({"lanes": 4}, TypeError, "elements of type"),
        ({"bits": 0}, TypeError, "elements of type"),
        ({"bits": 24}, TypeError, "elements of type"),
        ({"code": 1}, TypeError, "elements of type"),
        ({"code": 3}, TypeError, "elements of type"),
        ({"code": 6, "bits": 8}, TypeError, "elements of type"),
        ({"code": 255}, TypeError, "elements of type"),
        ({"device_type": 0}, ValueError, "device type 0"),
        ({"device_type": 10}, ValueError, "device type 10"),
        ({"device_type": CUDA}, ValueError, "cuda:0"),
        ({"device_type": CUDA, "device_id": -1}, ValueError, "number -1"),
        ({"device_type": CUDA, "device_id": 77}, ValueError, "cuda:77"),
    ],
    ids=str,
)
def test_a_hostile_description(fields, error, words, versioned):
    foreign = describe(B, versioned, **fields)
    with pytest.raises(error, match=words) as caught:
        scan(foreign)
    assert "linear_scan" in str(caught.value) and "`b`" in str(caught.value)
    assert len(foreign.deleted) == 1


def test_a_capsule_can_be_used_once():
    foreign = describe(B)
    scan(foreign)
    with pytest.raises(BufferError, match="`b`.*used before"):
        scan(foreign)
    both = describe(A)
    with pytest.raises(BufferError, match="used before"):
        scan(both, both)
    assert len(foreign.deleted) == len(both.deleted) == 1


@pytest.mark.parametrize("name", [b"used_dltensor", b"arrow_schema", b"dltensor2", b""])
def test_a_capsule_of_another_kind(name):
    foreign = describe(B, name=name or b"x")
    with pytest.raises(BufferError, match="`b`"):
        scan(foreign)
    assert foreign.deleted == []


@pytest.mark.parametrize("major", [0, 2, 2**32 - 1])
def test_another_version(major):
    foreign = describe(B, versioned=True, major=major)
    with pytest.raises(BufferError, match="`b`.*version 1"):
        scan(foreign)
    assert foreign.deleted == []


@pytest.mark.parametrize("answer", [None, 3, "capsule", object()])
def test_no_capsule(answer):
    foreign = describe(B)
    foreign.capsule = answer
    with pytest.raises(TypeError, match="`b`.*capsule"):
        scan(foreign)


def test_a_producer_that_fails():
    class Failing(Foreign):
        def __dlpack__(self, **options):
            raise OSError("no memory to share")

    with pytest.raises(BufferError, match="`b`.*no memory to share") as caught:
        scan(B.view(Failing))
    assert isinstance(caught.value.__cause__, OSError)


def test_a_producer_from_before_version_1():
    class Old(Foreign):
        def __dlpack__(self, stream=None):
            return self.capsule

    foreign = describe(B)
    foreign.__class__ = Old
    numpy.testing.assert_array_equal(scan(foreign), scan(B))


def test_read_only_memory_is_not_written():
    state = describe(numpy.zeros((2, 6, 5), numpy.float32), versioned=True, flags=1)
    x, A, B = numpy.ones((2, 6), numpy.float32), -numpy.ones((6, 5), numpy.float32), numpy.ones((2, 5), numpy.float32)
    with pytest.raises(ValueError, match="`state` is written, and it is read-only"):
        statescan.selective_state_update(state, x, x, A, B, B)
    frozen = numpy.zeros((2, 6, 5), numpy.float32)
    frozen.flags.writeable = False
    with pytest.raises((ValueError, BufferError), match="`state`"):
        statescan.selective_state_update(frozen, x, x, A, B, B)
    assert not frozen.any()


def test_memory_that_is_written_twice():
    x, A, B = numpy.ones((2, 6), numpy.float32), -numpy.ones((6, 5), numpy.float32), numpy.ones((2, 5), numpy.float32)
    folded = describe(numpy.zeros((2, 6, 5), numpy.float32), steps=(30, 0, 1))
    with pytest.raises(ValueError, match="`state` is written.*distinct"):
        statescan.selective_state_update(folded, x, x, A, B, B)
    shared = numpy.zeros((2, 6, 5), numpy.float32)
    with pytest.raises(ValueError, match="`state` is written.*share memory with `A`"):
        statescan.selective_state_update(shared, x, x, shared[0], B, B)


# memory around the array, so that descriptions which stay in it are harmless
ROOM = 4096
small = st.integers(-3, 6)
sizes = st.one_of(small, st.integers(-(2**63), 2**63 - 1))


# every run has the same examples, however slow the machine is
@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    versioned=st.booleans(),
    shape=st.lists(sizes, min_size=0, max_size=8),
    steps=st.lists(sizes, min_size=8, max_size=8),
    ndim=st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
    code=st.one_of(st.just(2), st.integers(0, 255)),
    bits=st.one_of(st.sampled_from([16, 32, 64, 128]), st.integers(0, 255)),
    lanes=st.one_of(st.just(1), st.integers(0, 65535)),
    device_type=st.one_of(st.just(CPU), st.integers(-(2**31), 2**31 - 1)),
    device_id=st.one_of(st.just(0), st.integers(-(2**31), 2**31 - 1)),
    offset=st.one_of(st.integers(0, 64), st.integers(0, 2**64 - 1)),
    flags=st.integers(0, 2**64 - 1),
    strides=st.booleans(),
    null=st.booleans(),
)
@example(True, [3, 40], [40, 1] + [0] * 6, None, 2, 32, 1, CPU, 0, 0, 0, True, False)
def test_any_description(versioned, shape, steps, ndim, code, bits, lanes, device_type, device_id, offset, flags, strides, null):
    """Any field of any value: an answer or an exception, as long as what is described as memory is memory."""
    memory = numpy.zeros(2 * ROOM, numpy.uint8)
    reach = [(size - 1) * step for size, step in zip(shape, steps)] if strides else []
    fits = all(abs(r) < 50 for r in reach) and all(abs(s) < 10 for s in shape) and len(shape) < 4 and offset < 65
    # a lie about where memory is cannot be found out: such a description gets a null pointer
    fields = {} if fits and not null else {"data": 0}
    # the number of axes is not more than what the description has room for, or absurd
    rank = len(shape) if ndim is None or 6 >= ndim > 0 else ndim
    array = memory[ROOM:].view(numpy.float32)
    foreign = describe(
        array, versioned, flags=flags, strides=strides, shape=shape, steps=steps, ndim=rank, code=code, bits=bits, lanes=lanes,
        device_type=device_type, device_id=device_id, byte_offset=offset, **fields,
    )  # fmt: skip
    try:
        scan(foreign, numpy.ones(tuple(shape), numpy.float32) if fits and min(shape, default=0) >= 0 else A)
    except (ValueError, TypeError, BufferError, MemoryError, RuntimeError) as error:
        assert "linear_scan" in str(error)
    assert len(foreign.deleted) == 1
    assert not memory.any()
