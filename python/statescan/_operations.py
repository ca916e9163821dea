"""Arguments and results of each operation, whatever the framework, from the signatures of the native module.

The order of arguments and options is that of the signatures. `new` makes outputs: it is the one thing that differs from framework
to framework. The names of a tensor's sizes are letters, one for each axis of its layout.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from . import _native


@dataclass(frozen=True, eq=False)
class Argument:
    """A tensor that an operation takes."""

    name: str
    # the layouts that it may have, each of another rank
    layouts: tuple[str, ...]
    required: bool
    # whether its axes say how large the call is: not those of states and bounds, which depend on how sequences are packed
    sized: bool
    # the layouts by their ranks
    by_rank: dict[int, str] = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "by_rank", {len(layout): layout for layout in self.layouts})

    def layout(self, tensor) -> str | None:
        """The layout of a tensor's rank."""
        return self.by_rank.get(len(tensor.shape))


@dataclass(frozen=True, eq=False)
class Result:
    """A tensor that an operation gives."""

    name: str
    layouts: tuple[str, ...]
    # the argument whose shape it has; a result without one is a state
    like: str | None
    # the argument without which it is left out
    beside: str | None
    # ("of", [argument]), ("first", [argument, other]) for the first that is given, ("promoted", [argument, other]) or
    # ("carried", [arguments]): the type of states
    dtype: tuple[str, list[str]]
    # ("never", []), ("always", []), ("as", [arguments]) or ("without", [argument])
    complex: tuple[str, list[str]]
    longest_first: tuple[str, ...] = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "longest_first", tuple(sorted(self.layouts, key=len, reverse=True)))


