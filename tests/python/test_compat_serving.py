"""Functions of serving engines against plain loops in float64."""

import inspect

import pytest
import torch
from torch.nn.functional import softplus

import serving_loops as loops
from statescan import functions
from statescan.compat import flashinfer, vllm

# The signatures of vLLM 0.33.0 and of flashinfer-python 0.7.2.post1, from their wheels on PyPI: parameters by position with
# their defaults, without annotations.
SIGNATURES = {
    # vllm/model_executor/layers/mamba/ops/mamba_ssm.py
    vllm.selective_scan_fn: "u, ssm_states, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, "
    "query_start_loc=None, cache_indices=None, has_initial_state=None, null_block_id=0, block_size=1024, "
    "block_idx_first_scheduled_token=None, block_idx_last_scheduled_token=None, initial_state_idx=None, cu_chunk_seqlen=None, "
    "last_chunk_indices=None",
    vllm.selective_state_update: "state, x, dt, A, B, C, D, dt_bias, z=None, dt_softplus=False, state_batch_indices=None, "
    "dst_state_batch_indices=None, null_block_id=0, out=None, num_accepted_tokens=None, cu_seqlens=None, is_blackwell=False, "
    "enable_stochastic_rounding=False, cache_philox_rounds=0",
    # vllm/model_executor/layers/mamba/ops/ssd_combined.py
    vllm.mamba_chunk_scan_combined_varlen: "x, dt, A, B, C, chunk_size, cu_seqlens, cu_chunk_seqlens, last_chunk_indices, "
    "seq_idx, out, D=None, z=None, dt_bias=None, initial_states=None, dt_softplus=False, dt_limit=(0.0, inf), "
    "return_intermediate_states=False, state_dtype=None, final_states_out=None, final_state_indices=None",
    # vllm/model_executor/layers/mamba/ops/causal_conv1d.py
    vllm.causal_conv1d_fn: "x, weight, bias, conv_states, query_start_loc, cache_indices=None, has_initial_state=None, "
    "activation='silu', pad_slot_id=-1, null_block_id=0, metadata=None, validate_data=False",
    vllm.causal_conv1d_update: "x, conv_state, weight, bias=None, activation=None, conv_state_indices=None, "
    "num_accepted_tokens=None, query_start_loc=None, max_query_len=-1, null_block_id=0, validate_data=False, out=None",
    # vllm/third_party/flash_linear_attention/ops/chunk.py, fused_recurrent.py, fused_sigmoid_gating.py, kda.py
    vllm.chunk_gated_delta_rule: "q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None, "
    "chunk_indices=None, chunk_offsets=None, use_qk_l2norm_in_kernel=False, core_attn_out=None",
    vllm.fused_recurrent_gated_delta_rule: "q, k, v, g, beta=None, scale=None, initial_state=None, inplace_final_state=True, "
    "cu_seqlens=None, ssm_state_indices=None, num_accepted_tokens=None, use_qk_l2norm_in_kernel=False",
    vllm.fused_recurrent_gated_delta_rule_packed_decode: "mixed_qkv, a, b, A_log, dt_bias, scale, initial_state, out, "
    "ssm_state_indices, use_qk_l2norm_in_kernel=False",
    vllm.fused_sigmoid_gating_delta_rule_update: "A_log, a, b, dt_bias, q, k, v, beta=1.0, threshold=20.0, scale=None, "
    "initial_state=None, inplace_final_state=True, cu_seqlens=None, ssm_state_indices=None, num_accepted_tokens=None, "
    "use_qk_l2norm_in_kernel=False, is_kda=False",
    vllm.fused_recurrent_kda: "q, k, v, g, beta=None, scale=None, initial_state=None, inplace_final_state=True, "
    "use_qk_l2norm_in_kernel=True, cu_seqlens=None, ssm_state_indices=None, **kwargs",
    vllm.chunk_kda: "q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, "
    "use_qk_l2norm_in_kernel=False, cu_seqlens=None, **kwargs",
    # flashinfer/mamba/selective_state_update.py
    flashinfer.selective_state_update: "state, x, dt, A, B, C, D, z=None, dt_bias=None, dt_softplus=False, "
    "state_batch_indices=None, pad_slot_id=-1, state_scale=None, out=None, disable_state_update=False, "
    "intermediate_states_buffer=None, intermediate_state_indices=None, intermediate_state_scales=None, rand_seed=None, "
    "philox_rounds=10, cache_steps=0, algorithm='auto', dst_state_batch_indices=None, cu_seqlens=None, "
    "num_accepted_tokens=None, backend='auto'",
    # flashinfer/gdn_prefill.py
    flashinfer.chunk_gated_delta_rule: "q, k, v, g=None, beta=None, scale=None, initial_state=None, output_final_state=False, "
    "cu_seqlens=None, use_qk_l2norm_in_kernel=False, output=None, output_state=None, state_checkpoints=None, "
    "checkpoint_cu_starts=None, checkpoint_every_n_tokens=0, use_cp='auto', state_indices=None, _cp_chunk_len=None, "
    "backend='auto', max_seqlen=None",
    # flashinfer/gdn_decode.py
    flashinfer.gated_delta_rule_decode_pretranspose: "q, k, v, state, A_log, a, dt_bias, b, scale=None, output=None, "
    "use_qk_l2norm=True, initial_state=None, initial_state_indices=None, output_state_indices=None, "
    "intermediate_states_buffer=None, disable_state_update=False, backend='auto'",
    flashinfer.gated_delta_rule_decode: "q, k, v, state, A_log, a, dt_bias, b, scale=None, output=None, use_qk_l2norm=True, "
    "backend='auto'",
    flashinfer.gated_delta_rule_mtp: "q, k, v, initial_state, initial_state_indices, A_log, a, dt_bias, b, scale=None, "
    "output=None, intermediate_states_buffer=None, ssm_state_indices=None, disable_state_update=None, use_qk_l2norm=True, "
    "output_state_indices=None, cache_replayssm=False, replayssm_rawv=None, replayssm_rawk=None, replayssm_g=None, "
    "replayssm_beta=None",
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: f"{function.__module__}.{function.__name__}")
def test_signatures_are_theirs(function):
    parameters = inspect.signature(function).parameters.values()
    assert ", ".join(str(parameter.replace(annotation=parameter.empty)) for parameter in parameters) == SIGNATURES[function]


