"""What lies between a layer's projections, as one function over the processes of a group, is that of the whole sequence."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import statescan.compat.mamba_ssm as mamba  # noqa: E402
import test_inner  # noqa: E402
from statescan.nn import Mamba, Mamba2  # noqa: E402
from test_distributed import B, rand, run_ranks, summed  # noqa: E402


def of_layer(tensors, weights, function=mamba.mamba_inner_fn, **options):
    """The result of a function between projections, and the gradients by name."""
    leaves = {name: t.detach().clone().requires_grad_() for name, t in tensors.items() if isinstance(t, torch.Tensor)}
    y = function(**{**tensors, **leaves}, **options)
    return y.detach(), dict(zip(leaves, torch.autograd.grad((y * weights).sum(), list(leaves.values()))))


def inner_functions(context):
    """What lies between a layer's projections is one function over ranks, too: results and gradients are the whole's."""
    cuts = ([20, 9], [1, 28]) if context.ranks == 2 else ([2, 1, 26], [9, 0, 20])
    weights = torch.linspace(-1, 1, 2 * 29 * test_inner.WIDTH, dtype=torch.float64).view(2, 29, -1)
    # the last one is compiled, too, on two ranks: a graph knows nothing of how many there are
    for name in ("plain", "biases and norms", "B given", "complex, with norms and biases"):
        tensors = test_inner.arguments(**test_inner.CASES[name], seqlen=29)
        timed = {"xz", "B"} & tensors.keys()
        whole, wanted = of_layer(tensors, weights)
        for lengths in cuts:
            start, length = sum(lengths[: context.rank]), lengths[context.rank]
            mine = {n: t.narrow(2, start, length) if n in timed else t for n, t in tensors.items()}
            own = weights.narrow(1, start, length)
            got, found = of_layer(mine, own, context=context)
            torch.testing.assert_close(got, whole.narrow(1, start, length))
            for n, gradient in found.items():
                pair = (gradient, wanted[n].narrow(2, start, length)) if n in timed else (summed(gradient), wanted[n])
                torch.testing.assert_close(*pair, msg=lambda words, n=n: f"{name}: {n}: {words}")  # noqa: B023
    if context.ranks == 2:
        program = torch.compile(mamba.mamba_inner_fn, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(of_layer(mine, own, program, context=context)[0], got)
    torch.manual_seed(7)
    u = torch.randn(B, 29, 16)
    for layer in (Mamba(16), Mamba2(16, d_state=8, headdim=8)):
        one, other = (layer(u.narrow(1, start, length), context=context) for _ in range(2))
        assert torch.equal(one, other) and "inner_ranks" in one.grad_fn.name()


def inner_functions_of_mamba2(context):
    """The same of Mamba-2: a norm, or a gate, or a unit beside, groups, sequences in a row, an initial state."""
    cuts = ([20, 9], [1, 28]) if context.ranks == 2 else ([2, 1, 26], [9, 0, 20])
    heads, headdim, states, unit, out = 4, 3, 5, 2, 6
    dim, first = heads * headdim, context.rank == 0
    torch.manual_seed(8)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64)

    for ngroups, normed, beside, index, initial in (
        (1, True, 0, False, False),
        (2, True, unit, True, False),
        (1, False, unit, False, True),
        (2, False, 0, True, True),
    ):
        convolved = dim + 2 * ngroups * states
        tensors = {"zxbcdt": normal(B, 29, 2 * beside + dim + convolved + heads), "conv1d_weight": normal(convolved, 4)}
        tensors |= {"conv1d_bias": normal(convolved), "dt_bias": normal(heads), "A": -rand(heads).double(), "D": normal(heads)}
        tensors |= {"outproj_weight": normal(out, dim + beside), "outproj_bias": normal(out)}
        tensors |= {"rmsnorm_weight": normal(dim)} if normed else {}
        tensors |= {"initial_states": normal(B, heads, headdim, states)} if initial else {}
        options = {"chunk_size": 16, "headdim": headdim, "ngroups": ngroups}
        numbers = torch.tensor([[0] * 3 + [1] * 8 + [2] * 18, [0] * 28 + [5]]) if index else None
        weights = normal(B, 29, out)
        function = mamba.mamba_split_conv1d_scan_combined
        whole, wanted = of_layer(tensors, weights, function, **options, seq_idx=numbers)
        for lengths in cuts:
            start, length = sum(lengths[: context.rank]), lengths[context.rank]
            own = (1, start, length)
            mine = {**tensors, "zxbcdt": tensors["zxbcdt"].narrow(*own)}
            options["seq_idx"] = None if numbers is None else numbers.narrow(*own)
            got, found = of_layer(mine, weights.narrow(*own), function, **options, context=context)
            torch.testing.assert_close(got, whole.narrow(*own))
            for n, gradient in found.items():
                if n == "zxbcdt":
                    pair = gradient, wanted[n].narrow(*own)
                elif n == "initial_states":
                    pair = gradient, wanted[n] if first else torch.zeros_like(gradient)
                else:
                    pair = summed(gradient), wanted[n]
                torch.testing.assert_close(*pair, msg=lambda words, n=n: f"{n}: {words}")
    if context.ranks == 2:
        program = torch.compile(function, fullgraph=True, backend="aot_eager")
        again, _ = of_layer(mine, weights.narrow(*own), program, **options, context=context)
        torch.testing.assert_close(again, got)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks(ranks):
    run_ranks(ranks, "gloo", (inner_functions, inner_functions_of_mamba2))
