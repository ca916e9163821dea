"""Drop-in layers and norms against plain PyTorch in float64, results and every gradient."""

import pytest
import torch
from torch.nn.functional import layer_norm, rms_norm, silu

from agreement import agree, chunk_scan
from cases import Random
from statescan.compat import mamba_ssm
from statescan.compat.references import loops as reference

NORMS = ("b_rms_weight", "c_rms_weight", "dt_rms_weight")


class TestMambaInner:
    BATCH, DIM, SEQLEN, DSTATE, RANK, OUT = 2, 6, 11, 4, 3, 5

    def tensors(self, is_complex=False, given=()):
        r = Random(6)
        maps = 2 * self.DSTATE if is_complex else self.DSTATE
        tensors = {
            "xz": r.real(self.BATCH, 2 * self.DIM, self.SEQLEN),
            "conv1d_weight": r.real(self.DIM, 1, 4),
            "conv1d_bias": r.real(self.DIM),
            "x_proj_weight": r.real(self.RANK + maps * (2 - len(given)), self.DIM),
            "delta_proj_weight": r.real(self.DIM, self.RANK),
            "out_proj_weight": r.real(self.OUT, self.DIM),
            "out_proj_bias": r.real(self.OUT),
            "A": (r.oscillation if is_complex else r.decay)(self.DIM, self.DSTATE),
            "D": r.real(self.DIM),
            "delta_bias": r.real(self.DIM),
        }
        for name in given:
            tensors[name] = r.real(self.DIM, self.DSTATE)
        return tensors

    @staticmethod
    def plain(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, D, **more):
        more = {name: more.get(name) for name in ("B", "C", "B_proj_bias", "C_proj_bias", "delta_bias", *NORMS)}
        dim, rank = A.shape[0], delta_proj_weight.shape[1]
        x = reference.causal_conv1d(xz[:, :dim], conv1d_weight[:, 0], conv1d_bias, activation="silu")
        rows = torch.einsum("rd,bdl->blr", x_proj_weight, x)
        dt, rows = rows[..., :rank], rows[..., rank:]
        count = A.shape[1] * (2 if A.is_complex() else 1)
        maps = {}
        for name in ("B", "C"):
            maps[name] = more[name]
            if maps[name] is None:
                projected, rows = rows[..., :count], rows[..., count:]
                if more[f"{name}_proj_bias"] is not None:
                    projected = projected + more[f"{name}_proj_bias"]
                if more[f"{name.lower()}_rms_weight"] is not None:
                    projected = rms_norm(projected, (count,), more[f"{name.lower()}_rms_weight"], 1e-6)
                if A.is_complex():
                    projected = torch.complex(projected[..., ::2], projected[..., 1::2])
                maps[name] = projected.transpose(1, 2)
        weight = more["dt_rms_weight"]
        if weight is not None:
            dt = rms_norm(dt, (rank,), weight if len(weight) == rank else None, 1e-6)
        dt = torch.einsum("dr,blr->bdl", delta_proj_weight, dt)
        if weight is not None and len(weight) == dim:
            dt = dt * weight[:, None]
        options = {"z": xz[:, dim:], "dt_bias": more["delta_bias"], "dt_softplus": True}
        y, _ = reference.selective_scan(x, dt, A, maps["B"], maps["C"], D, **options)
        y = torch.einsum("od,bdl->blo", out_proj_weight, y)
        return y if out_proj_bias is None else y + out_proj_bias

    @pytest.mark.parametrize("is_complex", [False, True])
    def test_gradients(self, is_complex):
        """Of `out_proj_bias`, too, with more than one row."""
        agree(mamba_ssm.mamba_inner_fn, self.plain, self.tensors(is_complex))

    @pytest.mark.parametrize("of_step", [RANK, DIM])
    def test_norms_and_biases_of_maps(self, of_step):
        r = Random(7)
        sizes = {name: of_step if name == "dt_rms_weight" else self.DSTATE for name in (*NORMS, "B_proj_bias", "C_proj_bias")}
        tensors = {**self.tensors(), **{name: r.real(size) for name, size in sizes.items()}}
        agree(mamba_ssm.mamba_inner_fn, self.plain, tensors)

    @pytest.mark.parametrize("given", [("B",), ("C",), ("B", "C")])
    def test_constant_maps(self, given):
        agree(mamba_ssm.mamba_inner_fn, self.plain, self.tensors(given=given))

    def test_without_biases(self):
        tensors = self.tensors()
        del tensors["conv1d_bias"], tensors["out_proj_bias"], tensors["delta_bias"]
        nothing = {"conv1d_bias": None, "out_proj_bias": None}
        agree(mamba_ssm.mamba_inner_fn, self.plain, tensors, **nothing)

    def test_checkpoint_level(self):
        with pytest.raises(ValueError, match="checkpoint_lvl"):
            mamba_ssm.mamba_inner_fn(**self.tensors(), checkpoint_lvl=2)


