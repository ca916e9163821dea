"""Drop-in scans, steps and convolutions against plain PyTorch in float64, results and every gradient."""

import functools

import pytest
import torch

from agreement import agree, chunk_scan
from cases import Random
from statescan.compat import causal_conv1d, fla, lrnnx, mamba_ssm
from statescan.compat.references import loops as reference


def pairs(tensor):
    """Complex numbers along time as real and imaginary parts in turn."""
    return torch.view_as_real(tensor).flatten(-2)


class TestSelectiveScan:
    BATCH, DIM, SEQLEN, DSTATE = 2, 4, 19, 3

    def tensors(self, r, of_time=True, is_complex=False):
        make = r.complex if is_complex else r.real
        B, C = (make(self.BATCH, self.DSTATE, self.SEQLEN) if of_time else make(self.DIM, self.DSTATE) for _ in range(2))
        return {
            "u": r.real(self.BATCH, self.DIM, self.SEQLEN),
            "delta": r.step(self.BATCH, self.DIM, self.SEQLEN),
            "A": (r.oscillation if is_complex else r.decay)(self.DIM, self.DSTATE),
            "B": pairs(B) if is_complex and of_time else B,
            "C": pairs(C) if is_complex and of_time else C,
        }

    @staticmethod
    def plain(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False, **options):
        if A.is_complex() and not B.is_complex():
            B, C = (torch.view_as_complex(M.unflatten(-1, (-1, 2))) for M in (B, C))
        results = reference.selective_scan(u, delta, A, B, C, D, z=z, dt_bias=delta_bias, dt_softplus=delta_softplus, **options)
        return results if return_last_state else results[0]

    @pytest.mark.parametrize("is_complex", [False, True])
    @pytest.mark.parametrize("of_time", [False, True])
    def test_with_last_state(self, of_time, is_complex):
        """Maps that do not depend on time give a true last state, and it has a gradient."""
        tensors = self.tensors(Random(1), of_time, is_complex)
        agree(mamba_ssm.selective_scan_fn, self.plain, tensors, return_last_state=True)
        agree(lrnnx.selective_scan_fn, self.plain, tensors, return_last_state=True)

    @pytest.mark.parametrize("rule", ["mamba", "zoh", "bilinear", "dirac"])
    def test_everything(self, rule):
        r = Random(2)
        more = {"D": r.real(self.DIM), "z": r.real(self.BATCH, self.DIM, self.SEQLEN), "delta_bias": r.real(self.DIM)}
        tensors = {**self.tensors(r), **more}
        if rule == "mamba":
            agree(mamba_ssm.selective_scan_fn, self.plain, tensors, delta_softplus=True)
        tensors["deltaA"] = r.step(self.BATCH, self.DIM, self.SEQLEN)
        agree(lrnnx.selective_scan_fn, self.plain, tensors, delta_softplus=True, discretization=rule)

    @pytest.mark.parametrize("rule", ["mamba", "zoh", "bilinear", "dirac"])
    def test_steps_are_the_scan(self, rule):
        tensors = self.tensors(Random(3))
        u, delta, A, B, C = tensors.values()
        y, last = lrnnx.selective_scan_fn(u, delta, A, B, C, return_last_state=True, discretization=rule)
        state = torch.zeros_like(last)
        update = lrnnx.selective_state_update
        steps = [
            update(state, u[..., t], delta[..., t], A, B[..., t], C[..., t], discretization=rule) for t in range(self.SEQLEN)
        ]
        torch.testing.assert_close(torch.stack(steps, -1), y)
        torch.testing.assert_close(state, last)


class TestSimplifiedScan:
    @pytest.mark.parametrize("rule", ["bilinear", "zoh", "dirac"])
    @pytest.mark.parametrize("seqlen", [1, 7, 64, 65])
    def test_last_state_at_any_length(self, seqlen, rule):
        r = Random(4)
        tensors = {
            "u": r.complex(2, 3, seqlen),
            "delta": r.step(2, 5, seqlen),
            "A": r.oscillation(5),
            "B": r.complex(5, 3),
            "C": r.complex(3, 5),
        }
        agree(lrnnx.simplified_scan_fn, reference.simplified_scan_fn, tensors, discretization=rule, return_last_state=True)

    @pytest.mark.parametrize("rule", ["bilinear", "zoh", "dirac"])
    @pytest.mark.parametrize("skip", [None, "diagonal", "full"])
    @pytest.mark.parametrize("conj_sym", [False, True])
    def test_steps_are_the_layer(self, conj_sym, skip, rule):
        r = Random(5)
        u, delta, A, B, C = r.real(2, 3, 9), r.step(2, 5, 9), r.oscillation(5), r.complex(5, 3), r.complex(3, 5)
        D = {None: None, "diagonal": r.real(3), "full": r.real(3, 3)}[skip]
        matrix = torch.zeros(3, 3, dtype=u.dtype) if D is None else D if skip == "full" else D.diag()
        layer = lrnnx.s5_inner_fn(u, delta, A, B, C, u.new_zeros(3), discretization=rule, conj_sym=conj_sym)
        state = torch.zeros(2, 5, dtype=torch.complex128)
        steps = [
            lrnnx.simplified_state_update(state, u[..., t], delta[..., t], A, B, C, D, None, rule, conj_sym) for t in range(9)
        ]
        torch.testing.assert_close(torch.stack(steps, -1), layer + matrix @ u)


