"""B and C of a Mamba layer: given, or parts of what is projected, with a bias, a norm, as pairs of complex numbers.

What is projected comes as what takes parts of it: `Rows` of a matrix, or `Parts` of a tensor.
"""

from functools import lru_cache

import torch

from .._operations import NORM
from .shared import Parts, run, run_back


def maps_of(given, rank, dstate):
    """Both maps of a call, whose channels follow those of the steps."""
    own = given.B, given.C, given.B_bias, given.C_bias, given.B_norm, given.C_norm
    # symbolic sizes have no hash
    if isinstance(dstate, int) and isinstance(rank, int) and not given.A.is_complex() and all([t is None for t in own]):
        return _views(rank, dstate)
    return _maps(own, given.eps, given.A.is_complex(), rank, dstate)


def _maps(own, eps, is_complex, rank, dstate):
    first, found = rank, []
    for tensors in zip(own[:2], own[2:4], own[4:]):
        found.append(Map(*tensors, eps, is_complex))
        first = found[-1].place(first, dstate)
    return tuple(found)


@lru_cache
def _views(rank, dstate):
    """Maps that are parts of the projection as they are: they hold no tensor of a call."""
    return _maps((None,) * 6, 0.0, False, rank, dstate)


def normalized(rows, weight, eps, place):
    """The RMS norm of rows, (.., channels)."""
    y = rows.new_empty(rows.shape)
    run(NORM, _norm(rows, weight, eps), (y, None), place)
    return y


def normalized_back(rows, weight, eps, by_normed, to, needed, place):
    """Writes the gradient by rows into `to`, and gives that by the weight where it is needed."""
    made = run_back(NORM, (*_norm(rows, weight, eps), by_normed, None), (to, needed, None, None, None), place)
    return made[0] if needed else None


def _norm(rows, weight, eps):
    return rows, weight, None, None, None, "rms", eps, 1, False


class Map:
    """One of both."""

    __slots__ = ("bias", "count", "eps", "first", "given", "is_complex", "norm")

    def __init__(self, given, bias, norm, eps, is_complex):
        self.given, self.bias, self.norm, self.eps = given, bias, norm, eps
        self.is_complex = is_complex
        self.first = self.count = 0

    def place(self, first, dstate):
        """Chooses the channels of the projection, from `first` on, and says where those behind them begin."""
        if self.given is None:
            self.first, self.count = first, dstate * (2 if self.is_complex else 1)
        return first + self.count

    @property
    def is_view(self):
        """Whether the scan reads the projection itself, and writes the gradient by it."""
        return self.given is None and self.bias is None and self.norm is None and not self.is_complex

    def view(self, projected):
        """(batch, dstate, seqlen) of a projection whose channels are not changed."""
        return projected.timed(self.first, self.count)

    def _own(self, projected):
        """The channels of the map."""
        return projected.tensor[..., self.first : self.first + self.count]

    def _rows(self, projected):
        """What the norm takes."""
        rows = self._own(projected)
        return rows if self.bias is None else rows + self.bias.to(rows.dtype)

    def of(self, projected, place):
        """What the scan takes."""
        if self.given is not None:
            return self.given
        if self.is_view:
            return self.view(projected)
        rows = self._rows(projected)
        if self.norm is not None:
            rows = normalized(rows, self.norm, self.eps, place)
        rows = as_complex(rows) if self.is_complex else rows
        return rows.view(projected.batch, projected.seqlen, rows.shape[-1]).transpose(1, 2)

    def like(self, projected):
        """The same without data."""
        if self.given is not None or not self.is_complex:
            return self.given if self.given is not None else self.view(Parts(projected))
        batch, seqlen, _ = projected.shape
        dtype = torch.promote_types(projected.dtype, torch.complex64)
        return projected.new_empty(batch, seqlen, self.count // 2, dtype=dtype).transpose(1, 2)

    def wanted(self, by_projected, needed):
        """What the scan is to do with the gradient by what it takes: where to write it, or whether to make it."""
        if self.given is not None:
            return needed
        return self.view(by_projected) if self.is_view else True

    def back(self, by_map, projected, by_projected, needed, place):
        """The gradients by the map where it is given, by the bias and by the norm's weight; that by the projection is written."""
        if self.given is not None:
            return by_map, None, None
        if self.is_view:
            return None, None, None
        by_rows, by_norm = by_map.transpose(1, 2), None
        if self.is_complex:
            by_rows = torch.view_as_real(by_rows).flatten(-2).to(projected.tensor.dtype)
        to = self._own(by_projected)
        by_rows = by_rows.reshape(to.shape)
        if self.norm is None:
            to.copy_(by_rows)
        else:
            by_norm = normalized_back(self._rows(projected), self.norm, self.eps, by_rows, to, needed[1], place)
        by_bias = to.sum(tuple(range(to.dim() - 1))).to(self.bias.dtype) if needed[0] else None
        return None, by_bias, by_norm


def as_complex(pairs):
    """Complex numbers from real ones, (.., 2 n): real and imaginary parts in turn."""
    pairs = pairs.to(torch.promote_types(pairs.dtype, torch.float32))
    return torch.view_as_complex(pairs.unflatten(-1, (-1, 2)).contiguous())
