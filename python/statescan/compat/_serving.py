"""What the signatures of serving engines have in common: slots of pools, rows of several tokens, the state after each of them.

Nothing here looks at the values of a tensor from the host, except for pieces of sequences: calls can be recorded in a CUDA graph.
"""

import torch

from .. import functions
from .._pool import StatePool


def refuse(name, **options):
    """Refuses options that ask for what is not here."""
    for option, value in options.items():
        if value is not None and value is not False:
            raise NotImplementedError(f"{name} of statescan has no `{option}`")


def filled(out, y):
    """What is returned: `out` with the values of y, or y where there is none."""
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


def _cut(bounds, count):
    """The bounds of twice as many sequences: the first `count` tokens of each row, and those that are left of it."""
    starts, ends = bounds[:-1], bounds[1:]
    middle = torch.minimum(starts + count, ends)
    return torch.cat([bounds[:1], torch.stack([middle, ends], dim=1).flatten().to(bounds.dtype)])


def _with_rest(slots):
    """The slots of rows that are cut: what is left of a row has none."""
    return torch.stack([slots, torch.full_like(slots, -1)], dim=1).flatten()


def after_each(scan, states, bounds, read, write):
    """y of rows of tokens that start from slots, and leave the state after their token t in slot write[:, t].

    A row has at most as many tokens as `write` has columns, and is scanned once for each of them: states stay in the precision
    of a scan from token to token, and none is copied. `scan` takes an initial state and bounds.
    """
    if write.shape[1] == 1:
        write = torch.where(read >= 0, write[:, 0], -1)
        return scan(StatePool(states, read, write), bounds)[0]
    lengths = bounds.diff()[:, None]
    inside = (torch.arange(write.shape[1], device=write.device) < lengths) & (read >= 0)[:, None]
    write = torch.where(inside, write, -1)
    # what a row reads is written over at the end only, when nothing reads it any more
    over = inside & (write == read[:, None])
    first = torch.where(over, -1, write)
    for token in range(write.shape[1]):
        pool = StatePool(states, _with_rest(read), _with_rest(first[:, token]))
        y, _ = scan(pool, _cut(bounds, token + 1))
    last = torch.where(over.any(1), read, -1)
    scan(StatePool(states, _with_rest(last), _with_rest(last)), _cut(bounds, over.int().argmax(1) + 1))
    return y


def fill_each(scan, states, bounds, read, buffer, buffer_rows=None):
    """Leaves the state after token t of row i in buffer[i, t], or in that of row buffer_rows[i]; the pool is only read."""
    before = states[read.clamp(min=0).long()]
    before = torch.stack([before, torch.zeros_like(before)], dim=1).flatten(0, 1)
    rows = torch.arange(read.shape[0], device=read.device) if buffer_rows is None else buffer_rows
    for token in range(buffer.shape[1]):
        _, after = scan(before, _cut(bounds, token + 1))
        inside = (token < bounds.diff()) & (read >= 0)
        put(buffer[:, token], torch.where(inside, rows, -1), after[::2])


def in_pieces(scan, pieces, before):
    """y and the states at the ends of pieces, one behind the other: for sequences whose states within are asked for.

    Each piece is (start, stop, sequence); `before` has the state before the first piece of each sequence, or is None. `scan`
    takes a slice of the tokens and an initial state.
    """
    results, states, last = [], [], None
    for start, stop, sequence in pieces:
        if sequence != last:
            state = None if before is None else before[sequence : sequence + 1]
        y, state = scan(slice(start, stop), state)
        results.append(y)
        states.append(state)
        last = sequence
    return torch.cat(results, dim=1), torch.cat(states)


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


def state_scan(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus):
    """The scan that a step of (tokens, nheads, dim) belongs to, and the states as it takes them."""
    tied = [tensor for tensor in (dt, dt_bias) if tensor is not None]
    if A.stride(-1) == 0 and A.stride(-2) == 0 and all(tensor.stride(-1) == 0 for tensor in tied):
        bias = None if dt_bias is None else dt_bias[:, 0]

        def scan(initial, bounds):
            y, states = functions.ssd(
                x[None],
                dt[None, ..., 0],
                A[:, 0, 0],
                B[None],
                C[None],
                D=D,
                initial_state=initial,
                z=None if z is None else z[None],
                dt_bias=bias,
                dt_softplus=dt_softplus,
                cu_seqlens=bounds,
            )
            return y[0], states

        return scan, state

    def in_time(tensor):
        return None if tensor is None else tensor.flatten(1).t()[None]

    def of_channels(tensor):
        return None if tensor is None else tensor.flatten()

    def general(initial, bounds):
        y, states = functions.selective_scan(
            in_time(x),
            in_time(dt),
            A.flatten(0, 1),
            B.permute(1, 2, 0)[None],
            C.permute(1, 2, 0)[None],
            of_channels(D),
            initial,
            z=in_time(z),
            dt_bias=of_channels(dt_bias),
            dt_softplus=dt_softplus,
            cu_seqlens=bounds,
        )
        return y[0].t().unflatten(1, x.shape[1:]), states

    # a pool whose slots lie apart is viewed, too; one that cannot be is refused, because a copy would not be changed in place
    return general, state.view(state.shape[0], -1, state.shape[-1])


def with_heads(state, x, dt, A, B, C, D, z, dt_bias):
    """The tensors of a step with an axis of heads."""

    def of_rows(tensor):
        return tensor[:, None] if tensor is not None and tensor.dim() == 2 else tensor

    state = state[:, None] if state.dim() == 3 else state
    A = A[None] if A.dim() == 2 else A
    D, dt_bias = (tensor[None] if tensor is not None and tensor.dim() == 1 else tensor for tensor in (D, dt_bias))
    return state, of_rows(x), of_rows(dt), A, of_rows(B), of_rows(C), D, of_rows(z), dt_bias


def delta_scan(q, k, v, g, beta, **options):
    """The gated delta rule of packed tokens, (1, tokens, ..), by initial states with keys first and bounds."""

    def scan(initial, bounds):
        return functions.gated_delta_rule(q, k, v, g, beta, initial, cu_seqlens=bounds, **options)

    return scan


def packed(*tensors):
    """Rows of (batch, tokens, ..) one behind the other, (1, batch * tokens, ..)."""
    return [None if tensor is None else tensor.flatten(0, 1)[None] for tensor in tensors]


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
        # what is taken from outside of a row is left as it was below
        numbers = (starts + steps - kept).clamp(min=0, max=max(tokens.shape[0] - 1, 0))
        old = self.states[self.slots.clamp(min=0).long()]
        new = torch.where((steps < kept + lengths)[:, None], tokens[numbers].transpose(1, 2).to(old.dtype), old)
        new[:, :, :kept] = self.before[:, :, 1:]
        put(self.states, torch.where(lengths[:, 0] > 0, self.slots, -1), new)
