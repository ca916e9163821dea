"""Wrong calls give an exception of the usual kind that names the function and the argument."""

import functools

import numpy
import pytest

import statescan


def scan(**changed):
    tensors = {
        "x": numpy.ones((2, 6, 20), numpy.float32),
        "dt": numpy.ones((2, 6, 20), numpy.float32),
        "A": -numpy.ones((6, 5), numpy.float32),
        "B": numpy.ones((2, 5, 20), numpy.float32),
        "C": numpy.ones((2, 5, 20), numpy.float32),
    }
    return statescan.selective_scan(**{**tensors, **changed})


def zeros(*shape, dtype=numpy.float32):
    return numpy.zeros(shape, dtype)


WRONG = [
    # shapes
    ({"x": zeros(6, 20)}, ValueError, "x"),
    ({"dt": zeros(2, 6, 19)}, ValueError, "dt"),
    ({"dt": zeros(2, 20, 6)}, ValueError, "dt"),
    ({"A": zeros(6)}, ValueError, "A"),
    ({"A": zeros(5, 6)}, ValueError, "A"),
    ({"B": zeros(2, 4, 20)}, ValueError, "B"),
    ({"B": zeros(2, 4, 5, 20)}, ValueError, "B"),
    ({"C": zeros(2)}, ValueError, "C"),
    ({"D": zeros(5)}, ValueError, "D"),
    ({"z": zeros(2, 6, 1)}, ValueError, "z"),
    ({"dt_bias": zeros(6, 1)}, ValueError, "dt_bias"),
    ({"deltaA": zeros(2, 6)}, ValueError, "deltaA"),
    ({"initial_state": zeros(2, 5, 6)}, ValueError, "initial_state"),
    ({"x": zeros(1, 1, 1, 1, 1, 1, 1)}, ValueError, "x"),
    # types
    ({"x": zeros(2, 6, 20, dtype=numpy.int8)}, TypeError, "x"),
    ({"x": zeros(2, 6, 20, dtype=bool)}, TypeError, "x"),
    ({"x": zeros(2, 6, 20, dtype=numpy.int64)}, TypeError, "x"),
    ({"x": zeros(2, 6, 20, dtype=numpy.complex64)}, TypeError, "x"),
    ({"B": zeros(2, 5, 20, dtype=numpy.complex64)}, TypeError, "B"),
    ({"D": zeros(6, dtype=numpy.uint16)}, TypeError, "D"),
    ({"dt": zeros(2, 6, 20, dtype=">f4")}, BufferError, "dt"),
    ({"dt": numpy.frombuffer(bytes(961), numpy.uint8)[1:].view(numpy.float32).reshape(2, 6, 20)}, ValueError, "dt"),
    # not tensors
    ({"x": [[1.0]]}, TypeError, "x"),
    ({"x": None}, TypeError, "x"),
    ({"x": numpy.float32(1)}, TypeError, "x"),
    ({"A": -1.0}, TypeError, "A"),
    ({"A": None}, TypeError, "A"),
    ({"D": "skip"}, TypeError, "D"),
    ({"z": object()}, TypeError, "z"),
    # sequences
    ({"cu_seqlens": zeros(3, dtype=numpy.int32)}, ValueError, "cu_seqlens"),
    ({"cu_seqlens": zeros(3)}, (ValueError, TypeError), "cu_seqlens"),
    ({"cu_seqlens": zeros(3, 1, dtype=numpy.int32)}, ValueError, "cu_seqlens"),
    ({"seq_idx": zeros(2, 19, dtype=numpy.int32)}, ValueError, "seq_idx"),
    ({"seq_idx": zeros(2, 20)}, TypeError, "seq_idx"),
    (
        {"cu_seqlens": zeros(2, dtype=numpy.int32), "seq_idx": zeros(2, 20, dtype=numpy.int32)},
        ValueError,
        "`seq_idx` excludes `cu_seqlens`",
    ),
    # options
    ({"discretization": "euler"}, ValueError, "discretization"),
    ({"discretization": None}, TypeError, "`discretization` must be 'mamba', .* got None"),
    ({"dt_limit": (1.0, 0.0)}, ValueError, r"`dt_limit` must be two numbers, the second not below the first, got \(1, 0\)"),
    ({"dt_limit": (float("nan"), 1.0)}, ValueError, "dt_limit"),
    ({"dt_limit": 3}, TypeError, "dt_limit"),
    ({"dt_limit": (1, 2, 3)}, TypeError, "dt_limit"),
    ({"dt_softplus": "yes"}, TypeError, "`dt_softplus` must be True or False, got 'yes'"),
    ({"dt_softplus": 2}, TypeError, "`dt_softplus` must be True or False, got 2"),
    ({"dt_softplus": None}, TypeError, "`dt_softplus` must be True or False, got None"),
    ({"reverse": "no"}, TypeError, "`reverse` must be True or False, got 'no'"),
]