class Operation:
    """One operation: passes with gradients, or a step that updates a state in place."""

    def __init__(self, description: dict[str, Any]):
        self.number: int = description["number"]
        self.name: str = description["name"]
        self.sizes = dict(description["sizes"])
        arguments = description["arguments"]
        self.arguments = tuple(Argument(a["name"], tuple(a["layouts"]), a["required"], a["sized"]) for a in arguments)
        # names of the tensors; those that may be None end in "?"
        self.tensors = tuple(a["name"] if a["required"] else f"{a['name']}?" for a in arguments)
        # types and names of the rest, and their defaults
        self.options = tuple(item for option in description["settings"] for item in option["schema"])
        # how many of the tensors, from the first, have gradients
        self.differentiable = sum(a["gradient"] for a in arguments)
        self.outputs = tuple(
            Result(r["name"], tuple(r["layouts"]), r["like"], r["beside"], tuple(r["dtype"]), tuple(r["complex"]))
            for r in description["results"]
            if r["cotangent"]
        )
        decay = description["decay"]
        # the factor by which a slice of time multiplies the state; None where there is no scan
        self.decay = decay and Result(
            decay["name"], tuple(decay["layouts"]), None, None, tuple(decay["dtype"]), tuple(decay["complex"])
        )
        # the numbers of the arguments whose sizes count where others disagree
        self._leaders: list[int] = description["leaders"]
        # the name of the argument that a step changes in place
        self.state: str | None = description["state"]
        saved = description["saved"] or {}
        # the result that the backward pass uses
        self.keeps_result: bool = "result" in saved
        # how states are saved for the backward pass; None if they are not
        self.saves: dict[str, Any] | None = saved if "layout" in saved else None
        # the sizes that results and saved states have
        self._needed = {letter for result in self.outputs if result.like is None for letter in result.layouts[0]}
        self._needed |= set("BL" + saved["layout"]) if self.saves else set()
        self._index = {argument.name: at for at, argument in enumerate(self.arguments)}
        # the number of the initial state, and the operation with a pool in its place
        self.initial = next((at for at, argument in enumerate(self.arguments) if argument.name.startswith("initial_state")), None)
        self.pooled: Operation | None = None
        # the step whose rows are tokens of sequences, between slots
        self.slotted: Operation | None = None
        # the number of the argument that is added to the first one, with which there is a second result, the sum; None without
        beside = next((result.beside for result in self.outputs if result.beside), None)
        self.adds: int | None = None if beside is None else self._index[beside]
        # the number of the argument that multiplies that before: the sum is no result then
        self.scales: int | None = self._index.get(f"{beside}_scale")
        self._option = {name.split()[-1]: at for at, (name, _) in enumerate(self.options)}
        # the names that others have for arguments and options, and the words that options may be
        given = (*arguments, *description["settings"])
        self._aliases = {alias: one["name"] for one in given for alias in one["aliases"]}
        self.words = {option["name"]: tuple(option["words"]) for option in description["settings"] if option["words"]}

    def __repr__(self):
        return f"<operation {self.name}>"

    def option(self, name):
        """The number of an option."""
        return self._option[name]

    def called(self, alias):
        """The name here of an argument or option that others call so; None if there is none."""
        return self._aliases.get(alias)

    def _named(self, name, tensors):
        return tensors[self._index[name]]

    def sizes_of(self, tensors):
        """The sizes of a call by their letters. What is wrong and not needed here is left to the native functions to refuse."""
        sizes: dict[str, Any] = {}
        wrong = None
        leaders = ((self.arguments[at], tensors[at]) for at in self._leaders)
        for argument, tensor in (*leaders, *zip(self.arguments, tensors)):
            if tensor is None or not argument.sized:
                continue
            shape = tensor.shape
            layout = argument.by_rank.get(len(shape))
            if layout is None:
                wrong = wrong or (argument, tensor)
                continue
            for letter, size in zip(layout, shape):
                sizes.setdefault(letter, size)
        if "W" in sizes:
            sizes["V"] = sizes["W"] - 1
        if wrong is not None and not self._needed <= sizes.keys():
            self._explain(tensors)
            argument, tensor = wrong
            self._wrong(argument.name, argument.layouts, tensor.shape)
        return sizes

    def _explain(self, tensors):
        """Lets the native functions say why shapes do not fit, which know what would help, unless sizes are symbols."""
        sizes = [tensor if tensor is None else tuple(tensor.shape) for tensor in tensors]
        if all(isinstance(size, int) for shape in sizes if shape is not None for size in shape):
            described = (None if shape is None else _native.Described("float32", shape) for shape in sizes)
            _native.plan(self.number, (*described, *(default for _, default in self.options)), None)

    def _wrong(self, name, layouts, shape):
        words = [self._words(layout) for layout in layouts]
        raise ValueError(f"{self.name}: `{name}` must have shape {' or '.join(words)}, got {tuple(shape)}")

    def _words(self, layout):
        names = [self.sizes.get(letter, letter) for letter in layout]
        return f"({', '.join(names)}{',' if len(names) == 1 else ''})"

    def is_complex(self, rule, new, tensors):
        kind, names = rule
        if kind == "as":
            return any(new.is_complex(self._named(name, tensors)) for name in names)
        if kind == "without":
            return self._named(names[0], tensors) is None
        return kind == "always"

    def _state_shape(self, result, sizes, tensors):
        """The shape of a state: for each row of the batch, or for each packed sequence."""
        # the number of sequences is no known size
        layout = next(layout for layout in result.longest_first if all(letter in sizes for letter in layout))
        own = tuple(sizes[letter] for letter in layout.removeprefix("B"))
        if "cu_seqlens" not in self._index:
            return tuple(sizes[letter] for letter in layout)
        bounds, index = self._named("cu_seqlens", tensors), self._named("seq_idx", tensors)
        if bounds is not None:
            if len(bounds.shape) != 1:
                self._wrong("cu_seqlens", ("K",), bounds.shape)
            return (bounds.shape[0] - 1, *own)
        initial = None if self.initial is None else tensors[self.initial]
        if index is not None and initial is not None and len(initial.shape) == len(own) + 2:
            return (sizes["B"], initial.shape[1], *own)
        return (sizes["B"], *own)

    def results(self, new, *arguments):
        """Room for the results."""
        return tuple(result for result in self.room(new, arguments) if result is not None)

    def room(self, new, arguments, out=(None, None)):
        """The arrays that results are written to: what `out` has, and what is made here; None for a result that is left out."""
        if all(own is not None for own in out):
            return out
        tensors = arguments[: len(self.arguments)]
        sizes = self.sizes_of(tensors)
        return tuple(
            self._result(result, new, sizes, tensors) if own is None and is_made else own
            for result, own, is_made in zip(self.outputs, out, self.made(tensors))
        )

    def made(self, tensors):
        """Whether each result is made: not one that goes with an argument that is None, or that is scaled."""
        is_scaled = self.scales is not None and tensors[self.scales] is not None
        return tuple(r.beside is None or (self._named(r.beside, tensors) is not None and not is_scaled) for r in self.outputs)

    def _result(self, result, new, sizes, tensors):
        rule, names = result.dtype
        beside = self._named(names[0], tensors)
        is_complex = self.is_complex(result.complex, new, tensors)
        if rule == "promoted":
            return new.like(self._named(result.like, tensors), promoted_with=beside)
        if rule == "first":
            return new.like(self._named(result.like, tensors), typed_as=self._named(names[0], tensors))
        if result.like is not None:
            return new.like(self._named(result.like, tensors), is_complex)
        shape = self._state_shape(result, sizes, tensors)
        if rule == "of":
            return new.empty(shape, beside)
        double = next((t for t in (self._named(name, tensors) for name in names) if new.is_double(t)), beside)
        return new.state(shape, double, is_complex)

    def saved(self, new, *arguments):
        """Room for saved states: no fewer than are saved, however time divides into sequences. None if none are saved."""
        if self.saves is None:
            return None
        tensors = arguments[: len(self.arguments)]
        sizes, saves = self.sizes_of(tensors), self.saves
        if not saves["on_cuda"] and tensors[0].device.type == "cuda":
            return new.state((0,), tensors[0], False)
        numbers = 2 if self.is_complex(saves["complex"], new, tensors) else 1
        for letter in saves["layout"]:
            size = sizes[letter]
            if letter == saves["padded"]:
                size = (size + saves["lanes"] - 1) // saves["lanes"] * saves["lanes"]
            numbers = numbers * size
        numbers = sizes["L"] // saves["every"] * numbers
        if saves["each_step"]:
            numbers = numbers + sizes["L"] * math.prod(sizes[letter] for letter in saves["each_step"])
        return new.state((sizes["B"] * numbers + saves["spare"],), tensors[self._leaders[0]], False)

    def result(self, new, *arguments):
        """Room for what a step gives."""
        return self.results(new, *arguments)[0]


