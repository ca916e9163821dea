"""S5's layer: its recurrence, steps, and 16 bits."""

import pytest
import torch

from layers import BATCH, SEQLEN
from statescan import nn


@pytest.mark.parametrize("conj_sym", [False, True])
@pytest.mark.parametrize("discretization", ["bilinear", "zoh", "dirac"])
def test_s5_is_its_recurrence(discretization, conj_sym):
    torch.manual_seed(2)
    layer = nn.S5(6, 4, discretization, conj_sym, step_rescale=2.0)
    x, events = torch.randn(BATCH, SEQLEN, 6), torch.rand(BATCH, SEQLEN, 1) + 0.5
    A, B, C = (torch.view_as_complex(p.detach().double()) for p in (layer.A, layer.B, layer.C))
    dt = 2.0 * layer.log_dt.detach().double().exp()
    half = dt * A / 2
    gain = {"bilinear": dt / (1 - half), "zoh": torch.expm1(dt * A) / A, "dirac": torch.ones_like(A)}[discretization]
    with torch.no_grad():
        for times in (None, events):
            state, expected = torch.zeros(BATCH, 4, dtype=A.dtype), []
            for t in range(SEQLEN):
                z = dt * A if times is None else times[:, t].double() * dt * A
                decay = (1 + z / 2) / (1 - z / 2) if discretization == "bilinear" else torch.exp(z)
                state = decay * state + gain * (x[:, t].to(A.dtype) @ B.T)
                expected.append((2 if conj_sym else 1) * (state @ C.T).real + layer.D * x[:, t])
            expected = torch.stack(expected, dim=1).float()
            assert torch.allclose(layer(x, times), expected, atol=1e-4)
            memory = layer.allocate_inference_cache(BATCH, SEQLEN)
            first = layer(x[:, :9], None if times is None else times[:, :9], inference_cache=memory)
            more = layer(x[:, 9:13], None if times is None else times[:, 9:13], inference_cache=memory)
            steps = [layer.step(x[:, t], memory, None if times is None else times[:, t])[0] for t in range(13, SEQLEN)]
            assert memory["seqlen_offset"] == SEQLEN
            assert torch.allclose(torch.cat([first, more, *steps], dim=1), expected, atol=1e-4)


def test_s5_learns():
    layer = nn.S5(6, 4)
    layer(torch.randn(BATCH, SEQLEN, 6)).square().mean().backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in layer.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("conj_sym", [False, True])
def test_s5_in_16_bits(conj_sym, dtype):
    """With parameters of 16 bits as with the same ones in float32, but for what the result loses."""
    layer = nn.S5(6, 4, conj_sym=conj_sym).to(dtype)
    wide = nn.S5(6, 4, conj_sym=conj_sym)
    wide.load_state_dict(layer.state_dict())
    x, times = torch.randn(BATCH, SEQLEN, 6).to(dtype), torch.rand(BATCH, SEQLEN).to(dtype)
    expected = wide(x.float(), times.float())
    got = layer(x, times)
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), expected, rtol=1e-2, atol=1e-2 * expected.abs().max().item())
    got.float().square().mean().backward()
    expected.square().mean().backward()
    for p, other in zip(layer.parameters(), wide.parameters()):
        assert p.grad.dtype == dtype
        torch.testing.assert_close(p.grad.float(), other.grad, rtol=2e-2, atol=2e-2 * other.grad.abs().max().item())
    with torch.no_grad():
        memory = layer.allocate_inference_cache(BATCH, SEQLEN)
        parts = [layer(x[:, :9], times[:, :9], inference_cache=memory)]
        parts += [layer.step(x[:, t], memory, times[:, t])[0] for t in range(9, SEQLEN)]
    torch.testing.assert_close(torch.cat(parts, 1).float(), expected, rtol=1e-2, atol=1e-2 * expected.abs().max().item())