def identify(value):
    return getattr(value, "__name__", None) if isinstance(value, type) else None


@pytest.mark.parametrize("changed, error, words", WRONG, ids=[f"{'-'.join(c)}-{i}" for i, (c, _, _) in enumerate(WRONG)])
def test_numpy(changed, error, words):
    with pytest.raises(error, match=words) as caught:
        scan(**changed)
    assert "selective_scan" in str(caught.value)


@pytest.mark.parametrize("changed, error, words", WRONG, ids=[f"{'-'.join(c)}-{i}" for i, (c, _, _) in enumerate(WRONG)])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_torch(changed, error, words, training):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def converted(value):
        if not isinstance(value, numpy.ndarray):
            return value
        if value.dtype.byteorder == ">" or not value.flags.aligned:
            pytest.skip("PyTorch has no such tensors")
        return torch.from_numpy(value)

    changed = {name: converted(value) for name, value in changed.items()}
    tensors = {name: torch.ones(2, 5, 20) for name in "BC"} | {"A": -torch.ones(6, 5)}
    tensors |= {name: torch.ones(2, 6, 20, requires_grad=training) for name in ("x", "dt")}
    with pytest.raises(error if error is not BufferError else ValueError, match=words) as caught:
        statescan.selective_scan(**{**tensors, **changed})
    assert "selective_scan" in str(caught.value)


def test_integers_have_no_gradient():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(RuntimeError, match="floating point"):
        torch.ones(2, 6, 20, dtype=torch.int32).requires_grad_()
    r = [torch.ones(shape, requires_grad=True) for shape in ((2, 6, 20), (6, 5), (2, 5, 20), (2, 5, 20))]
    with pytest.raises(TypeError, match="selective_scan: `x` must be real"):
        statescan.selective_scan(torch.ones(2, 6, 20, dtype=torch.int32), *r)


def test_frameworks_are_not_mixed():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(TypeError, match="selective_scan: `A` must be of the same kind as the others, numpy.ndarray, got Tensor"):
        scan(A=-torch.ones(6, 5))
    x = torch.ones(2, 6, 20)
    with pytest.raises(TypeError, match="selective_scan: `B` must be of the same kind as the others, torch.Tensor, got ndarray"):
        statescan.selective_scan(x, x, -torch.ones(6, 5), numpy.ones((2, 5, 20)), torch.ones(2, 5, 20))


def test_a_tensor_without_memory():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.ones(2, 6, 20, device="meta")
    y, state = statescan.selective_scan(x, x, x[0, :, :5], x[:, :5], x[:, :5])
    assert y.shape == x.shape and y.device.type == "meta" and state.shape == (2, 6, 5)
    with pytest.raises(ValueError, match="selective_scan: `dt` must be on cpu, got one on meta"):
        statescan.selective_scan(torch.ones(2, 6, 20), x, x[0, :, :5], x[:, :5], x[:, :5])


