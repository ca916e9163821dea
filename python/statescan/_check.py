"""A look at the values of a call, for those who wonder about its results."""

import inspect
from collections.abc import Callable
from typing import Any


def _values(tensor):
    """A tensor as a NumPy array in float32 or better."""
    import numpy

    if hasattr(tensor, "detach"):
        tensor = tensor.detach().resolve_conj().cpu()
        tensor = tensor.float() if tensor.element_size() < 4 and tensor.is_floating_point() else tensor
        tensor = tensor.numpy()
    found = tensor.get() if type(tensor).__module__.partition(".")[0] == "cupy" else numpy.asarray(tensor)
    return found if found.dtype.kind in "iubc" or found.dtype.itemsize >= 4 else found.astype("float32")


def _not_finite(name, values):
    import numpy

    count = 0 if values.dtype.kind not in "fc" else int(values.size - numpy.isfinite(values).sum())
    if count:
        yield f"`{name}` has {count} values of {values.size} that are infinite or NaN"


def _steps(given):
    """The steps that multiply the input, as the call makes them, with the name of their argument."""
    import numpy

    name = next((name for name in ("dt", "delta") if given.get(name) is not None), None)
    if name is None or given.get("dt_softplus"):
        return
    steps = given[name]
    if given.get("dt_limit") is not None:
        steps = numpy.clip(steps, *given["dt_limit"])
    if given.get("dt_bias") is None and steps.size and steps.min() <= 0:
        cure = "; with `dt_softplus` they are positive" if "dt_softplus" in given else ""
        yield f"`{name}` has steps that are not positive, down to {steps.min():.4g}{cure}"


def _decays(given):
    """Says whether A lets a state grow."""
    import numpy

    A = given.get("A")
    if A is None or given.get("dt_a") is not None or not A.size or not A.real.max() > 0:
        return
    states = A.shape[-1] if A.ndim > 1 else 0
    is_log = A.dtype.kind == "f" and states and numpy.allclose(A, numpy.log(numpy.arange(1, states + 1)), atol=1e-3)
    if is_log or (A.dtype.kind == "f" and A.min() >= 0):
        yield "`A` is not negative and looks like A_log, the logarithm of a decay: pass -exp(A_log)"
    else:
        yield f"`A` has positive real parts, up to {A.real.max():.4g}: states grow with time where steps are positive"


def _factors(given):
    """Says whether factors let the states of a linear scan or of the gated delta rule grow."""
    a, g, beta = given.get("a"), given.get("g"), given.get("beta")
    if a is not None and a.size and abs(a).max() > 1:
        yield f"`a` has factors up to {abs(a).max():.4g} in size: states grow with time where they are above 1"
    if g is not None and given.get("A_log") is None and g.size and g.max() > 0:
        yield f"`g` is the logarithm of a decay and has values up to {g.max():.4g}: states grow where it is above 0"
    if beta is not None and not given.get("beta_sigmoid") and beta.size and not 0 <= beta.min() <= beta.max() <= 2:
        yield f"`beta` is between {beta.min():.4g} and {beta.max():.4g}, and not between 0 and 1, or 2"


def check(function: Callable[..., Any], *arguments: Any, **options: Any) -> list[str]:
    """Looks at the values of a call, which is not made, and says what is suspicious: ``check(ssd, x, dt, A, B, C)``.

    The values come to the host; NumPy must be installed. Shapes and types are checked by the call itself.

    Args:
        function: one of this package.
        arguments, options: what it would be called with.

    Returns:
        Sentences, each of which names an argument; none if nothing is suspicious: values that are infinite or NaN, steps that are
        not positive, an A with a positive real part, or that looks like A_log, factors of more than 1.

    Examples:
        >>> x, dt, B = torch.randn(2, 8, 20), torch.rand(2, 8, 20), torch.randn(2, 4, 20)
        >>> check(statescan.selective_scan, x, dt - 1, -torch.rand(8, 4), B, B)[0][:39]
        '`dt` has steps that are not positive, d'
    """
    bound = inspect.signature(function).bind(*arguments, **options)
    bound.apply_defaults()
    given = {name: _values(value) if hasattr(value, "__dlpack__") else value for name, value in bound.arguments.items()}
    found = [words for name, value in given.items() if hasattr(value, "dtype") for words in _not_finite(name, value)]
    return [*found, *_steps(given), *_decays(given), *_factors(given)]
