"""A look at values says what is suspicious, and nothing of what is usual."""

import numpy
import pytest

import statescan

GENERATOR = numpy.random.default_rng(0)
X, DT = GENERATOR.standard_normal((2, 6, 20)), GENERATOR.uniform(0.1, 1, (2, 6, 20))
A, B = -GENERATOR.uniform(0.1, 1, (6, 4)), GENERATOR.standard_normal((2, 4, 20))
A_LOG = numpy.log(numpy.broadcast_to(numpy.arange(1.0, 5), (6, 4)))
BAD = numpy.where(X > 2, numpy.nan, X)
HEADS = GENERATOR.standard_normal((2, 20, 3, 4))


def scan(x=X, dt=DT, A=A, **options):
    return statescan.check(statescan.selective_scan, x, dt, A, B, B, **options)


@pytest.mark.parametrize(
    "found, words",
    [
        (lambda: scan(), []),
        (lambda: scan(dt=-DT, dt_softplus=True), []),
        (lambda: scan(dt=DT - 0.5, dt_limit=(0.01, 1.0)), []),
        (lambda: scan(A=A + 1j), []),
        (lambda: scan(dt=-DT), ["`dt` has steps that are not positive"]),
        (lambda: scan(A=A_LOG), ["`A` is not negative and looks like A_log"]),
        (lambda: scan(A=A + 0.5), ["`A` has positive real parts, up to"]),
        (lambda: scan(A=0.5 + A * 1j), ["`A` has positive real parts, up to 0.5"]),
        (lambda: scan(BAD), [f"`x` has {numpy.isnan(BAD).sum()} values of 240 that are infinite or NaN"]),
        (lambda: statescan.check(statescan.linear_scan, X, X), ["`a` has factors up to"]),
        (lambda: statescan.check(statescan.simplified_scan, X, -DT[:, :4], A[0, :4] * 1j, B[0], B[0].T), ["`delta` has steps"]),
        # the logarithms of decays stand in the place of steps
        (
            lambda: statescan.check(statescan.ssd, HEADS, DT[0, 0, :, None] + 0 * HEADS[..., 0], 1 + A[:3, 0] * 0, B, B, dt_a=-X),
            [],
        ),
        (
            lambda: statescan.check(statescan.gated_delta_rule, HEADS, HEADS, HEADS, X, 3 * DT),
            ["`g` is the", "`beta` is between"],
        ),
    ],
)
def test_words(found, words):
    found = found()
    assert len(found) == len(words)
    assert all(one.startswith(start) for one, start in zip(found, words)), found


def test_tensors_of_frameworks():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x, dt, a, b = (torch.tensor(value, dtype=torch.bfloat16, requires_grad=True) for value in (X, -DT, A, B))
    (words,) = statescan.check(statescan.selective_scan, x, dt, a, b, b)
    assert words.startswith("`dt` has steps that are not positive, down to -")
    with pytest.raises(TypeError, match="missing"):
        statescan.check(statescan.selective_scan, x)