# each call has a wrong shape, and its message
SHAPES = [
    # time before channels everywhere; the first argument that differs is not to blame
    (
        lambda z: statescan.selective_scan(z(2, 10, 8), z(2, 10, 8), z(8, 4), z(2, 10, 4), z(2, 10, 4), z=z(2, 10, 8)),
        "selective_scan: `A` must have shape (10, 4), got (8, 4): it is (dim, dstate) with dim 10 from `x`; the call fits "
        "with axes 1 and 2 of `x`, `dt`, `B`, `C` and `z` exchanged",
    ),
    (
        lambda z: statescan.selective_scan(z(2, 8, 10), z(2, 8, 10), z(8, 4), z(2, 4, 10), z(2, 10, 4)),
        "selective_scan: `C` must have shape (2, 4, 10), got (2, 10, 4): it is (batch, dstate, seqlen) with dstate 4 from `A` "
        "and seqlen 10 from `x`; the call fits with axes 1 and 2 of `C` exchanged",
    ),
    (
        lambda z: statescan.selective_scan(z(2, 8, 10), z(2, 8, 10), z(4, 8), z(2, 4, 10), z(2, 4, 10)),
        "selective_scan: `A` must have shape (8, 8), got (4, 8): it is (dim, dstate) with dim 8 from `x`; the call fits with "
        "axes 0 and 1 of `A` exchanged",
    ),
    # nothing that is exchanged helps
    (
        lambda z: statescan.selective_scan(z(2, 8, 10), z(2, 8, 10), z(8, 4), z(2, 5, 10), z(2, 5, 10)),
        "selective_scan: `B` must have shape (2, 4, 10), got (2, 5, 10): it is (batch, dstate, seqlen) with dstate 4 from `A`",
    ),
    # a state, whose shape depends on how sequences are packed
    (
        lambda z: statescan.selective_scan(z(2, 8, 10), z(2, 8, 10), z(8, 4), z(2, 4, 10), z(2, 4, 10), None, z(2, 4, 8)),
        "selective_scan: `initial_state` must have shape (2, 8, 4), got (2, 4, 8): it fits with its axes 1 and 2 exchanged",
    ),
    # heads before time, as nkilib has them
    (
        lambda z: statescan.ssd(z(2, 4, 20, 3), z(2, 4, 20), z(4), z(2, 20, 5), z(2, 20, 5)),
        "ssd: `A` must have shape (20,), got (4,): it is (nheads,) with nheads 20 from `x`; the call fits with axes 1 and 2 "
        "of `x` and `dt` exchanged",
    ),
    # the weight of a module
    (
        lambda z: statescan.causal_conv1d(z(2, 8, 20), z(8, 1, 4)),
        "causal_conv1d: `weight` must have shape (dim, width), got shape (8, 1, 4): it fits without its axis 1: squeeze(1)",
    ),
    (
        lambda z: statescan.causal_conv1d_update(z(2, 8), z(2, 8, 4), z(8, 1, 4)),
        "causal_conv1d_update: `weight` must have shape (dim, width), got shape (8, 1, 4): it fits without its axis 1: "
        "squeeze(1)",
    ),
    (
        lambda z: statescan.causal_conv1d(z(2, 20, 8), z(8, 4)),
        "causal_conv1d: `weight` must have shape (20, 4), got (8, 4): it is (dim, width) with dim 20 from `x`; the call fits "
        "with axes 1 and 2 of `x` exchanged",
    ),
]


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("call, words", SHAPES, ids=[words.split()[1] + str(at) for at, (_, words) in enumerate(SHAPES)])
def test_shapes_in_words(call, words, framework):
    """Every framework says which axes an argument has, where its sizes come from, and what would make the call fit."""
    library = pytest.importorskip("jax.numpy" if framework == "jax" else framework)
    with pytest.raises(ValueError) as caught:
        call(lambda *shape: library.ones(shape))
    assert str(caught.value) == words


RENAMED = [
    ("selective_scan", "delta_softplus", "selective_scan: `delta_softplus` is called `dt_softplus` here"),
    ("selective_scan", "delta_bias", "selective_scan: `delta_bias` is called `dt_bias` here"),
    ("ssd", "initial_states", "ssd: `initial_states` is called `initial_state` here"),
    ("ssd", "return_final_states", "ssd: there is no `return_final_states`: the state after the last step always comes behind y"),
    ("causal_conv1d", "return_last_state", "causal_conv1d: `return_last_state` is called `return_final_states` here"),
    ("norm", "gate", "norm: `gate` is called `z` here"),
    ("selective_state_update", "delta_bias", "selective_state_update: `delta_bias` is called `dt_bias` here"),
    ("gated_delta_rule", "use_qk_l2norm_in_kernel", "gated_delta_rule: `use_qk_l2norm_in_kernel` is called `qk_l2norm` here"),
    ("linear_scan", "axis", "linear_scan() got an unexpected keyword argument 'axis'"),
]


