"""The passes of operations over the ranks of a context, in PyTorch's library.

A slice turns the state `h` that enters it into `state + link(h)`. Ranks tell each other both, combine those of the ranks before
them in the order of the scan, and compute their slices from the state that comes out; gradients alike, from the last rank to
the first (`docs/maths/sequence_parallel.md`). On a GPU passes over long slices of few channels are in two phases, the first of
which does not depend on what enters the slice and gives what the rank tells. Elsewhere that is one more pass over the slice,
except where the rank's own pass gives it in time: nothing enters the first rank, and nobody listens to the last one. That ranks
need not wait for whole passes of each other, such a pass goes by pieces of its channels, each with an exchange, on the CPU
beside the work on the next ones; on a GPU a pass of one piece tells its summary first.
"""

import torch
from torch.compiler import is_dynamo_compiling

from .._gradients import dispatch, refuse_vmap, unrecorded
from .._operations import CAUSAL_CONV1D, GATED_DELTA_RULE, OPERATIONS_OF_TIME
from ..torch import _UNOBSERVED, _declare, _library, _New, _with_defaults
from ._board import there
from ._exchange import Exchange, Forms, form_of, in_turn, numbers_of, real_of
from ._links import Decays, Halo, Operators
from ._pieces import ends_of, plan_of, room_of
from ._slices import Call, agree, agreed

# contexts by the names of their groups
CONTEXTS = {}


def _through(continues, rank, state):
    """A state that enters a rank: zero in rows where a sequence starts there."""
    if continues.numel() == 0:
        return state
    rows = continues[rank].view(-1, *(1,) * (state.dim() - 1))
    return torch.where(rows, state, 0)


def _continues(context, slices, call, state):
    """Whether the sequence of each row goes on in each rank from the ranks before it; nothing if all of them do."""
    index = call.named("seq_idx")
    if index is None or state.dim() == len(call.op.outputs[1].layouts[-1]):
        return state.new_empty(0, dtype=torch.bool)
    if slices.lengths[context.rank] == 0:
        index = index.new_zeros(index.shape[0], 1)
    edges = torch.stack([index[:, -1], index[:, 0]] if call.reverse else [index[:, 0], index[:, -1]])
    exchange = Exchange(context, edges.device, Forms(form_of(edges)))
    exchange.told(0).copy_(edges)
    exchange.send()
    exchange.wait()
    found, last = [], None
    for rank in slices.order:
        begins, ends = exchange.of(rank, 0)
        through = slices.lengths[rank] == 0 or last is None
        found.append((rank, torch.ones_like(begins, dtype=torch.bool) if through else begins == last))
        last = last if slices.lengths[rank] == 0 else ends
    return torch.stack([mask for _, mask in sorted(found, key=lambda item: item[0])])


def _keeps_links(context):
    """Whether gradients go through the slice of a rank to that of another one."""
    return context.ranks > 2


def _forward(op, link, context, save, tensors, options):
    call = Call(op, tensors, options)
    slices, numbers, ((y, state), room) = agree(
        context, call, save, lambda: (call.results(), room_of(context, link, call) if save else None)
    )
    call = call.on_slice(slices)
    plan = plan_of(context, link, call, slices, state)
    given = call.tensors[call.initial]
    own = plan.tells_own and not slices.before
    entering = torch.empty_like(state)
    if not slices.before:
        # all others are told what enters them
        entering.zero_() if given is None else entering.copy_(given)
    continues = _continues(context, slices, call, state)
    pieces, kept, exchanges, ends = plan.pieces(call), plan.kept(room), [], ends_of(call, slices, False)

    def compute(number):
        piece = pieces[number]
        piece.forward(piece.state(entering), (piece.result(y), piece.state(state)), kept[number], ends)

    def tell(number):
        exchange = Exchange(context, state.device, plan.forward[number], written=slices.before and slices.after)
        if own:
            compute(number)
            exchange.told(0).copy_(pieces[number].state(state))
        elif ends is not None:
            told = (exchange.told(0), exchange.told(1) if slices.before else None) if slices.after else (None, None)
            call.forward_ends(None if slices.before else entering, (ends, *told))
        elif slices.after and not slices.before:
            # the state that enters is known, and no link is needed
            pieces[number].forward(pieces[number].state(entering), (None, exchange.told(0)), None)
        elif slices.after:
            link.summarize(pieces[number], exchange.told(0), exchange.told(1))
        exchange.send()
        exchanges.append(exchange)

    def take(number):
        piece, exchange = pieces[number], exchanges[number]
        if slices.before:
            exchange.wait()
            for rank in slices.before:
                from_zero = exchange.of(rank, 0)
                if rank == slices.before[0]:
                    # the state that enters the whole is in its own state already
                    h = from_zero
                else:
                    h = from_zero + link.apply(exchange.of(rank, 1), _through(continues, rank, h))
            piece.state(entering).copy_(_through(continues, context.rank, h))
        if not own:
            compute(number)

    in_turn(entering.device, exchanges, len(pieces), tell, take)
    if not save:
        return [y, state]
    if _keeps_links(context):
        links = torch.cat([exchange.column(1) for exchange in exchanges], 1)
    else:
        links = exchanges[0].all.new_empty(0)
    return [y, state, *([] if room is None else [room]), links, entering, continues, numbers]