class TestChunkScan:
    BATCH, SEQLEN, NHEADS, HEADDIM, NGROUPS, DSTATE = 2, 37, 4, 3, 2, 5

    def tensors(self, batch=BATCH):
        r = Random(8)
        return {
            "x": r.real(batch, self.SEQLEN, self.NHEADS, self.HEADDIM),
            "dt": r.step(batch, self.SEQLEN, self.NHEADS),
            "A": r.decay(self.NHEADS),
            "B": r.real(batch, self.SEQLEN, self.NGROUPS, self.DSTATE),
            "C": r.real(batch, self.SEQLEN, self.NGROUPS, self.DSTATE),
            "D": r.real(self.NHEADS),
        }

    def test_everything(self):
        r = Random(9)
        tensors = self.tensors()
        more = {"z": r.real(*tensors["x"].shape), "dt_bias": r.real(self.NHEADS)}
        more["initial_states"] = r.real(self.BATCH, self.NHEADS, self.HEADDIM, self.DSTATE)
        options = {"chunk_size": 16, "dt_softplus": True, "dt_limit": (0.1, 1.5), "return_final_states": True}
        agree(mamba_ssm.mamba_chunk_scan_combined, chunk_scan, {**tensors, **more}, **options)

    def test_seq_idx(self):
        tensors = self.tensors()
        tensors["seq_idx"] = torch.tensor([[0] * 10 + [1] * 27, [0] * 5 + [1] * 5 + [2] * 27])
        agree(mamba_ssm.mamba_chunk_scan_combined, chunk_scan, tensors, chunk_size=16, return_final_states=True)

    def test_cu_seqlens_alone_is_not_used(self):
        tensors = self.tensors(batch=1)
        whole = mamba_ssm.mamba_chunk_scan_combined(**tensors, chunk_size=16)
        given = mamba_ssm.mamba_chunk_scan_combined(**tensors, chunk_size=16, cu_seqlens=torch.tensor([0, 10, self.SEQLEN]))
        assert torch.equal(whole, given)

    @pytest.mark.parametrize("with_initial_states", [False, True])
    def test_varlen_states(self, with_initial_states):
        """One for each sequence; the state that is given starts the first of them."""
        tensors = self.tensors(batch=1)
        own = (self.NHEADS, self.HEADDIM, self.DSTATE)
        if with_initial_states:
            tensors["initial_states"] = Random(10).real(1, *own)
        bounds = torch.tensor([0, 10, 10, self.SEQLEN])

        def drop_in(**arguments):
            kinds = {"return_final_states": True, "return_varlen_states": True}
            y, final_states, states = mamba_ssm.mamba_chunk_scan_combined(**arguments, chunk_size=16, cu_seqlens=bounds, **kinds)
            assert torch.equal(final_states, states[2:])
            return y, states

        def plain(initial_states=None, **arguments):
            if initial_states is not None:
                initial_states = torch.cat([initial_states, torch.zeros(2, *own)])
            return chunk_scan(**arguments, chunk_size=16, initial_states=initial_states, cu_seqlens=bounds)

        agree(drop_in, plain, tensors)

    def test_varlen_states_before_padding(self):
        """Steps behind the last bound belong to no sequence, and change no state."""
        tensors = self.tensors(batch=1)
        call = functools.partial(mamba_ssm.mamba_chunk_scan_combined, chunk_size=16, return_varlen_states=True)
        bounds = torch.tensor([0, 10, 20, 20])
        y, states = call(**tensors, cu_seqlens=bounds)
        cut = {name: t if t.dim() < 3 else t[:, :20] for name, t in tensors.items()}
        expected, expected_states = call(**cut, cu_seqlens=bounds)
        assert torch.equal(states, expected_states) and torch.equal(y[:, :20], expected)

    def test_state_dtype(self):
        call = mamba_ssm.mamba_chunk_scan_combined
        arguments = {name: tensor.float() for name, tensor in self.tensors().items()}
        y, states = call(**arguments, chunk_size=16, return_final_states=True, state_dtype=torch.bfloat16)
        assert (y.dtype, states.dtype) == (torch.float32, torch.bfloat16)

    def test_varlen_states_need_bounds(self):
        with pytest.raises(ValueError, match="`cu_seqlens` must be given"):
            mamba_ssm.mamba_chunk_scan_combined(**self.tensors(batch=1), chunk_size=16, return_varlen_states=True)


