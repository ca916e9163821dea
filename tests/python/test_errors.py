"""Wrong calls give an exception of the usual kind that names the function and the argument."""

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
    ({"discretization": None}, (TypeError, ValueError, RuntimeError), "discretization"),
    ({"dt_limit": (1.0, 0.0)}, ValueError, "dt_limit"),
    ({"dt_limit": (float("nan"), 1.0)}, ValueError, "dt_limit"),
    ({"dt_limit": 3}, TypeError, "dt_limit"),
    ({"dt_limit": (1, 2, 3)}, TypeError, "dt_limit"),
    ({"dt_softplus": "yes"}, (TypeError, RuntimeError), "dt_softplus"),
    ({"reverse": "no"}, (TypeError, RuntimeError), "reverse"),
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


def test_heads_before_time_in_words():
    """Who calls SSD as `nkilib` has it is told what to do."""
    maps = zeros(2, 20, 5)
    with pytest.raises(ValueError, match="ssd: `x` has heads before time: exchange axes 1 and 2 of `x`, `dt`, `dt_a` and `z`"):
        statescan.ssd(zeros(2, 4, 20, 3), zeros(2, 4, 20), zeros(4), maps, maps)
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
