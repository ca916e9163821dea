"""Tensors that every rank tells all others, as rows of numbers."""

import math

import torch

from ._slices import gather_rows


def form_of(tensor):
    return tensor.shape, tensor.dtype


def real_of(dtype):
    return dtype.to_real() if dtype.is_complex else dtype


def numbers_of(form):
    """The real numbers of a tensor of a form: its shape and its type."""
    shape, dtype = form
    return math.prod(shape) * (2 if dtype.is_complex else 1)


class Forms:
    """Tensors of these forms as real numbers, one behind the other: all have the type of the first."""

    def __init__(self, *forms):
        self.dtype, self.parts, end = real_of(forms[0][1]), [], 0
        for shape, dtype in forms:
            start, end = end, end + numbers_of((shape, dtype))
            self.parts.append((start, end, (*shape, 2) if dtype.is_complex else shape, dtype.is_complex))
        self.numbers = end

    def part(self, numbers, at):
        """One of the tensors that lie in a row of numbers."""
        start, end, shape, is_complex = self.parts[at]
        part = (numbers if end - start == self.numbers else numbers[start:end]).view(shape)
        return torch.view_as_complex(part) if is_complex else part


class Exchange:
    """Every rank tells this to all others: tensors of these forms, zeros at first unless all of them will be `written`."""

    # the types that groups exchange; others go as bytes
    _SENT = (torch.float32, torch.float64)

    def __init__(self, context, device, forms, written=False):
        self.context, self.forms, self.work = context, forms, None
        self.all = torch.empty(context.ranks * forms.numbers, dtype=forms.dtype, device=device)
        make = torch.empty if written else torch.zeros
        self.mine = make(forms.numbers, dtype=forms.dtype, device=device)

    def told(self, at):
        """A tensor of this rank."""
        return self.forms.part(self.mine, at)

    def send(self):
        if self.forms.numbers == 0:
            return
        rows, mine = self.all, self.mine
        if self.forms.dtype not in self._SENT:
            rows, mine = rows.view(torch.uint8), mine.view(torch.uint8)
        self.work = gather_rows(rows, mine, self.context.group)

    def wait(self):
        if self.work is not None:
            self.work.wait()
            self.work = None

    def of(self, rank, at):
        """A tensor of a rank, in its memory here."""
        return self.forms.part(self.all[rank * self.forms.numbers : (rank + 1) * self.forms.numbers], at)

    def column(self, at):
        """The real numbers of a tensor, a row for each rank."""
        start, end, *_ = self.forms.parts[at]
        return self.all.view(self.context.ranks, self.forms.numbers)[:, start:end]


def in_turn(device, exchanges, count, tell, take):
    """Tells and takes each piece. On the CPU everything is told first, and exchanges run beside the work. On a GPU an exchange
    is a kernel that waits for those of other ranks on a multiprocessor, which a pass wants for itself, so it has its turn."""
    for number in range(count):
        tell(number)
        if device.type != "cpu":
            exchanges[number].wait()
            take(number)
    if device.type == "cpu":
        for number in range(count):
            take(number)
    for exchange in exchanges:
        exchange.wait()