@pytest.mark.parametrize("name, keyword, words", RENAMED)
def test_keywords_of_others(name, keyword, words):
    function = getattr(statescan, name)
    operation = statescan._operations.BY_NAME[name]
    count = sum(argument.required for argument in operation.arguments) + (operation.state is not None)
    with pytest.raises(TypeError) as caught:
        function(*[X] * count, **{keyword: True})
    assert str(caught.value) == words


def test_heads_before_time_in_words():
    maps = zeros(2, 20, 5)
    x, dt = zeros(2, 20, 4, 3), zeros(2, 20, 4)
    with pytest.raises(ValueError, match=r"ssd: `dt` must have shape \(2, 20, 4\), got \(2, 19, 4\)"):
        statescan.ssd(x, dt[:, 1:], zeros(4), maps, maps)
    with pytest.raises(ValueError, match=r"ssd: `initial_state` must have shape \(2, 4, 3, 5\), got \(2, 4, 5, 3\)"):
        statescan.ssd(x, dt, zeros(4), maps, maps, initial_state=zeros(2, 4, 5, 3))
    with pytest.raises(ValueError, match="ssd: `x` must have shape"):
        statescan.ssd(dt, dt, zeros(4), maps, maps)


def test_other_functions():
    x = zeros(2, 6, 20)
    for wrong, words in [
        (lambda: statescan.ssd(x[..., None], x, zeros(20), zeros(2, 6, 5), zeros(2, 6, 5), chunk_size=0), "chunk_size"),
        (lambda: statescan.causal_conv1d(x, zeros(6, 9)), "weight"),
        (lambda: statescan.causal_conv1d(x, zeros(6, 1)), "weight"),
        (lambda: statescan.causal_conv1d(x, zeros(6, 4), activation="relu"), "activation"),
        (lambda: statescan.causal_conv1d_update(x[..., 0], zeros(2, 6, 2), zeros(6, 4)), "conv_state"),
        (lambda: statescan.linear_scan(zeros(2, 6), x), "a"),
        (lambda: statescan.linear_scan(zeros(), zeros()), "b"),
        (lambda: statescan.simplified_scan_fn(x, zeros(3), zeros(4), zeros(4, 6), zeros(6, 4)), "delta"),
        (lambda: statescan.s5_inner_fn(x, zeros(4), zeros(4), zeros(4, 6), zeros(6, 4), zeros(5)), "D"),
    ]:
        with pytest.raises(ValueError, match=f"`{words}`"):
            wrong()
    state = zeros(3, 6, 5)
    step = (x[..., 0], x[..., 0], zeros(6, 5), zeros(2, 5), zeros(2, 5))
    for indices in ([0, 3], [1, 1]):
        with pytest.raises(ValueError, match="`state_batch_indices`"):
            statescan.selective_state_update(state, *step, state_batch_indices=numpy.array(indices))
    with pytest.raises(ValueError, match="`state`"):
        statescan.selective_state_update(state, *step)


def in_numpy(value):
    return value


def in_torch(value):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return torch.from_numpy(value).requires_grad_()


@functools.cache
def subclass():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return type("Own", (torch.Tensor,), {})


def in_torch_by_dispatcher(value):
    """A tensor of a class that sees calls; the dispatcher's own words name positions."""
    return in_torch(value).as_subclass(subclass())


def in_jax(value):
    return pytest.importorskip("jax", reason="JAX is not installed").numpy.asarray(value)


X, HEADS, MAPS = zeros(2, 8, 20), zeros(2, 20, 8, 4), zeros(2, 20, 5)


def norm(array, **options):
    return statescan.norm(array(X.swapaxes(1, 2)), **options)


def ssd(array, maps=MAPS, **options):
    return statescan.ssd(array(HEADS), array(zeros(2, 20, 8)), array(zeros(8)), array(maps), array(maps), **options)


def conv(array, width=4, **options):
    return statescan.causal_conv1d(array(X), array(zeros(8, width)), **options)


