"""What tests of the drop-ins share."""

import torch

from cases import Random
from statescan.compat.references import loops as reference


def agree(function, expected, tensors, **options):
    """Both functions give the same results, and the same gradients of random sums of them by every tensor that can have one."""

    def results_and_gradients(function):
        leaves = {name: tensor.clone().requires_grad_(not is_index(tensor)) for name, tensor in tensors.items()}
        results = function(**leaves, **options)
        results = results if isinstance(results, tuple) else (results,)
        r = Random(9)
        loss = sum((result * (r.complex if result.is_complex() else r.real)(*result.shape)).sum().real for result in results)
        wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
        gradients = torch.autograd.grad(loss, list(wanted.values()), materialize_grads=True)
        return {**{f"result {i}": t for i, t in enumerate(results)}, **dict(zip(wanted, gradients))}

    got, expected = results_and_gradients(function), results_and_gradients(expected)
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, msg=lambda m, name=name: f"{name}: {m}")


def is_index(tensor):
    return not (tensor.is_floating_point() or tensor.is_complex())


def chunk_scan(x, dt, A, B, C, D, chunk_size, z=None, initial_states=None, return_final_states=True, **options):
    """The reference of Mamba-2's scan with the arguments of `mamba_chunk_scan_combined`."""
    return reference.ssd(x, dt, A, B, C, D=D, initial_state=initial_states, z=z, **options)