class TestSplitConv1dScan:
    BATCH, SEQLEN, NHEADS, HEADDIM, NGROUPS, DSTATE, UNIT, OUT = 2, 21, 4, 3, 2, 5, 7, 6
    DIM = NHEADS * HEADDIM
    CONVOLVED = DIM + 2 * NGROUPS * DSTATE

    def tensors(self, unit=0):
        r = Random(11)
        return {
            "zxbcdt": r.real(self.BATCH, self.SEQLEN, 2 * unit + self.DIM + self.CONVOLVED + self.NHEADS),
            "conv1d_weight": r.real(self.CONVOLVED, 4),
            "conv1d_bias": r.real(self.CONVOLVED),
            "dt_bias": r.real(self.NHEADS),
            "A": r.decay(self.NHEADS),
            "D": r.real(self.NHEADS),
            "rmsnorm_weight": r.real(self.DIM),
            "outproj_weight": r.real(self.OUT, unit + self.DIM),
            "outproj_bias": r.real(self.OUT),
            "initial_states": r.real(self.BATCH, self.NHEADS, self.HEADDIM, self.DSTATE),
        }

    def plain(
        self,
        zxbcdt,
        conv1d_weight,
        conv1d_bias,
        dt_bias,
        A,
        D,
        chunk_size,
        headdim=None,
        ngroups=None,
        rmsnorm_weight=None,
        outproj_weight=None,
        outproj_bias=None,
        initial_states=None,
        seq_idx=None,
        norm_before_gate=True,
        activation="silu",
        return_final_states=True,
    ):
        unit = (zxbcdt.shape[-1] - self.DIM - self.CONVOLVED - self.NHEADS) // 2
        ends = torch.tensor([unit, 2 * unit, 2 * unit + self.DIM, 2 * unit + self.DIM + self.CONVOLVED])
        gate, value, z, xBC, dt = zxbcdt.tensor_split(ends, -1)
        xBC = reference.causal_conv1d(
            xBC.transpose(1, 2), conv1d_weight, conv1d_bias, activation=activation, seq_idx=seq_idx
        ).transpose(1, 2)
        states = self.NGROUPS * self.DSTATE
        x, B, C = xBC[..., : self.DIM], xBC[..., self.DIM : self.DIM + states], xBC[..., self.DIM + states :]
        heads, groups = (self.NHEADS, self.HEADDIM), (self.NGROUPS, self.DSTATE)
        y, state = chunk_scan(
            x.unflatten(-1, heads),
            dt,
            A,
            B.unflatten(-1, groups),
            C.unflatten(-1, groups),
            D,
            chunk_size,
            initial_states=initial_states,
            dt_bias=dt_bias,
            dt_softplus=True,
            seq_idx=seq_idx,
        )
        y, z = y.flatten(-2), silu(z)
        if rmsnorm_weight is None:
            y = y * z
        else:
            y = y if norm_before_gate else y * z
            y = rms_norm(y.unflatten(-1, (self.NGROUPS, -1)), (self.DIM // self.NGROUPS,), eps=1e-6).flatten(-2) * rmsnorm_weight
            y = y * z if norm_before_gate else y
        y = torch.cat([silu(gate) * value, y], -1)
        if outproj_weight is not None:
            y = y @ outproj_weight.T + outproj_bias
        return y, state

    def agree(self, tensors, **options):
        sizes = {"headdim": self.HEADDIM, "ngroups": self.NGROUPS, "chunk_size": 16, "return_final_states": True}
        agree(mamba_ssm.mamba_split_conv1d_scan_combined, self.plain, tensors, **sizes, **options)

    @pytest.mark.parametrize("norm_before_gate", [False, True])
    @pytest.mark.parametrize("unit", [0, UNIT])
    def test_everything(self, unit, norm_before_gate):
        self.agree(self.tensors(unit), norm_before_gate=norm_before_gate)

    def test_gate_without_norm_or_projection(self):
        tensors = self.tensors(self.UNIT)
        del tensors["rmsnorm_weight"], tensors["outproj_weight"], tensors["outproj_bias"]
        self.agree(tensors, activation=None)

    def test_seq_idx(self):
        tensors = {**self.tensors(), "D": Random(12).real(self.NHEADS, self.HEADDIM)}
        tensors["seq_idx"] = torch.tensor([[0] * 9 + [1] * 12, [0] * 21])
        self.agree(tensors)

    def test_sizes_that_do_not_fit(self):
        tensors = self.tensors()
        tensors["zxbcdt"] = tensors["zxbcdt"][..., 1:]
        with pytest.raises(ValueError, match="`zxbcdt`, .* does not fit nheads 4, headdim 3, ngroups 2"):
            self.agree(tensors)
        with pytest.raises(ValueError, match="`headdim` must be given"):
            mamba_ssm.mamba_split_conv1d_scan_combined(**self.tensors(), chunk_size=16)


class TestNorms:
    @pytest.mark.parametrize("norm_before_gate", [False, True])
    @pytest.mark.parametrize("group_size", [None, 4])
    @pytest.mark.parametrize("kind", ["RMSNorm", "LayerNorm"])
    def test_modules(self, kind, group_size, norm_before_gate):
        r = Random(17)
        module = getattr(mamba_ssm, kind)(12, 1e-3, group_size, norm_before_gate, dtype=torch.float64)
        assert [name for name, _ in module.named_parameters()] == ["weight", "bias"][: 1 + (kind == "LayerNorm")]
        parameters = {name: r.real(12) for name, _ in module.named_parameters()}

        def drop_in(x, z, **parameters):
            return torch.func.functional_call(module, parameters, (x, z))

        def plain(x, z, weight, bias=0):
            x = x if norm_before_gate else x * silu(z)
            size = (group_size or 12,)
            norm = rms_norm if kind == "RMSNorm" else layer_norm
            y = norm(x.unflatten(-1, (-1, *size)), size, eps=1e-3).flatten(-2) * weight + bias
            return y * silu(z) if norm_before_gate else y

        agree(drop_in, plain, {"x": r.real(2, 5, 12), "z": r.real(2, 5, 12), **parameters})

    def test_type_is_kept(self):
        x = Random(18).real(3, 8).bfloat16()
        y = mamba_ssm.rmsnorm_fn(x, torch.ones(8), None, z=x)
        wide = mamba_ssm.rmsnorm_fn(x.float(), torch.ones(8), None, z=x.float())
        assert y.dtype == torch.bfloat16 and torch.equal(y, wide.bfloat16())
