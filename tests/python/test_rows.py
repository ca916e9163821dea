"""Parts of tensors that the native functions take without views of PyTorch's."""

import pytest
import torch

from statescan import _native
from statescan._native import Rows
from statescan._operations import CAUSAL_CONV1D, SELECTIVE_SCAN
from statescan.torch import _place

BATCH, SEQLEN, CHANNELS = 2, 5, 12


def whole(kind):
    """A tensor (batch, seqlen, channels) in some order of memory."""
    if kind == "channels first":
        return torch.randn(BATCH, CHANNELS, SEQLEN).transpose(1, 2)
    if kind == "sliced":
        return torch.randn(BATCH, 2 * SEQLEN, CHANNELS + 3)[:, ::2, 2:-1]
    return torch.randn(BATCH, SEQLEN, CHANNELS)


def convolved(x, weight, to):
    """The convolution, written into `to`, or given."""
    inputs = (x, weight, None, None, None, None, "silu", False)
    made = _native.forward(CAUSAL_CONV1D.number, inputs, (to, None), _place(torch.empty(0)))
    return made[0] if made else None


@pytest.mark.parametrize("kind", ["channels last", "channels first", "sliced"])
def test_a_part_is_read_and_written_as_a_view(kind):
    x, to, weight = whole(kind), torch.zeros(BATCH, SEQLEN, CHANNELS), torch.randn(4, 1, 3)
    view = x[..., 3:7].transpose(1, 2)
    expected = convolved(view.contiguous(), weight.squeeze(1), True)
    convolved(Rows(x, "x").timed(3, 4), Rows.filters(weight, "weight"), Rows.made(to, (BATCH, SEQLEN)).timed(8, 4))
    assert torch.equal(to[..., 8:].transpose(1, 2), expected) and not to[..., :8].any()
    # what is made beside a part is dense
    made = convolved(Rows(x, "x").timed(3, 4), weight.squeeze(1), True)
    assert torch.equal(made, expected) and made.is_contiguous()


def test_a_matrix_of_rows_is_a_tensor_of_steps():
    x, weight = whole("channels last"), torch.randn(4, 3)
    rows = Rows.made(x.view(-1, CHANNELS), (BATCH, SEQLEN))
    assert (rows.batch, rows.seqlen) == (BATCH, SEQLEN) and rows.tensor.data_ptr() == x.data_ptr()
    expected = convolved(x[..., 1:5].transpose(1, 2).contiguous(), weight, True)
    assert torch.equal(convolved(rows.timed(1, 4), weight, True), expected)
    nothing = Rows.made(torch.empty(0, CHANNELS), (0, SEQLEN))
    assert convolved(nothing.timed(1, 4), weight, True).shape == (0, 4, SEQLEN)


def test_gradients_beside_parts():
    x, dt, A = torch.randn(1, SEQLEN, 8), torch.rand(1, 4, SEQLEN), -torch.rand(4, 2)
    rows, view = Rows(x, "x"), x.transpose(1, 2)

    def gradients(x, B, C):
        arguments = (x, dt, A, B, C, None, None, None, None, None, None, None, False, None, None, "mamba", False)
        cotangent = torch.ones(1, 4, SEQLEN)
        return _native.backward(SELECTIVE_SCAN.number, (*arguments, None, cotangent, None), (True,) * 5, _place(dt))

    found = gradients(rows.timed(0, 4), rows.timed(4, 2), rows.timed(6, 2))
    expected = gradients(*(part.contiguous() for part in view.split([4, 2, 2], dim=1)))
    assert all(torch.equal(a, b) and a.is_contiguous() for a, b in zip(found, expected))


@pytest.mark.parametrize("take", ["rows", "timed"])
def test_channels_that_a_tensor_has_not(take):
    rows = Rows(whole("channels last"), "xz")
    with pytest.raises(ValueError, match="12 channels has no 5 from 8 on"):
        getattr(rows, take)(8, 5)
    with pytest.raises(ValueError, match="12 channels"):
        rows.groups(0, 2**62, 8)
    with pytest.raises(ValueError, match="12 channels"):
        rows.groups(4, 3, 3)


def test_what_has_no_rows():
    with pytest.raises(ValueError, match=r"`xz` must have shape \(batch, seqlen, channels\), got \[10, 12\]"):
        Rows(torch.randn(10, 12), "xz")
    with pytest.raises(ValueError, match="must have shape"):
        Rows.made(torch.randn(10, 12), (3, 4))
    with pytest.raises(TypeError, match="`xz` must be a tensor of PyTorch"):
        Rows([1.0], "xz")
    with pytest.raises(TypeError, match="`weight` must be a tensor of PyTorch"):
        Rows.filters(None, "weight")
    with pytest.raises(TypeError, match="`xz` is negated lazily"):
        Rows(torch.randn(1, 2, 3, dtype=torch.complex64).conj().imag, "xz")
