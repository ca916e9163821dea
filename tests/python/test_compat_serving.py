"""Scans and convolutions of serving engines against plain loops in float64."""

import pytest
import torch

import serving_loops as loops
from serving_cases import BOUNDS, HAS, READ, in_double_precision, index, near, rows_of  # noqa: F401
from statescan.compat import flashinfer, vllm

pytestmark = pytest.mark.usefixtures("in_double_precision")


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
    with pytest.raises(ValueError, match="`cache_replayssm` excludes `disable_state_update=False`"):
        flashinfer.gated_delta_rule_mtp(q, q, v, pool, index(0), *raw, cache_replayssm=True, disable_state_update=False)
    with pytest.raises(ValueError, match="`replayssm_rawv` must be of shape .*got None"):
        flashinfer.gated_delta_rule_mtp(q, q, v, pool, index(0), *raw, cache_replayssm=True)
    windows = [torch.zeros(2, 3, 1, 2, width) for width in (3, 4)] + 2 * [torch.zeros(2, 3, 1, 2)]
    states = pool.expand(2, *pool.shape)
    with pytest.raises(ValueError, match="`track_state_indices` and `track_steps` must be given together"):
        flashinfer.gated_delta_rule_replayssm_commit(states, *windows, index(0), index(1), track_steps=index(0))
    with pytest.raises(ValueError, match="`rawv_cache` must be of shape .2, 2, heads, 2, ..., got .2, 3, 1, 2, 3."):
        flashinfer.gated_delta_rule_replayssm_commit(states, *windows, index(0), index(1))
    with pytest.raises(ValueError, match="`ssm_state_indices` excludes `disable_state_update`"):
        flashinfer.gated_delta_rule_mtp(q, q, v, pool, index(0), *raw, ssm_state_indices=index(0)[None])
    with pytest.raises(ValueError, match="`state` must be given, or `initial_state` with `initial_state_indices`"):
        flashinfer.gated_delta_rule_decode_pretranspose(q, q, v, None, *raw, initial_state=pool)
