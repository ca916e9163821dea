"""The signatures of serving engines have this in common: slots of pools, rows of several tokens, the state after each of them.

Nothing here looks at the values of a tensor from the host, except for pieces of sequences: calls can be recorded in a CUDA graph.
"""

import functools

import torch

from .. import functions
from .._pool import StatePool


def refuse(name, **options):
    """Refuses options that ask for what is not here."""
    for option, value in options.items():
        if value is not None and value is not False:
            raise NotImplementedError(f"{name} of statescan has no `{option}`")


def filled(out, y):
    """The result: `out` with the values of y, or y where there is none."""
    return y if out is None else out.copy_(y.reshape(out.shape))


def put(states, slots, values):
    """Does ``states[slots] = values`` for slots that exist; others are left."""
    kept = (slots >= 0) & (slots < states.shape[0])
    # the others repeat what one row does, so that no two rows write different values to one place
    row = torch.where(kept, torch.arange(slots.shape[0], device=slots.device), kept.int().argmax())
    slots = torch.where(kept, slots, 0)[row].long()
    values = values.to(states.dtype)[row]
    states[slots] = torch.where(kept.any(), values, states[slots])


def even_bounds(rows, tokens, device):
    """The bounds of rows of equal length."""
    return torch.arange(rows + 1, device=device) * tokens


def without_padding(read, write):
    """The slots that rows write: rows whose slot is padding write none."""
    return torch.where((read >= 0).reshape(-1, *[1] * (write.dim() - 1)), write, -1)


def fill_each(step, states, bounds, read, buffer, buffer_rows=None):
    """Leaves the state after token t of row i in buffer[i, t], or in that of row buffer_rows[i]; the pool is only read.

    `step` takes states, the slots that are read and written, and bounds.
    """
    rows, tokens = read.shape[0], buffer.shape[1]
    apart = states.new_empty(rows * (1 + tokens), *states.shape[1:])
    apart[:rows] = states[read.clamp(min=0).long()]
    own = torch.arange(rows, device=read.device)
    step(apart, own, rows + torch.arange(rows * tokens, device=read.device).view(rows, tokens), bounds)
    after = apart[rows:].unflatten(0, (rows, tokens))
    to = own if buffer_rows is None else buffer_rows
    for token in range(tokens):
        inside = read >= 0 if bounds is None else (token < bounds.diff()) & (read >= 0)
        put(buffer[:, token], torch.where(inside, to, -1), after[:, token])


def in_pieces(scan, pieces, before, like, shape):
    """y and the states at the ends of pieces, one behind the other: for sequences whose states within are asked for.

    Each piece is (start, stop, sequence); `before` has the state before the first piece of each sequence, or is None. `scan`
    takes a pool and the bounds of pieces, of a pool like this tensor with states of this shape.
    """
    of_sequences = {}
    for number, (_, stop, sequence) in enumerate(pieces):
        of_sequences.setdefault(sequence, []).append((number, stop))
    most = max(map(len, of_sequences.values()), default=0)
    bounds, write = [0], []
    for numbers, stops in (zip(*own) for own in of_sequences.values()):
        # a sequence of fewer pieces has some without steps, whose states go nowhere
        rest = most - len(numbers)
        bounds += [*stops, *[stops[-1]] * rest]
        write.append([*numbers, *[-1] * rest])
    rows = 0 if before is None else before.shape[0]
    states = like.new_empty(len(pieces) + rows, *shape, dtype=torch.promote_types(like.dtype, torch.float32))
    if rows:
        states[len(pieces) :] = before
    read = [len(pieces) + sequence if rows else -1 for sequence in of_sequences]
    index = functools.partial(torch.tensor, dtype=torch.int32, device=like.device)
    y = scan(StatePool(states, index(read), index(write).view(len(read), most)), index(bounds))
    return y, states[: len(pieces)]


def slots_of_rows(name, indices, to, accepted, null, rows):
    """The slot that each row reads, (rows,), and those it writes, (rows,) or with `accepted` (rows, tokens); None for its own.

    Rows whose slot is `null` are padding.
    """
    if indices is None:
        if to is not None or accepted is not None:
            option = "num_accepted_tokens" if to is None else "dst_state_batch_indices"
            raise ValueError(f"{name}: `{option}` must be None without `state_batch_indices`")
        return None, None

    def columns(tensor):
        tensor = torch.where(tensor == null, -1, tensor)[:rows]
        return tensor[:, None] if tensor.dim() == 1 else tensor

    indices = columns(indices)
    to = indices if to is None else columns(to).to(indices.dtype)
    if accepted is None:
        return indices[:, 0], to[:, 0]
    first = (accepted.long() - 1).clamp(min=0)
    return indices.gather(1, first[:, None])[:, 0], to


def state_step(x, dt, A, B, C, D, z, dt_bias, dt_softplus):
    """The step of tokens, (tokens, ..)."""

    def step(states, read, write, bounds):
        slots = {"state_batch_indices": read, "dst_state_batch_indices": write, "cu_seqlens": bounds}
        options = {"z": z, "dt_bias": dt_bias, "dt_softplus": dt_softplus, **slots}
        return functions.selective_state_update(states, x, dt, A, B, C, D, **options)

    return step


def delta_scan(q, k, v, g, beta, **options):
    """The gated delta rule of packed tokens, (1, tokens, ..), by initial states with keys first and bounds."""

    def scan(initial, bounds):
        return functions.gated_delta_rule(q, k, v, g, beta, initial, cu_seqlens=bounds, **options)

    return scan


def delta_step(q, k, v, g, beta, **options):
    """The step of tokens, (batch, tokens, ..), by states with keys first."""
    tokens = [None if tensor is None else tensor.flatten(0, 1) for tensor in (q, k, v, g, beta)]

    def step(states, read, write, bounds):
        slots = {"state_batch_indices": read, "dst_state_batch_indices": write, "cu_seqlens": bounds}
        return functions.gated_delta_rule_update(states, *tokens, **options, **slots)

    return step


class Window:
    """The slots of a convolution whose tokens may be refused: width - 2 inputs before the last call's tokens, then its tokens."""

    def __init__(self, states, slots, accepted, width):
        self.states, self.slots, self.width = states, slots, width
        first = (accepted.long() - 1).clamp(min=0)
        at = first[:, None] + torch.arange(width - 1, device=states.device)
        rows = slots.clamp(min=0).long()[:, None]
        # the inputs before the first token that is not kept, (rows, dim, width - 1)
        self.before = states[rows, :, at].transpose(1, 2)

    def move(self, tokens, bounds):
        """Leaves the inputs before a call, and its tokens, in the slots."""
        kept, steps = self.width - 2, torch.arange(self.states.shape[2], device=self.states.device)
        starts, lengths = bounds[:-1, None], bounds.diff()[:, None]
        # numbers that are taken from outside of a row are left as they were below
        numbers = (starts + steps - kept).clamp(min=0, max=max(tokens.shape[0] - 1, 0))
        old = self.states[self.slots.clamp(min=0).long()]
        new = torch.where((steps < kept + lengths)[:, None], tokens[numbers].transpose(1, 2).to(old.dtype), old)
        new[:, :, :kept] = self.before[:, :, 1:]
        put(self.states, torch.where(lengths[:, 0] > 0, self.slots, -1), new)
