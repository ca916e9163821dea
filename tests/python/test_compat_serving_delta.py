"""The gated delta rule of serving engines against plain loops in float64."""

import pytest
import torch
from torch.nn.functional import softplus

import serving_loops as loops
from serving_cases import BOUNDS, READ, in_double_precision, index, near, rows_of  # noqa: F401
from statescan import functions
from statescan.compat import flashinfer, vllm

pytestmark = pytest.mark.usefixtures("in_double_precision")


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

    def test_flashinfers_gates(self):
        """Decays or their logarithms, or what layers have in their places."""
        (q, k, v, *_), initial = self.tensors(BOUNDS[-1]), self.pool(5)
        (A_log, a, dt_bias, b), (g, beta) = self.raw(BOUNDS[-1])
        options = {"initial_state": initial, "output_final_state": True, "cu_seqlens": index(*BOUNDS), "cu_seqlens_cpu": BOUNDS}
        expected = flashinfer.chunk_gated_delta_rule(q, k, v, g.exp(), beta, **options)
        raw = {"use_gate_in_kernel": True, "A_log": A_log, "dt_bias": dt_bias, "beta_is_logit": True}
        for gates, more in ((g, beta), {"gate_domain": "log"}), ((a, b), raw):
            near(flashinfer.chunk_gated_delta_rule(q, k, v, *gates, **more, **options), expected)

    def test_flashinfers_slots(self):
        """Slots that are read and written, and a pool of checkpoints at multiples of all tokens that were read."""
        tensors, pool = self.tensors(BOUNDS[-1]), self.pool(9)
        q, k, v, g, beta = tensors
        read, write, prefixes, every = [2, 7, -1, 2, 8], [3, 4, 0, 1, -1], [1, 3, 2, 4, 6], 3
        at, y, _, states = rows_of(pool, self.run(tensors), read=read, has=[slot >= 0 for slot in read], null=None)
        expected, places = pool.clone(), []
        for row, (start, stop) in enumerate(zip(BOUNDS, BOUNDS[1:])):
            if write[row] >= 0 and stop > start:
                expected[write[row]] = states[row][-1]
            places.append([n for n in range(stop - start) if (prefixes[row] + n + 1) % every == 0])
        counts = [len(own) for own in places]
        starts, slots = torch.tensor([0, *counts]).cumsum(0), [5, -1, 0, 2, 6, 1][: sum(counts)]
        options = {"cu_seqlens": index(*BOUNDS), "use_qk_l2norm_in_kernel": True, "output_final_state": True}
        options |= {"state_indices": index(*read), "output_state_indices": index(*write)}
        kept, other = torch.zeros(7, *pool.shape[1:]), pool.clone()
        checkpoints = {"state_checkpoints": kept, "checkpoint_cu_starts": starts, "checkpoint_every_n_tokens": every}
        checkpoints |= {"checkpoint_state_indices": index(*slots), "prefix_lens": index(*prefixes)}
        for more in {}, checkpoints:
            other.copy_(pool)
            got, _ = flashinfer.chunk_gated_delta_rule(q, k, v, g.exp(), beta, None, pool, output_state=other, **options, **more)
            near(got[at], y)
            near(other, expected)
        for slot, state in zip(slots, [states[row][n] for row, own in enumerate(places) for n in own], strict=True):
            if slot >= 0:
                near(kept[slot], state)
        assert not kept[[3, 4]].any()
        got, _ = flashinfer.chunk_gated_delta_rule(q, k, v, g.exp(), beta, None, pool, output_state=pool, **options)
        near(got[at], y)
        near(pool, expected)

    @pytest.mark.parametrize(
        "options, words",
        [
            (
                {"output_state_indices": index(0)},
                "`state_indices` and `output_state` and `output_final_state` must be given with",
            ),
            ({"prefix_lens": index(0)}, "`checkpoint_every_n_tokens` must be given with `prefix_lens`"),
            ({"checkpoint_every_n_tokens": 2}, "`state_checkpoints` and `checkpoint_cu_starts` must be given with"),
            ({"use_gate_in_kernel": True}, "`g` and `A_log` and `dt_bias` must be given with `use_gate_in_kernel`"),
            ({"state_indices": index(0)}, "`initial_state` must be given with `state_indices`"),
            ({"gate_domain": "exp"}, "`gate_domain` must be linear or log, got 'exp'"),
        ],
    )
    def test_what_flashinfers_prefill_refuses(self, options, words):
        q, k, v, *_ = self.tensors(2)
        with pytest.raises(ValueError, match=f"chunk_gated_delta_rule: {words}"):
            flashinfer.chunk_gated_delta_rule(q, k, v, cu_seqlens=index(0, 2), **options)

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

    @pytest.mark.parametrize("norm", [True, False])
    def test_a_draft_of_tokens(self, norm):
        """Drafts kept as tokens: the states behind those that are accepted, of two layers at once, and a few beside them."""
        layers, steps = 2, 4
        rows, slots = steps + 3, index(7, 6, 5, -1, 4, 3, 2)
        accepted, tracked, at = index(0, 1, 2, 3, 3, 4, 4), index(10, 11, -1, 12, 13, 14, 15), index(0, 0, 1, 0, 2, 3, 1)
        states = torch.randn(layers, self.SLOTS, self.VALUES, self.V, self.K)
        windows = [torch.full((layers, self.SLOTS, self.VALUES, steps, self.V), 7.0)]
        windows += [torch.full((layers, self.SLOTS, self.HEADS, steps, self.K), 7.0)]
        windows += [torch.full((layers, self.SLOTS, self.VALUES, steps), 7.0) for _ in range(2)]
        before, expected = states.clone(), states.clone()
        for layer in range(layers):
            q, k, v = (tensor.unflatten(0, (rows, steps)) for tensor in self.tensors(rows * steps)[:3])
            raw, gates = self.raw(rows * steps)
            raw = [raw[0], raw[1].unflatten(0, (rows, steps)), raw[2], raw[3].unflatten(0, (rows, steps))]
            g, beta = (gate.unflatten(0, (rows, steps)) for gate in gates)
            names = ("replayssm_rawv", "replayssm_rawk", "replayssm_g", "replayssm_beta")
            keep = dict(zip(names, (window[layer] for window in windows)), cache_replayssm=True)
            y, _ = flashinfer.gated_delta_rule_mtp(
                q, k, v, states[layer], slots, *raw, use_qk_l2norm=norm, disable_state_update=True, **keep
            )
            for row in (row for row in range(rows) if slots[row] >= 0):
                after, outputs = before[layer, slots[row]], []
                for token in range(steps):
                    out, (after,) = loops.delta(after, *(t[row, token][None] for t in (q, k, v, g, beta)), norm=norm)
                    outputs.append(out)
                    if token + 1 == accepted[row]:
                        expected[layer, slots[row]] = after
                    if token == at[row] < accepted[row] and tracked[row] >= 0:
                        expected[layer, tracked[row]] = after
                near(y[row], torch.cat(outputs))
        assert torch.equal(states, before) and all((window[:, 0] == 7).all() for window in windows)
        for window in windows:
            for slot, count in zip(slots.tolist(), accepted.tolist()):
                window[:, slot, :, count:] = float("nan")
        more = {"track_state_indices": tracked, "track_steps": at, "use_qk_l2norm": norm}
        flashinfer.gated_delta_rule_replayssm_commit(states, *windows, slots, accepted, **more)
        near(states, expected)


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