def _forward_without_data(op, link, context, save, tensors, options):
    call = Call(op, tensors, options)
    y, state = call.results()
    if not save:
        return [y, state]
    room, form = room_of(context, link, call), link.form(call, state)
    shape = (context.ranks, numbers_of(form)) if _keeps_links(context) else (0,)
    links = state.new_empty(shape, dtype=real_of(form[1]))
    matters = call.named("seq_idx") is not None and state.dim() < len(op.outputs[1].layouts[-1])
    continues = state.new_empty((context.ranks, state.shape[0]) if matters else (0,), dtype=torch.bool)
    numbers = torch.empty(3 * context.ranks, dtype=torch.int64, device="cpu")
    return [y, state, *([] if room is None else [room]), links, torch.empty_like(state), continues, numbers]


class _Gradients:
    """The gradients that are asked for, filled piece by piece. Those of what pieces share are added, in the type of states."""

    def __init__(self, call, needed):
        self.call = call
        wanted = [at for at, one in enumerate(needed) if one]
        self.initial = call.initial in wanted
        self.whole = {at: _New.like(call.tensors[at]) for at in wanted if at != call.initial}
        self.sums = {}

    def targets(self, piece):
        """The tensors that a piece writes its gradients to, by the numbers of arguments."""
        if piece.count == 1:
            return self.whole
        found = {at: piece.argument(at, whole) for at, whole in self.whole.items()}
        return {at: piece.carried(part) if self._is_shared(piece, at) else part for at, part in found.items()}

    def _is_shared(self, piece, at):
        return piece.argument(at, self.whole[at]) is self.whole[at]

    def add(self, piece, found):
        if piece.count == 1:
            return
        for at, part in found.items():
            if self._is_shared(piece, at):
                self.sums[at] = self.sums[at].add_(part) if at in self.sums else part

    def all(self, entered):
        """All of them in order; `entered` is the gradient of the initial state, None where it has none."""
        for at, total in self.sums.items():
            self.whole[at].copy_(total)
        if self.initial:
            initial = _New.like(self.call.tensors[self.call.initial])
            if entered is not None and entered.is_complex() and not initial.is_complex():
                # a real state is real whatever it enters
                entered = entered.real
            self.whole[self.call.initial] = initial.zero_() if entered is None else initial.copy_(entered)
        return [self.whole[at] for at in sorted(self.whole)]