_ALL = {description["name"]: Operation(description) for description in _native.operations()}
# operations whose states lie in a pool, which take their functions' calls with one
POOLED = tuple(op for op in _ALL.values() if op.state == "state_pool")
for _op in POOLED:
    _ALL[_op.name.removesuffix("_pooled")].pooled = _op
# steps between slots, which are what functions of steps call with slots to write
SLOTTED = tuple(op for op in _ALL.values() if op.name.endswith("_slots"))
for _op in SLOTTED:
    _ALL[_op.name.removesuffix("_slots")].slotted = _op
# every operation that has a function
BY_NAME = {name: op for name, op in _ALL.items() if op not in (*POOLED, *SLOTTED)}

SELECTIVE_SCAN = BY_NAME["selective_scan"]
SSD = BY_NAME["ssd"]
SIMPLIFIED_SCAN = BY_NAME["simplified_scan"]
S5_INNER = BY_NAME["s5_inner"]
LINEAR_SCAN = BY_NAME["linear_scan"]
CAUSAL_CONV1D = BY_NAME["causal_conv1d"]
NORM = BY_NAME["norm"]
TURNED_MAPS = BY_NAME["turned_maps"]
GATED_DELTA_RULE = BY_NAME["gated_delta_rule"]
GATED_DELTA_RULE_UPDATE = BY_NAME["gated_delta_rule_update"]
SELECTIVE_STATE_UPDATE = BY_NAME["selective_state_update"]
SIMPLIFIED_STATE_UPDATE = BY_NAME["simplified_state_update"]
CAUSAL_CONV1D_UPDATE = BY_NAME["causal_conv1d_update"]

# operations with gradients, and steps
OPERATIONS = tuple(op for op in BY_NAME.values() if op.state is None)
# operations whose steps depend on earlier ones, and which several ranks can share
OPERATIONS_OF_TIME = tuple(op for op in OPERATIONS if op not in (NORM, TURNED_MAPS))
STEPS = tuple(op for op in BY_NAME.values() if op.state is not None)
