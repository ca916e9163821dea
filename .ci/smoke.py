"""Whether an installed package computes: a selective scan against a plain loop, and with PyTorch its gradients too."""

import importlib.util
import platform

import numpy as np

import statescan


def numbers(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def scanned(x, dt, a, b, c):
    """The recurrence, one step after the other."""
    state, y = np.zeros((*x.shape[:2], a.shape[1])), np.zeros(x.shape)
    for t in range(x.shape[2]):
        decay = np.exp(dt[:, :, t, None] * a)
        state = decay * state + (dt * x)[:, :, t, None] * b[:, None, :, t]
        y[:, :, t] = (state * c[:, None, :, t]).sum(-1)
    return y


x, dt, a, b, c = numbers(2, 20, 33), np.abs(numbers(2, 20, 33)), -np.abs(numbers(20, 8)), numbers(2, 8, 33), numbers(2, 8, 33)
expected = scanned(x, dt, a, b, c)
y, _ = statescan.selective_scan(x, dt, a, b, c)
assert np.abs(y - expected).max() < 1e-4 * np.abs(expected).max()
frameworks = "NumPy"

if importlib.util.find_spec("torch"):
    import torch

    arguments = [torch.tensor(value, requires_grad=True) for value in (x, dt, a, b, c)]
    y, _ = statescan.selective_scan(*arguments)
    assert (y.detach() - torch.tensor(expected)).abs().max() < 1e-4 * np.abs(expected).max()
    y.sum().backward()
    # the sum's gradient by x at the last step is dt times the product of B and C
    last = (arguments[1] * (arguments[3] * arguments[4]).sum(1, keepdim=True))[:, :, -1]
    assert (arguments[0].grad[:, :, -1] - last).abs().max() < 1e-4 * last.abs().max()
    frameworks += f", PyTorch {torch.__version__}"

print(f"statescan {statescan.__version__} computes on {platform.machine()}, Python {platform.python_version()}, {frameworks}")
