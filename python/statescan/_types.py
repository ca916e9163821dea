"""Types that annotations are made of."""

from typing import Any, Literal, Protocol, TypeAlias, TypeVar


class Array(Protocol):
    """A PyTorch tensor, or an array of NumPy, CuPy or JAX."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...
    def __dlpack__(self, *arguments: Any, **options: Any) -> Any: ...


class Immutable(Array, Protocol):
    """An array of JAX, whose `at` makes changed copies: it cannot be changed in place."""

    @property
    def at(self) -> Any: ...


class Context(Protocol):
    """A context that `statescan.distributed.context` makes."""

    rank: int
    ranks: int

    def call(self, op: Any, served: Any, tensors: Any, options: Any) -> Any: ...


# results are of the kind of the first tensor
T = TypeVar("T", bound=Array)
J = TypeVar("J", bound=Immutable)

# the words of options, as the signatures of the native module have them
Discretization: TypeAlias = Literal["mamba", "zoh", "bilinear", "dirac"]
Activation: TypeAlias = Literal["silu", "swish"] | None
Kind: TypeAlias = Literal["rms", "layer", "none"]
Limits: TypeAlias = tuple[float, float] | None
# results are written to an array for the first one, or to one for each, with None for those that are made
Out: TypeAlias = Array | tuple[Array | None, Array | None] | None


class Cache(Protocol):
    """The states that layers take as `inference_params`: states by the numbers of layers, and how many steps they have seen."""

    key_value_memory_dict: dict[Any, Any]
    seqlen_offset: int
