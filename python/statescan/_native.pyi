"""The native functions, one for each kind of pass.

`number` is the operation's in `operations()`; `inputs` and `outputs` are in the order of its signature. An output that is None or
False is not computed; one that is True is made beside PyTorch's inputs, and those are returned. The place is the number of a CUDA
device, or -1 for the CPU; a stream there, and a number of threads here; and what allocates scratch memory there, called with a
tensor of the call and the number of float32 elements, None where PyTorch does; and whether products of float32 matrices may be
rounded to tf32 there.
"""

from collections.abc import Callable
from typing import Any

_Place = tuple[int, int, Callable[[Any, int], Any] | None, bool]

__version__: str
# the most tensors that an operation takes
MAX_ARGUMENTS: int

class UnknownArgument(TypeError):
    """An argument of a kind that the native functions do not know, found before anything is written."""

class Unobserved:
    """The place of a call's first tensor, one of PyTorch's, as long as nobody else has a say in the call: all that the call takes
    is plain, and what each of `observers` answers is nothing or zero. If somebody has, the call does nothing and answers None.
    `threads` is PyTorch's number, and `elsewhere` gives the place of a tensor that is not on the CPU."""

    def __init__(
        self, observers: tuple, threads: Callable[[], int], elsewhere: Callable[[Any], tuple[int, int, None, bool]]
    ) -> None: ...
    def of(self, arguments: tuple) -> _Place | None:
        """The place of several passes that take some of these arguments, the first of which is a tensor."""

def cores() -> int: ...
def choose_threads(threads: int) -> None: ...
def chosen_threads() -> int: ...
def cuda_devices() -> list[str]: ...
def operations() -> list[dict[str, Any]]: ...
def forward(number: int, inputs: tuple, outputs: tuple, place: _Place | Unobserved) -> tuple | None: ...
def backward(number: int, inputs: tuple, outputs: tuple, place: _Place | Unobserved) -> tuple | None: ...
def ends_len(number: int, inputs: tuple, place: _Place) -> tuple[int, int]:
    """How many numbers the first phases of a forward and of a backward pass keep; 0 where a pass is not in two phases."""

def forward_ends(number: int, inputs: tuple, outputs: tuple, place: _Place) -> tuple:
    """The first phase of a forward pass, which writes what it keeps, the state after the slice and its decay."""

def forward_rest(number: int, inputs: tuple, outputs: tuple, place: _Place) -> tuple:
    """The second phase; what the first one has kept is behind its inputs."""

def backward_ends(number: int, inputs: tuple, outputs: tuple, place: _Place) -> tuple:
    """The first phase of a backward pass, of inputs and cotangents: what it keeps, and the gradient by the state before."""

def backward_rest(number: int, inputs: tuple, outputs: tuple, place: _Place) -> tuple: ...
def summary(number: int, inputs: tuple, outputs: tuple, place: _Place) -> tuple: ...
def update(number: int, inputs: tuple, outputs: tuple, place: _Place | Unobserved) -> tuple | None: ...
def layer_forward(kind: str, save: bool, arguments: tuple, place: _Place | Unobserved, ranks: dict | None = None) -> list | None:
    """The forward pass of `kind`, "mamba_inner" or "mamba2_inner": two results, and what is kept for gradients if `save` says so.
    `ranks` are the passes over the ranks of a context, whose name is the last one of the arguments."""

def layer_backward(
    kind: str, needed: list[bool] | tuple[bool, ...], arguments: tuple, place: _Place | Unobserved, ranks: dict | None = None
) -> list | None:
    """The gradients that are needed; behind the arguments are what was kept, and the cotangents of both results."""

class Described:
    """A tensor that is not there yet, by the name of its type and its shape, among the inputs of `plan` and `scratch`."""

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None: ...

def handlers() -> tuple[int, int]:
    """The addresses of the handlers of XLA's custom calls, for the CPU and for CUDA."""

def plan(number: int, inputs: tuple, state: Described | None) -> list[float]:
    """Checks a call, of a step with its state, and gives its options as the handlers take them."""

def scratch(number: int, inputs: tuple, is_backward: bool, has_saved: bool, ordinal: int) -> int:
    """Elements of float32 that a pass needs on a CUDA device as scratch memory."""