class TestSteps:
    def test_heads_without_dt_bias(self):
        """With one step, decay and skip for each head, expanded over its channels."""
        r = Random(13)
        state, x, dt, A = r.real(2, 4, 3, 5), r.real(2, 4, 3), r.step(2, 4, 1).expand(-1, -1, 3), r.decay(4)
        B, C, D = r.real(2, 2, 5), r.real(2, 2, 5), r.real(4, 1).expand(-1, 3)
        decay = torch.exp(dt * A[:, None])[..., None]
        B_of_heads, C_of_heads = (M.repeat_interleave(2, 1)[:, :, None] for M in (B, C))
        expected_state = decay * state + dt[..., None] * B_of_heads * x[..., None]
        expected = (expected_state * C_of_heads).sum(-1) + D * x
        y = mamba_ssm.selective_state_update(state, x, dt, A[:, None, None].expand(-1, 3, 5), B, C, D)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(state, expected_state)

    def test_states_by_index(self):
        r = Random(14)
        state, x, dt, A, B, C = r.real(3, 4, 5), r.real(2, 4), r.step(2, 4), r.decay(4, 5), r.real(2, 5), r.real(2, 5)
        own, before = state[[2]].clone(), state.clone()
        alone = mamba_ssm.selective_state_update(own, x[:1], dt[:1], A, B[:1], C[:1], dt_softplus=True)
        index = torch.tensor([2, -1])
        y = mamba_ssm.selective_state_update(state, x, dt, A, B, C, dt_softplus=True, state_batch_indices=index)
        assert torch.equal(y, torch.cat([alone, torch.zeros_like(alone)]))
        assert torch.equal(state, torch.cat([before[:2], own]))

    def test_convolution(self):
        r = Random(15)
        x, weight, bias = r.real(2, 6, 9), r.real(6, 4), r.real(6)
        whole = causal_conv1d.causal_conv1d_fn(x, weight, bias, activation="silu")
        state = torch.zeros(2, 6, 3, dtype=x.dtype)
        steps = [causal_conv1d.causal_conv1d_update(x[..., t], state, weight, bias, "silu") for t in range(9)]
        torch.testing.assert_close(torch.stack(steps, -1), whole)
        assert torch.equal(state, x[..., -3:])


class TestConvolution:
    def test_final_states_out(self):
        r = Random(16)
        x, weight, out = r.real(2, 6, 9), r.real(6, 4), torch.empty(2, 6, 3, dtype=torch.float64)
        y, states = causal_conv1d.causal_conv1d_fn(x, weight, return_final_states=True, final_states_out=out)
        assert states is out and torch.equal(out, x[..., -3:])
        assert torch.equal(y, causal_conv1d.causal_conv1d_fn(x, weight))


def test_older_and_optional_arguments_of_fla():
    q, k, v = (torch.randn(1, 7, 2, 4) for _ in range(3))
    g, beta, state = torch.randn(1, 7, 2, 4), torch.rand(1, 7, 2), torch.randn(1, 2, 4, 4)
    options = {"use_gate_in_kernel": True, "lower_bound": -5.0, "output_final_state": True}
    for function in (fla.chunk_kda, fla.fused_recurrent_kda):
        # without A_log the gate has a rate of 1
        expected = function(q, k, v, g, beta, A_log=torch.zeros(2), initial_state=state, **options)
        with pytest.warns(DeprecationWarning, match="state_v_first"):
            got = function(q, k, v, g, beta, initial_state=state.mT, transpose_state_layout=True, **options)
        assert torch.equal(got[0], expected[0]) and torch.equal(got[1].mT, expected[1])
        with pytest.raises(TypeError, match="A_log"):
            function(q, k, v, g, beta, use_gate_in_kernel=True)
        with pytest.raises(ValueError, match="transpose_state_layout"):
            function(q, k, v, g, beta, state_v_first=True, transpose_state_layout=False)