@pytest.mark.parametrize("array", [in_numpy, in_torch, in_torch_by_dispatcher, in_jax])
@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda a: norm(a, groups=3), ValueError, "norm: `groups` must be a divisor of the number of channels, got 3"),
        (lambda a: norm(a, groups=0), ValueError, "norm: `groups` must be a divisor of the number of channels, got 0"),
        (lambda a: norm(a, groups=-2), ValueError, r"norm: `groups` must be 0 or more and below 2\^64, got -2"),
        (lambda a: norm(a, groups=2.0), TypeError, "norm: `groups` must be a whole number, got 2.0"),
        (lambda a: norm(a, eps="small"), TypeError, "norm: `eps` must be a number, got 'small'"),
        (lambda a: norm(a, kind="batch"), ValueError, "norm: `kind` must be 'rms', 'layer' or 'none', got 'batch'"),
        (lambda a: ssd(a, chunk_size=64.0), TypeError, "ssd: `chunk_size` must be a whole number, got 64.0"),
        (lambda a: ssd(a, chunk_size=0), ValueError, "ssd: `chunk_size` must be at least 1, got 0"),
        (
            lambda a: ssd(a, maps=zeros(2, 20, 3, 5)),
            ValueError,
            "ssd: `B` must be in groups whose number divides that of channels or heads, got 3",
        ),
        (lambda a: conv(a, width=9), ValueError, "causal_conv1d: `weight` must be of a width from 2 to 8, got 9"),
        (
            lambda a: conv(a, activation="relu"),
            ValueError,
            "causal_conv1d: `activation` must be None, 'silu' or 'swish', got 'relu'",
        ),
        (lambda a: conv(a, activation=abs), TypeError, "causal_conv1d: `activation` must be .* got <built-in function abs>"),
    ],
)
def test_words_of_options(call, error, words, array):
    with pytest.raises(error, match=f"^{words}"):
        call(array)


@pytest.mark.parametrize("name", ["bool", "int8", "uint8", "int16", "complex32", "float8_e4m3fn", "float8_e5m2"])
def test_types_have_one_name(name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.zeros(2, 6, 20, dtype=getattr(torch, name))
    with pytest.raises(TypeError, match=f"^linear_scan: `a` must have elements of type float32, .*, got {name}$"):
        statescan.linear_scan(x, torch.zeros(2, 6, 20))
    with pytest.raises(TypeError, match=r"`dt` must be real \(float32, float64, bfloat16 or float16\), got int32"):
        scan(dt=zeros(2, 6, 20, dtype=numpy.int32))


def masked(*shape):
    return numpy.ma.masked_array(zeros(*shape), mask=numpy.ones(shape, bool))


def test_masked_arrays():
    """Their data has values where they have none."""
    words = r"must be an array without a mask, got numpy\.ma\..*MaskedArray; call filled\(\) first"
    for name, shape in (("x", (2, 6, 20)), ("dt", (2, 6, 20)), ("D", (6,)), ("initial_state", (2, 6, 5))):
        with pytest.raises(TypeError, match=f"selective_scan: `{name}` {words}"):
            scan(**{name: masked(*shape)})
    step = (zeros(2, 6), zeros(2, 6), zeros(6, 5), zeros(2, 5), zeros(2, 5))
    with pytest.raises(TypeError, match=f"selective_state_update: `state` {words}"):
        statescan.selective_state_update(masked(2, 6, 5), *step)
    with pytest.raises(TypeError, match=f"selective_state_update: `dt` {words}"):
        statescan.selective_state_update(zeros(2, 6, 5), step[0], masked(2, 6), *step[2:])
    scan(D=numpy.asmatrix(zeros(1, 6))[0].A1.view(numpy.memmap))


def test_masked_arrays_beside_others():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    a = jax.numpy.zeros((2, 6, 20))
    for call in (statescan.linear_scan, jax.jit(lambda a: statescan.linear_scan(a, masked(2, 6, 20)))):
        with pytest.raises(TypeError, match="linear_scan: `b` must be an array without a mask"):
            call(a, *([masked(2, 6, 20)] if call is statescan.linear_scan else []))