def _backward(op, link, context, needed, tensors, options, saved, grad_y, grad_state):
    *kept, links, entering, continues, numbers = saved
    call = Call(op, tensors, options)
    slices = agreed(context, call, numbers)
    call = call.on_slice(slices)
    plan = plan_of(context, link, call, slices, entering)
    pieces = plan.pieces(call)
    room = None if op.keeps_result or not kept else kept[0]
    rooms = [piece.result(kept[0]) for piece in pieces] if op.keeps_result else plan.kept(room)
    parts = links.split([forms.numbers for forms in plan.links], 1) if len(slices.after) > 1 else None
    grads, entered = _Gradients(call, needed), torch.empty_like(entering)
    exchanges, ends = [], ends_of(call, slices, True)

    def cotangents(piece, behind=None):
        own = None if grad_state is None else piece.state(grad_state)
        if behind is not None:
            own = behind if own is None else own + behind
        return None if grad_y is None else piece.result(grad_y), own

    def compute(number, behind=None):
        piece = pieces[number]
        targets = grads.targets(piece)
        with_state = {**targets, call.initial: piece.state(entered)}
        piece.backward(piece.state(entering), rooms[number], cotangents(piece, behind), with_state, ends)
        grads.add(piece, targets)

    own = plan.tells_own and not slices.after

    def tell(number):
        piece = pieces[number]
        exchange = Exchange(context, entered.device, plan.backward[number], written=own or slices.before)
        if own:
            compute(number)
            exchange.told(0).copy_(piece.state(entered))
        elif ends is not None:
            piece.backward_ends(entering, cotangents(piece), (ends, exchange.told(0)))
        elif slices.before:
            link.flowing(piece, piece.state(entering), rooms[number], cotangents(piece), exchange.told(0))
        exchange.send()
        exchanges.append(exchange)

    def take(number):
        behind = None
        if slices.after:
            exchanges[number].wait()
        for rank in reversed(slices.after):
            flowing = exchanges[number].of(rank, 0)
            if behind is not None:
                through = plan.links[number].part(parts[number][rank], 0)
                flowing = flowing + link.transpose(through, behind)
            behind = _through(continues, rank, flowing)
        if not own:
            compute(number, behind)

    in_turn(entering.device, exchanges, len(pieces), tell, take)
    return grads.all(None if slices.before else entered)


def _context(name):
    """A context; it is refused where its group is there no more."""
    context = CONTEXTS[name]
    there(context.held)
    return context


def _define(op, link):
    """The forward and the backward pass, which the compiler does not look into: it takes a context by its name."""
    inputs, tensors = len(op.tensors) + len(op.options), len(op.tensors)
    arguments, complete = _with_defaults(op)

    def forward(compute):
        def run(name, save, *others):
            others = complete(others)
            return compute(op, link, _context(name), save, others[:tensors], others[tensors:])

        return run

    def backward(name, needed, *others):
        context = _context(name)
        return _backward(op, link, context, needed, others[:tensors], others[tensors:inputs], *others[inputs:])

    def chosen(name, save, *others):
        return save, _context(name).with_gradient[op.name], complete(others)

    def backward_without_data(name, needed, *others):
        return [_New.like(tensor) for tensor, wanted in zip(others, needed) if wanted]

    given = [
        *_declare(op.tensors),
        *(name for name, _ in op.options),
        "Tensor[] saved",
        "Tensor? grad_first",
        "Tensor? grad_second",
    ]
    passes = (
        ("forward", ["bool save", *arguments], forward(_forward), forward(_forward_without_data)),
        ("backward", ["bool[] needed", *given], backward, backward_without_data),
    )
    found = []
    for word, parameters, compute, allocate in passes:
        name = f"{op.name}_ranks_{word}"
        _library.define(f"{name}(str context, {', '.join(parameters)}) -> Tensor[]")
        torch.library.register_fake(f"statescan::{name}", allocate, lib=_library)
        for device in ("CPU", "CUDA"):
            _library.impl(name, unrecorded(compute), device)
        registered = getattr(torch.ops.statescan, name).default
        refuse_vmap(op, registered, _library)
        if word == "forward":
            dispatch(registered, _library, chosen)
        found.append(_straight(registered, compute, inputs))
    return tuple(found)


def _straight(registered, compute, inputs):
    """A pass that goes past the dispatcher where nobody listens to it."""

    def run(name, first, *others):
        if is_dynamo_compiling() or others[0].is_meta:
            return registered(name, first, *others)
        # saved tensors are a list
        plain = others if len(others) <= inputs else (*others[:inputs], *others[inputs], *others[inputs + 1 :])
        way = registered if _UNOBSERVED.of(plain) is None else compute
        return way(name, first, *others)

    return run


_LINKS = {CAUSAL_CONV1D: Halo, GATED_DELTA_RULE: Operators}
PASSES = {op.name: _define(op, _LINKS.get(op, Decays)(op)) for op in OPERATIONS_OF_TIME}
