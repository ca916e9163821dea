"""Norms with residual sums, as `mamba_ssm` has them."""

import pytest
import torch
from torch.nn.functional import layer_norm, linear, rms_norm, silu

from statescan import functions
from statescan.compat import layer_norm as norms


class TestNormsWithResiduals:
    @pytest.mark.parametrize("is_rms_norm", [False, True])
    def test_sums_and_norms(self, is_rms_norm):
        torch.manual_seed(3)
        x, x1, residual, weight, weight1, bias = torch.randn(6, 4, 8, dtype=torch.float64)
        weight, weight1, bias = weight[0], weight1[0], bias[0]
        rowscale = torch.rand(4, dtype=torch.float64)

        def plain(total, weight, bias):
            if is_rms_norm:
                y = rms_norm(total, (8,), weight, 1e-6)
                return y if bias is None else y + bias
            return layer_norm(total, (8,), weight, bias, 1e-6)

        options = {"is_rms_norm": is_rms_norm}
        assert torch.allclose(norms.layer_norm_fn(x, weight, bias, **options), plain(x, weight, bias))
        y, total = norms.layer_norm_fn(x, weight, None, residual, prenorm=True, rowscale=rowscale, **options)
        assert torch.allclose(total, rowscale[:, None] * x + residual) and torch.allclose(y, plain(total, weight, None))
        y, y1, total = norms.layer_norm_fn(x, weight, bias, residual, x1, weight1, prenorm=True, **options)
        assert torch.allclose(total, x + x1 + residual) and torch.allclose(y1, plain(total, weight1, None))
        y = norms.layer_norm_linear_fn(x, weight, bias, x1, residual[:, 0], **options)
        assert torch.allclose(y, linear(plain(x, weight, bias), x1, residual[:, 0]))

    def test_the_residual_keeps_its_type(self):
        x = torch.randn(4, 8).bfloat16()
        norm = norms.RMSNorm(8, dtype=torch.bfloat16)
        assert list(norm.state_dict()) == ["weight"] and norm.bias is None
        assert norm(x).dtype == torch.bfloat16
        assert norm(x, prenorm=True)[1].dtype == torch.bfloat16
        assert norm(x, prenorm=True, residual_in_fp32=True)[1].dtype == torch.float32
        y, total = norm(x, x.double(), prenorm=True)
        assert (y.dtype, total.dtype) == (torch.bfloat16, torch.float64)

    def test_dropout_is_for_training(self):
        norm = norms.RMSNorm(1000, dropout_p=0.5)
        x = torch.ones(1, 1000)
        assert 300 < norm(x).eq(0).sum() < 700
        assert norm.eval()(x).ne(0).all()


class TestWhatIsKept:
    """The gradient of a norm behind a residual sum needs the sum alone."""

    @pytest.mark.parametrize("x_type", [torch.bfloat16, torch.float32])
    @pytest.mark.parametrize("residual_type", [torch.bfloat16, torch.float32])
    def test_the_sum_in_the_place_of_what_is_added(self, x_type, residual_type):
        x, residual = (torch.randn(4, 8).to(dtype).requires_grad_() for dtype in (x_type, residual_type))
        weight = torch.randn(8, requires_grad=True)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
            y, total = functions.norm(x, weight, residual=residual)
        merged = residual_type == torch.float32
        addresses = [tensor.data_ptr() for tensor in kept]
        assert (total.data_ptr() in addresses) == merged and (x.data_ptr() in addresses) != merged
        cotangents = torch.randn_like(y), torch.randn_like(total)
        got = torch.autograd.grad((y, total), (x, residual, weight), cotangents)
        wide = [tensor.detach().double().requires_grad_() for tensor in (x, residual, weight)]
        plain = wide[0] + wide[1]
        results = rms_norm(plain, (8,), wide[2], 1e-5), plain
        expected = torch.autograd.grad(results, wide, [tensor.double() for tensor in cotangents])
        bound = 2e-2 if torch.bfloat16 in (x_type, residual_type) else 1e-5
        for found, wanted, tensor in zip(got, expected, (x, residual, weight)):
            assert found.dtype == tensor.dtype
            assert torch.allclose(found.double(), wanted, rtol=bound, atol=bound)

    @pytest.mark.parametrize("wanted", ["x", "residual", "weight"])
    def test_one_gradient_alone(self, wanted):
        tensors = {"x": torch.randn(4, 8), "weight": torch.randn(8), "residual": torch.randn(4, 8)}
        tensors[wanted].requires_grad_()
        y, total = functions.norm(**tensors)
        (y * torch.arange(8.0)).sum().backward()
        wide = {name: tensor.detach().double() for name, tensor in tensors.items()}
        wide[wanted].requires_grad_()
        (rms_norm(wide["x"] + wide["residual"], (8,), wide["weight"], 1e-5) * torch.arange(8.0)).sum().backward()
        assert torch.allclose(tensors[wanted].grad.double(), wide[wanted].grad, rtol=1e-4, atol=1e-4)

    def test_a_scaled_residual_without_a_norm(self):
        r = torch.Generator().manual_seed(3)
        shapes = {"x": (2, 9, 4, 16), "z": (2, 9, 4, 16), "residual": (2, 9, 4, 16), "residual_scale": (2, 9, 4, 1)}
        wide = {name: torch.randn(shape, generator=r, dtype=torch.float64).requires_grad_() for name, shape in shapes.items()}
        total = wide["x"] + wide["residual_scale"] * wide["residual"]
        expected, cotangent = total * silu(wide["z"]), torch.randn(shapes["x"], generator=r, dtype=torch.float64)
        by = torch.autograd.grad(expected, list(wide.values()), cotangent)
        for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
            tensors = {name: tensor.detach().to(dtype).requires_grad_() for name, tensor in wide.items()}
            y = functions.norm(**tensors, kind="none")
            found = torch.autograd.grad(y, list(tensors.values()), cotangent.to(dtype))
            for got, wanted in zip((y, *found), (expected, *by)):
                assert (got - wanted).norm() < bound * wanted.norm()