def test_every_name_has_a_signature():
    names = {name for module in (vllm, flashinfer) for name in module.__all__ if callable(getattr(module, name))}
    assert names == {function.__name__ for function in SIGNATURES}


@pytest.fixture(autouse=True)
def in_double_precision():
    torch.manual_seed(3)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def near(got, expected):
    torch.testing.assert_close(got, expected, atol=1e-9, rtol=1e-9)


def index(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


BOUNDS = [0, 5, 5, 6, 13, 15]
READ = [2, 4, 0, 5, 3]  # vLLM's slot 0 is padding
HAS = [True, True, True, False, True]


def rows_of(pool, run, bounds=BOUNDS, read=READ, has=HAS, null=0):
    """What `run` makes of each row of a pool: y of rows that are no padding by their tokens, and the pool after the last ones."""
    expected, ys, states = pool.clone(), {}, []
    for row, (start, stop) in enumerate(zip(bounds, bounds[1:])):
        before = pool[read[row]] if has[row] and read[row] != null else torch.zeros_like(pool[0])
        y, after = run(before, slice(start, stop))
        states.append(after or [before])
        if read[row] != null:
            ys.update(zip(range(start, stop), y))
            expected[read[row]] = states[-1][-1]
    return list(ys), torch.stack(list(ys.values())), expected, states


class TestScans:
    HEADS, WIDTH, GROUPS, DSTATE, SLOTS = 4, 3, 2, 5, 24

    def tensors(self, tokens, tied=False, heads=None):
        heads = self.HEADS if heads is None else heads
        groups = min(self.GROUPS, heads)
        shape = (heads, self.WIDTH)
        A, dt, bias = -torch.rand(*shape, self.DSTATE), torch.randn(tokens, *shape), torch.randn(shape)
        if tied:
            A, dt, bias = (
                t[:, :1, :1].expand(t.shape) if t.dim() == 3 and t is A else t[..., :1].expand(t.shape) for t in (A, dt, bias)
            )
        B, C = torch.randn(2, tokens, groups, self.DSTATE)
        return {
            "x": torch.randn(tokens, *shape),
            "dt": dt,
            "A": A,
            "B": B,
            "C": C,
            "D": torch.randn(shape),
            "z": torch.randn(tokens, *shape),
            "dt_bias": bias,
        }

    def run(self, tensors):
        """The loop over a slice of the tokens, from a state."""

        def run(before, at):
            own = {n: t if n in ("A", "D", "dt_bias") else t[at] for n, t in tensors.items()}
            return loops.scan(before, **own)

        return run

    def pool(self, heads=None):
        """A pool whose slots lie apart, as pages do."""
        return torch.randn(self.SLOTS, 2, self.HEADS if heads is None else heads, self.WIDTH, self.DSTATE)[:, 1]

    def test_prefill_of_mamba(self):
        tensors, pool = self.tensors(BOUNDS[-1], heads=1), self.pool(heads=1)
        at, y, expected, _ = rows_of(pool, self.run(tensors))
        u, delta, z = (tensors[name][:, 0].t() for name in ("x", "dt", "z"))
        B, C = (tensors[name].permute(1, 2, 0) for name in "BC")
        got = vllm.selective_scan_fn(
            *(u, pool[:, 0], delta, tensors["A"][0], B, C, tensors["D"][0], z, tensors["dt_bias"][0], True),
            query_start_loc=index(*BOUNDS),
            cache_indices=index(*READ),
            has_initial_state=torch.tensor(HAS),
        )
        near(got.t()[at], y[:, 0])
        near(pool, expected)

    def test_prefill_of_a_batch(self):
        tensors, pool = self.tensors(14, heads=1), self.pool(heads=1)[:2]
        at, y, expected, _ = rows_of(pool, self.run(tensors), [0, 7, 14], [0, 1], [False, False], null=-1)
        u, delta, z = (tensors[name].view(2, 7, -1).transpose(1, 2) for name in ("x", "dt", "z"))
        B, C = (tensors[name].view(2, 7, -1).transpose(1, 2) for name in "BC")
        more = (tensors["D"][0], z, tensors["dt_bias"][0], True)
        got = vllm.selective_scan_fn(u, pool[:, 0], delta, tensors["A"][0], B, C, *more, null_block_id=-1)
        near(got.transpose(1, 2).flatten(0, 1), y[:, 0])
        near(pool, expected)

    @pytest.mark.parametrize("module", [vllm, flashinfer])
    @pytest.mark.parametrize("tied", [False, True])
    def test_a_token(self, module, tied):
        """In place, into slots of its own, and with a slot of padding."""
        null = {"null_block_id": 0} if module is vllm else {"pad_slot_id": 0}
        tensors = self.tensors(5, tied)
        bounds, has = [0, 1, 2, 3, 4, 5], [True] * 5
        for to in (None, [7, 8, 9, 10, 11]):
            pool, out = self.pool(), torch.empty(5, self.HEADS, self.WIDTH)
            at, y, expected, states = rows_of(pool, self.run(tensors), bounds, READ, has)
            if to is not None:
                expected = pool.clone()
                expected[torch.tensor(to)[at]] = torch.stack([states[row][-1] for row in at])
            slots = {"state_batch_indices": index(*READ), "dst_state_batch_indices": None if to is None else index(*to)}
            got = module.selective_state_update(pool, **tensors, dt_softplus=True, **slots, **null, out=out)
            assert got is out
            near(got[at], y)
            near(pool, expected)

    @pytest.mark.parametrize("module", [vllm, flashinfer])
    @pytest.mark.parametrize("tied", [False, True])
    def test_drafts(self, module, tied):
        """Rows of several tokens, whose states after each are kept; those that are refused are as if they had never been."""
        own, null = {"cache_steps": 4} if module is flashinfer else {}, {vllm: "null_block_id", flashinfer: "pad_slot_id"}[module]
        slots = torch.cat([torch.zeros(1, 4), torch.arange(1, 17).view(4, 4)]).int()[[1, 2, 0, 3, 4]]
        bounds, accepted = [0, 4, 4, 5, 8, 10], [1, 3, 2, 4, 2]
        tensors, pool = self.tensors(10, tied), self.pool()
        for _ in range(2):
            read = [int(slots[row, accepted[row] - 1]) for row in range(5)]
            at, y, _, states = rows_of(pool, self.run(tensors), bounds, read, [True] * 5)
            expected = pool.clone()
            for row, (start, stop) in enumerate(zip(bounds, bounds[1:])):
                if read[row] and stop > start:
                    expected[slots[row, : stop - start].long()] = torch.stack(states[row])
            options = {"state_batch_indices": slots, "num_accepted_tokens": index(*accepted), "cu_seqlens": index(*bounds)}
            got = module.selective_state_update(pool, **tensors, dt_softplus=True, **options, **own, **{null: 0})
            near(got[at], y)
            near(pool, expected)
            # the next draft starts after what is kept of this one
            tensors, accepted = self.tensors(10, tied), [2, 3, 1, 3, 1]

    def test_rows_of_several_tokens(self):
        """Only the state after the last one is kept, in the slot that was read or in another one."""
        tensors, pool = self.tensors(BOUNDS[-1]), self.pool()
        at, y, _, states = rows_of(pool, self.run(tensors), has=[True] * 5)
        to, expected = [7, 8, 9, 10, 11], pool.clone()
        for row, slot in enumerate(to):
            if READ[row]:
                expected[slot] = states[row][-1]
        slots = {"state_batch_indices": index(*READ), "dst_state_batch_indices": index(*to), "cu_seqlens": index(*BOUNDS)}
        near(vllm.selective_state_update(pool, **tensors, dt_softplus=True, **slots)[at], y)
        near(pool, expected)

    def test_states_apart_from_the_pool(self):
        """flashinfer leaves the states after tokens in a buffer, and the pool as it was."""
        rows, steps, slots = 3, 4, [5, -1, 2]
        tensors, pool, kept = (
            self.tensors(rows * steps),
            self.pool(),
            torch.randn(4, steps + 1, self.HEADS, self.WIDTH, self.DSTATE),
        )
        bounds = [0, 4, 8, 12]
        at, y, after, states = rows_of(pool, self.run(tensors), bounds, slots, [True] * 3, null=-1)
        expected, before = kept.clone(), pool.clone()
        for row, to in ((0, 3), (2, 0)):
            expected[to, :steps] = torch.stack(states[row])
        shaped = {name: t if name in ("A", "D", "dt_bias") else t.unflatten(0, (rows, steps)) for name, t in tensors.items()}
        options = {"state_batch_indices": index(*slots), "dt_softplus": True, "cache_steps": steps}
        where = {"intermediate_states_buffer": kept, "intermediate_state_indices": index(3, 1, 0)}
        got = flashinfer.selective_state_update(pool, **shaped, **options, **where, disable_state_update=True)
        near(got.flatten(0, 1)[at], y)
        near(kept, expected)
        assert torch.equal(pool, before)
        flashinfer.selective_state_update(pool, **shaped, **options)
        near(pool, after)

    def test_prefill_of_mamba2(self):
        tensors = self.tensors(BOUNDS[-1], tied=True)
        rows, chunk = len(BOUNDS) - 1, 4
        initial = torch.randn(rows, self.HEADS, self.WIDTH, self.DSTATE)
        _, y, final, states = rows_of(initial, self.run(tensors), read=range(rows), has=[True] * rows, null=-1)
        heads = {"dt": tensors["dt"][..., 0], "A": tensors["A"][:, 0, 0], "dt_bias": tensors["dt_bias"][:, 0]}
        pieces = [(a, min(a + chunk, e), i) for i, (s, e) in enumerate(zip(BOUNDS, BOUNDS[1:])) for a in range(s, e, chunk)]
        numbers = [i for _, _, i in pieces]
        last = [max([n for n, i in enumerate(numbers) if i <= row], default=0) for row in range(rows)]
        metadata = (index(*BOUNDS), index(0, *(e for _, e, _ in pieces)), index(*last), index(*numbers))

        def scan(**more):
            out = torch.empty_like(tensors["x"])
            result = vllm.mamba_chunk_scan_combined_varlen(
                *(tensors["x"], heads["dt"], heads["A"], tensors["B"], tensors["C"], chunk, *metadata, out),
                **{"D": tensors["D"], "z": tensors["z"], "dt_bias": heads["dt_bias"], "dt_softplus": True},
                initial_states=initial,
                **more,
            )
            near(out, y)
            return result

        near(scan(), final)
        assert scan(state_dtype=torch.float32).dtype == torch.float32
        within = torch.stack([states[i][end - BOUNDS[i] - 1] for _, end, i in pieces])
        near(scan(return_intermediate_states=True), within)
        pool = self.pool()
        expected = pool.clone()
        expected[[9, 1, 3, 8]] = final[1:]
        assert scan(final_states_out=pool, final_state_indices=index(-1, 9, 1, 3, 8)) is None
        near(pool, expected)
        scan(final_states_out=pool, final_state_indices=index(*[-1] * 5))
        near(pool, expected)


class TestConvolution:
    DIM, WIDTH, SLOTS = 6, 4, 9

    def tensors(self, tokens, length):
        x, weight, bias = torch.randn(tokens, self.DIM), torch.randn(self.DIM, self.WIDTH), torch.randn(self.DIM)
        # the channels of a slot lie one beside the other
        return x, weight, bias, torch.randn(self.SLOTS, length, self.DIM).transpose(1, 2)

    def run(self, x, weight, bias):
        return lambda before, at: loops.convolution(before, x[at], weight, bias)

    def test_prefill(self):
        x, weight, bias, pool = self.tensors(BOUNDS[-1], 5)
        at, y, expected, _ = rows_of(pool[..., :3], self.run(x, weight, bias))
        others = pool[..., 3:].clone()
        got = vllm.causal_conv1d_fn(x.t(), weight, bias, pool, index(*BOUNDS), index(*READ), torch.tensor(HAS))
        near(got.t()[at], y)
        near(pool[..., :3], expected)
        assert torch.equal(pool[..., 3:], others)

    @pytest.mark.parametrize("steps", [None, 2, 5])
    def test_steps(self, steps):
        tokens = steps or 1
        x, weight, bias, pool = self.tensors(5 * tokens, 3)
        at, y, expected, _ = rows_of(pool, self.run(x, weight, bias), range(0, 5 * tokens + 1, tokens), has=[True] * 5)
        given = x if steps is None else x.view(5, steps, -1).transpose(1, 2)
        out = torch.empty_like(given)
        got = vllm.causal_conv1d_update(given, pool, weight, bias, "silu", index(*READ), out=out)
        assert got is out
        near((got if steps is None else got.transpose(1, 2).flatten(0, 1))[at], y)
        near(pool, expected)

    def test_rows_of_several_tokens(self):
        x, weight, bias, pool = self.tensors(BOUNDS[-1], 3)
        at, y, expected, _ = rows_of(pool, self.run(x, weight, bias), has=[True] * 5)
        options = {"query_start_loc": index(*BOUNDS), "max_query_len": 7}
        near(vllm.causal_conv1d_update(x, pool, weight, bias, True, index(*READ), **options)[at], y)
        near(pool, expected)

    @pytest.mark.parametrize("ragged", [True, False])
    def test_drafts(self, ragged):
        """A call starts after the tokens of the last one that were kept."""
        most = 4
        bounds = [0, 4, 4, 5, 8, 10] if ragged else [0, 4, 8, 12, 16, 20]
        x, weight, bias, pool = self.tensors(bounds[-1], self.WIDTH - 2 + most)
        history = {slot: pool[slot, :, : self.WIDTH - 1].clone() for slot in READ}
        accepted = [1] * 5
        for call in range(3):
            # a row that has had no token goes on from where it was
            bounds[1] = 2 if ragged and call else 4
            x = torch.randn_like(x)
            whole = torch.stack([history.get(slot, torch.zeros(self.DIM, 3)) for slot in range(self.SLOTS)])
            at, y, _, states = rows_of(whole, self.run(x, weight, bias), bounds, has=[True] * 5)
            untouched = pool[[0, 1, 6, 7, 8]].clone()
            if ragged:
                tokens, options = x, {"query_start_loc": index(*bounds), "max_query_len": most}
            else:
                tokens, options = x.view(5, most, -1).transpose(1, 2), {}
            got = vllm.causal_conv1d_update(tokens, pool, weight, bias, "silu", index(*READ), index(*accepted), **options)
            near((got if ragged else got.transpose(1, 2).flatten(0, 1))[at], y)
            assert torch.equal(pool[[0, 1, 6, 7, 8]], untouched)
            # two tokens are kept, where there are two
            for row, (start, stop) in enumerate(zip(bounds, bounds[1:])):
                if stop > start:
                    accepted[row] = min(2, stop - start)
                    history[READ[row]] = states[row][accepted[row] - 1]


class TestGatedDeltaRule:
    HEADS, VALUES, K, V, SLOTS = 2, 4, 5, 3, 24

    def tensors(self, tokens, by_channel=False):
        q, k = torch.randn(2, tokens, self.HEADS, self.K)
        widths = (self.K,) if by_channel else ()
        g, beta = -torch.rand(tokens, self.VALUES, *widths), torch.rand(tokens, self.VALUES)
        return q, k, torch.randn(tokens, self.VALUES, self.V), g, beta

    def raw(self, tokens, by_channel=False):
        """Gates as layers have them, and what they are made into."""
        widths = (self.K,) if by_channel else ()
        a, b = torch.randn(tokens, self.VALUES, *widths), torch.randn(tokens, self.VALUES)
        A_log, dt_bias = torch.randn(self.VALUES), torch.randn(self.VALUES, *widths)
        factor = -A_log.exp()[:, None] if by_channel else -A_log.exp()
        return (A_log, a, dt_bias, b), (factor * softplus(a + dt_bias), b.sigmoid())

    def run(self, tensors, **options):
        return lambda before, at: loops.delta(before, *(tensor[at] for tensor in tensors), **options)

    def pool(self, slots=SLOTS):
        return torch.randn(slots, 2, self.VALUES, self.V, self.K)[:, 1]

    @pytest.mark.parametrize("by_channel", [False, True])
    def test_prefill(self, by_channel):
        tensors, initial = self.tensors(BOUNDS[-1], by_channel), self.pool(5)
        _, y, final, _ = rows_of(initial, self.run(tensors, scale=0.3), read=range(5), has=[True] * 5, null=-1)
        function = vllm.chunk_kda if by_channel else vllm.chunk_gated_delta_rule
        packed = [tensor[None] for tensor in tensors]
        options = {"cu_seqlens": index(*BOUNDS), "use_qk_l2norm_in_kernel": True}
        got, state = function(*packed, 0.3, initial, True, **options)
        near(got[0], y)
        near(state, final)
        assert function(*packed, 0.3, initial, **options)[1] is None
        if not by_channel:
            out = torch.empty(y.numel() + 7)
            vllm.chunk_gated_delta_rule(*packed, 0.3, initial, **options, core_attn_out=out)
            near(out[:-7].view(y.shape), y)

    @pytest.mark.parametrize("kind", ["plain", "kda", "raw", "raw kda", "packed"])
    def test_a_token(self, kind):
        by_channel = kind.endswith("kda")
        tensors, pool = self.tensors(5, by_channel), self.pool()
        raw, gates = self.raw(5, by_channel)
        tensors = (*tensors[:3], *gates) if kind.startswith(("raw", "packed")) else tensors
        at, y, expected, _ = rows_of(pool, self.run(tensors), range(6), has=[True] * 5)
        slots, bounds = {"initial_state": pool, "ssm_state_indices": index(*READ)}, index(*range(6))
        q, k, v, g, beta = (tensor[None] for tensor in tensors)
        if kind == "plain":
            got, state = vllm.fused_recurrent_gated_delta_rule(
                q, k, v, g, beta, cu_seqlens=bounds, use_qk_l2norm_in_kernel=True, **slots
            )
        elif kind == "kda":
            got, state = vllm.fused_recurrent_kda(q, k, v, g, beta, cu_seqlens=bounds, **slots)
        elif kind == "packed":
            A_log, a, dt_bias, b = raw
            mixed, out = torch.cat([tensor.flatten(1) for tensor in tensors[:3]], 1), torch.empty(5, 1, self.VALUES, self.V)
            arguments = (mixed, a, b, A_log, dt_bias, self.K**-0.5, pool, out, index(*READ), True)
            got, state = vllm.fused_recurrent_gated_delta_rule_packed_decode(*arguments)
            assert got is out
            got = out.transpose(0, 1)
        else:
            A_log, a, dt_bias, b = raw
            options = {"cu_seqlens": bounds, "use_qk_l2norm_in_kernel": True, "is_kda": by_channel}
            got, state = vllm.fused_sigmoid_gating_delta_rule_update(
                A_log, a[None], b[None], dt_bias.flatten(), q, k, v, **options, **slots
            )
        assert state is pool
        near(got[0][at], y)
        near(pool, expected)

    @pytest.mark.parametrize("packed", [True, False])
    def test_drafts(self, packed):
        slots = torch.cat([torch.zeros(1, 4), torch.arange(1, 17).view(4, 4)]).int()[[1, 2, 0, 3, 4]]
        bounds = [0, 4, 4, 5, 8, 10] if packed else [0, 4, 8, 12, 16, 20]
        accepted, pool = [1, 3, 2, 4, 2], self.pool()
        for _ in range(2):
            tensors = self.tensors(bounds[-1])
            read = [int(slots[row, accepted[row] - 1]) for row in range(5)]
            at, y, _, states = rows_of(pool, self.run(tensors, norm=False), bounds, read, [True] * 5)
            expected = pool.clone()
            for row, (start, stop) in enumerate(zip(bounds, bounds[1:])):
                if read[row] and stop > start:
                    expected[slots[row, : stop - start].long()] = torch.stack(states[row])
            shaped = [tensor[None] if packed else tensor.unflatten(0, (5, 4)) for tensor in tensors]
            got, _ = vllm.fused_recurrent_gated_delta_rule(
                *shaped,
                initial_state=pool,
                cu_seqlens=index(*bounds) if packed else None,
                ssm_state_indices=slots,
                num_accepted_tokens=index(*accepted),
            )
            near(got.flatten(0, 1)[at], y)
            near(pool, expected)
            accepted = [2, 3, 1, 3, 1]

    @pytest.mark.parametrize("slots", [None, [2, 7, -1, 5, 3]])
    def test_flashinfers_prefill(self, slots):
        """With sequences' states and slots, in place and not, and states at positions."""
        q, k, v, g, beta = self.tensors(BOUNDS[-1])
        pool = self.pool(5 if slots is None else 9)
        read = range(5) if slots is None else slots
        at, y, expected, states = rows_of(pool, self.run((q, k, v, g, beta)), read=read, has=[True] * 5, null=-1)
        options = {"cu_seqlens": index(*BOUNDS), "use_qk_l2norm_in_kernel": True, "output_final_state": True}
        options |= {} if slots is None else {"state_indices": index(*slots)}
        other, out = torch.zeros_like(pool), torch.empty_like(v)
        got, state = flashinfer.chunk_gated_delta_rule(
            q, k, v, g.exp(), beta, None, pool, output=out, output_state=other, **options
        )
        assert got is out and state is other
        near(got[at], y)
        written = list({slot for slot in read if slot >= 0})
        near(other[written], expected[written])
        every, kept = 2, torch.zeros(8, *pool.shape[1:])
        counts = [(stop - start) // every for start, stop in zip(BOUNDS, BOUNDS[1:])]
        starts = torch.tensor([0, *counts]).cumsum(0)
        within = {"state_checkpoints": kept, "checkpoint_cu_starts": starts, "checkpoint_every_n_tokens": every}
        other.zero_()
        got, _ = flashinfer.chunk_gated_delta_rule(q, k, v, g.exp(), beta, None, pool, output_state=other, **options, **within)
        near(got[at], y)
        near(other[written], expected[written])
        for row, count in enumerate(counts):
            for number in range(count if read[row] >= 0 else 0):
                near(kept[starts[row] + number], states[row][every * (number + 1) - 1])
        if slots is not None:
            flashinfer.chunk_gated_delta_rule(q, k, v, g.exp(), beta, None, pool, output_state=pool, **options)
            near(pool, expected)

    def test_more_heads_of_queries(self):
        """Each query's head has a state of its own then, and nothing decays without g."""
        q, k, v = torch.randn(7, 4, self.K), torch.randn(7, 2, self.K), torch.randn(7, 2, self.V)
        zeros, ones = torch.zeros(7, 4), torch.ones(7, 4)
        y, _ = loops.delta(
            torch.zeros(4, self.V, self.K), q, *(t.repeat_interleave(2, 1) for t in (k, v)), zeros, ones, norm=False
        )
        near(flashinfer.chunk_gated_delta_rule(q, k, v, cu_seqlens=index(0, 7)), y)

    @pytest.mark.parametrize("steps", [1, 3])
    def test_flashinfers_decoding(self, steps):
        rows, slots, to = 4, [6, -1, 2, 4], [6, 8, 3, -1]
        q, k, v, *_ = self.tensors(rows * steps)
        (A_log, a, dt_bias, b), gates = self.raw(rows * steps)
        bounds = range(0, rows * steps + 1, steps)
        run = self.run((q, k, v, *gates))
        shaped = [tensor.unflatten(0, (rows, steps)) for tensor in (q, k, v, a, b)]
        first, last = shaped[:3], (A_log, shaped[3], dt_bias, shaped[4])

        def check(function, pool, expected, at, y, *more, **options):
            got, state = function(*first, *more, *last, **options)
            assert state is pool
            near(got.flatten(0, 1)[at], y)
            near(pool, expected)

        # states of rows
        pool = self.pool(rows)
        at, y, expected, _ = rows_of(pool, run, bounds, range(rows), [True] * rows, null=-1)
        with_keys_first = pool.transpose(-1, -2).clone()
        check(flashinfer.gated_delta_rule_decode, with_keys_first, expected.transpose(-1, -2), at, y, with_keys_first)
        check(flashinfer.gated_delta_rule_decode_pretranspose, pool, expected, at, y, pool)
        # slots, then others to write
        pool = self.pool()
        at, y, expected, states = rows_of(pool, run, bounds, slots, [True] * rows, null=-1)
        other, begin = pool.clone(), pool.clone()
        expected_of_other = pool.clone()
        for row in (0, 2):
            expected_of_other[to[row]] = states[row][-1]
        indices = {"initial_state": other, "initial_state_indices": index(*slots), "output_state_indices": index(*to)}
        check(flashinfer.gated_delta_rule_decode_pretranspose, other, expected_of_other, at, y, None, **indices)
        kept = torch.zeros(rows, steps, *pool.shape[1:])
        more = {"intermediate_states_buffer": kept, "disable_state_update": True}
        check(flashinfer.gated_delta_rule_mtp, pool, begin, at, y, pool, index(*slots), **more)
        for row in (0, 2, 3):
            near(kept[row], torch.stack(states[row]))
        assert not kept[1].any()
        check(flashinfer.gated_delta_rule_mtp, pool, begin, at, y, pool, index(*slots))
        # the state after each token in a slot of its own, the initial one stays
        each, expected_of_each = torch.arange(10, 10 + rows * steps).view(rows, steps).int(), pool.clone()
        for row in (0, 2, 3):
            expected_of_each[each[row].long()] = torch.stack(states[row])
        more = {"ssm_state_indices": each, "disable_state_update": False}
        check(flashinfer.gated_delta_rule_mtp, pool, expected_of_each, at, y, pool, index(*slots), **more)


def test_narrow_pools():
    """States are rounded from token to token, so that a draft has the bits of single tokens."""
    made = TestGatedDeltaRule()
    tensors, pool = [tensor.float() for tensor in made.tensors(8)], made.pool().bfloat16()
    slots, one_by_one, read, ys = index(1, 2, 3, 4, 5, 6, 7, 8).view(2, 4), pool.clone(), index(1, 5), []
    for token in range(4):
        now = [tensor.unflatten(0, (2, 4))[:, token] for tensor in tensors]
        y = functions.gated_delta_rule_update(
            one_by_one.transpose(-1, -2),
            *now,
            state_batch_indices=read,
            dst_state_batch_indices=slots[:, token],
            qk_l2norm=True,
        )
        ys, read = [*ys, y], slots[:, token]
    got, _ = vllm.fused_recurrent_gated_delta_rule(
        *(tensor.unflatten(0, (2, 4)) for tensor in tensors),
        initial_state=pool,
        ssm_state_indices=slots,
        num_accepted_tokens=index(1, 1),
        use_qk_l2norm_in_kernel=True,
    )
    assert torch.equal(got, torch.stack(ys, 1)) and torch.equal(pool, one_by_one)


def test_what_is_refused():
    one, pool = torch.randn(1, 2, 3), torch.randn(2, 2, 3, 4)
    maps, gates = torch.randn(1, 2, 4), torch.randn(2)
    step = (pool, one, one, -torch.rand(2, 3, 4), maps, maps, torch.randn(2, 3))
    with pytest.raises(NotImplementedError, match="no `enable_stochastic_rounding`"):
        vllm.selective_state_update(*step, torch.randn(2, 3), enable_stochastic_rounding=True)
    with pytest.raises(ValueError, match="`num_accepted_tokens` must be None without `state_batch_indices`"):
        vllm.selective_state_update(*step, torch.randn(2, 3), num_accepted_tokens=index(1))
    with pytest.raises(NotImplementedError, match="no `rand_seed`"):
        flashinfer.selective_state_update(*step, rand_seed=index(1))
    with pytest.raises(NotImplementedError, match="no `block_idx_first_scheduled_token`"):
        vllm.selective_scan_fn(*[one] * 6, block_idx_first_scheduled_token=index(0))
    with pytest.raises(ValueError, match=r"`seq_idx` must have shape \(1,\), got \(2,\)"):
        metadata = (index(0, 1), index(0, 1), index(0), index(0, 0), None)
        vllm.mamba_chunk_scan_combined_varlen(one, one[..., 0], gates, maps, maps, 64, *metadata)
    q, v = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 2, 3)
    with pytest.raises(NotImplementedError, match="`inplace_final_state` that is False"):
        vllm.fused_recurrent_gated_delta_rule(q, q, v, gates, initial_state=pool, inplace_final_state=False)
    with pytest.raises(TypeError, match="`ssm_state_indices` must be given"):
        vllm.fused_recurrent_gated_delta_rule(q, q, v, gates, initial_state=pool)
    raw = (gates, v[..., 0], gates, v[..., 0])
    with pytest.raises(NotImplementedError, match="1 and 20 as `beta` and `threshold`"):
        vllm.fused_sigmoid_gating_delta_rule_update(*raw, q, q, v, threshold=10.0)
    with pytest.raises(NotImplementedError, match="no `cache_replayssm`"):
        flashinfer.gated_delta_rule_mtp(q, q, v, pool, index(0), *raw, cache_replayssm=True)
    with pytest.raises(ValueError, match="`ssm_state_indices` excludes `disable_state_update`"):
        flashinfer.gated_delta_rule_mtp(q, q, v, pool, index(0), *raw, ssm_state_indices=index(0)[None])
    with pytest.raises(ValueError, match="`state` must be given, or `initial_state` with `initial_state_indices`"):
        flashinfer.gated_delta_rule_decode_pretranspose(q, q, v, None, *raw, initial_state=pool)
