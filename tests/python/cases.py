"""Calls with random arguments: each covers options that others leave out."""

from dataclasses import dataclass, field
from typing import Any

import torch

import statescan
from statescan.compat.references import loops as reference


@dataclass
class Case:
    """A function, its reference, its tensors and its options."""

    op: str
    tensors: dict[str, torch.Tensor]
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, **changed):
        return results(getattr(statescan, self.op)(**{**self.tensors, **self.options, **changed}))

    def reference(self, **changed):
        return results(getattr(reference, self.op)(**{**self.tensors, **self.options, **changed}))

    def to(self, dtype, device="cpu"):
        """The same with another type of the real tensors and the matching one of the complex ones; parameters in f32 or wider."""
        parameters = ("A", "D", "A_log", "dt_bias", "initial_state", "weight", "bias")
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        matching = torch.complex128 if dtype == torch.float64 else torch.complex64

        def converted(name, tensor):
            if tensor.is_complex():
                return tensor.to(device, matching)
            if not tensor.is_floating_point():
                return tensor.to(device)
            return tensor.to(device, wide if name in parameters else dtype)

        return Case(self.op, {name: converted(name, t) for name, t in self.tensors.items()}, self.options)

    def double(self):
        """The same numbers in float64, on the CPU."""
        return self.to(torch.float64)

    def floats(self):
        """The tensors that have gradients."""
        return {name: t for name, t in self.tensors.items() if t.is_floating_point() or t.is_complex()}


def results(out):
    return out if isinstance(out, tuple) else (out,)


class Random:
    """Random tensors in float64."""

    def __init__(self, seed=0):
        self.generator = torch.Generator().manual_seed(seed)

    def real(self, *shape):
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def complex(self, *shape):
        return torch.complex(self.real(*shape), self.real(*shape))

    def step(self, *shape):
        return 0.02 + 0.3 * torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def decay(self, *shape):
        return -0.1 - torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def oscillation(self, *shape):
        return torch.complex(self.decay(*shape), 3 * self.real(*shape))


CU_SEQLENS = torch.tensor([0, 3, 3, 70, 83])


def selective_scan(batch=2, dim=6, seqlen=83, dstate=5, **kind):
    r = Random(1)
    make = r.complex if kind.get("complex") else r.real
    maps = {None: (batch, dstate, seqlen), 1: (batch, 1, dstate, seqlen), 2: (batch, 2, dstate, seqlen), 0: (dim, dstate)}
    maps = maps[kind.get("groups")]
    return {
        "x": r.real(batch, dim, seqlen),
        "dt": r.step(batch, dim, seqlen),
        "A": (r.oscillation if kind.get("complex") else r.decay)(dim, dstate),
        "B": make(*maps),
        "C": make(*maps),
    }


def ssd(batch=2, nheads=4, seqlen=83, headdim=3, dstate=5, groups=None):
    r = Random(2)
    maps = (batch, seqlen, dstate) if groups is None else (batch, seqlen, groups, dstate)
    return {
        "x": r.real(batch, seqlen, nheads, headdim),
        "dt": r.step(batch, seqlen, nheads),
        "A": r.decay(nheads),
        "B": r.real(*maps),
        "C": r.real(*maps),
    }


def simplified(batch=2, dim=3, seqlen=83, dstate=5, real=False):
    r = Random(3)
    return {
        "u": (r.real if real else r.complex)(batch, dim, seqlen),
        "delta": r.step(batch, dstate, seqlen),
        "A": r.oscillation(dstate),
        "B": r.complex(dstate, dim),
        "C": r.complex(dim, dstate),
    }


def conv(batch=2, dim=6, seqlen=83, width=4):
    r = Random(4)
    return {"x": r.real(batch, dim, seqlen), "weight": r.real(dim, width)}


def delta(batch=2, heads=2, value_heads=4, seqlen=83, key_width=5, value_width=3, channels=False):
    r = Random(8)
    gate = (key_width,) if channels else ()
    return {
        # parts of a tensor whose channels come before time
        "q": r.real(batch, heads, key_width, seqlen).permute(0, 3, 1, 2),
        "k": r.real(batch, heads, key_width, seqlen).permute(0, 3, 1, 2) / key_width**0.5,
        "v": r.real(batch, value_heads, value_width, seqlen).permute(0, 3, 1, 2),
        "g": r.decay(batch, seqlen, value_heads, *gate),
        "beta": torch.sigmoid(r.real(batch, seqlen, value_heads)),
    }


def turned_maps(batch=2, groups=2, nheads=4, seqlen=83, dstate=7, angles=2):
    r = Random(12)
    return {
        "maps": r.real(batch, seqlen, 2, groups, dstate),
        "bias": r.real(2, nheads, dstate),
        "rate": r.real(batch, seqlen, nheads, angles),
        "dt": r.step(batch, seqlen, nheads),
    }


def all_cases():
    """Every case by name, in float64."""
    r = Random(5)
    index = torch.tensor([[0] * 20 + [1] * 50 + [2] * 13, [4] * 83])
    cases = {}

    def add(name, op, tensors, more=None, **options):
        cases[name] = Case(op, {**tensors, **(more or {})}, options)

    scan = selective_scan()
    everything = {"D": r.real(6), "initial_state": r.real(2, 6, 5), "z": r.real(2, 6, 83), "dt_bias": r.real(6)}
    add("selective_scan", "selective_scan", scan)
    add("selective_scan_everything", "selective_scan", scan, everything, dt_softplus=True, dt_limit=(0.1, 1.5))
    add("selective_scan_groups", "selective_scan", selective_scan(groups=2), {"D": r.real(6)}, reverse=True)
    add("selective_scan_constant", "selective_scan", selective_scan(groups=0))
    for rule in ("zoh", "bilinear", "dirac"):
        add(f"selective_scan_{rule}", "selective_scan", scan, {"deltaA": r.step(2, 6, 83)}, discretization=rule)
    add("selective_scan_complex", "selective_scan", selective_scan(complex=True), {"initial_state": r.complex(2, 6, 5)})
    add("selective_scan_real_state", "selective_scan", selective_scan(complex=True), {"initial_state": r.real(2, 6, 5)})
    packed = {"cu_seqlens": CU_SEQLENS, "initial_state": r.real(4, 6, 5)}
    add("selective_scan_packed", "selective_scan", selective_scan(batch=1), packed)
    numbered = {"seq_idx": index, "initial_state": r.real(2, 6, 5)}
    add("selective_scan_seq_idx", "selective_scan", scan, numbered, reverse=True)

    add("ssd", "ssd", ssd())
    more = {"D": r.real(4), "initial_state": r.real(2, 4, 3, 5), "z": ssd()["x"].flip(0), "dt_bias": r.real(4)}
    add("ssd_everything", "ssd", ssd(groups=2), more, dt_softplus=True, dt_limit=(0.1, 1.5), chunk_size=16)
    add("ssd_skip_for_each_channel", "ssd", ssd(groups=1), {"D": r.real(4, 3)}, reverse=True)
    packed = {"cu_seqlens": CU_SEQLENS, "initial_state": r.real(4, 4, 3, 5)}
    add("ssd_packed", "ssd", ssd(batch=1), packed)
    add("ssd_seq_idx", "ssd", ssd(), {"seq_idx": index.to(torch.int32)})
    more = {"dt_a": Random(6).step(2, 83, 4), "dt_bias": Random(7).real(4)}
    add("ssd_own_decay_step", "ssd", ssd(groups=2), more, dt_softplus=True)

    for rule in ("bilinear", "zoh", "dirac"):
        add(f"simplified_scan_{rule}", "simplified_scan_fn", simplified(), return_last_state=True, discretization=rule)
    more = {"deltaA": r.step(2, 5, 83), "initial_state": r.complex(2, 5)}
    add("simplified_scan_asynchronous", "simplified_scan_fn", simplified(), more, return_last_state=True, reverse=True)
    more = {"delta": r.step(5), "A": r.oscillation(5, 1)}
    add("simplified_scan_constant", "simplified_scan_fn", simplified(real=True), more)
    packed = {"cu_seqlens": CU_SEQLENS, "initial_state": r.complex(4, 5)}
    add("simplified_scan_packed", "simplified_scan_fn", simplified(batch=1), packed, return_last_state=True)
    add("s5_inner", "s5_inner_fn", simplified(), {"D": r.real(3)})
    more = {"D": r.real(3), "initial_state": r.complex(2, 5)}
    add("s5_inner_real", "s5_inner_fn", simplified(real=True), more, conj_sym=False, return_last_state=True)

    time = {"a": 1 - r.step(2, 3, 83), "b": r.real(2, 3, 83)}
    add("linear_scan", "linear_scan", time)
    add("linear_scan_state", "linear_scan", time, {"initial_state": r.real(2, 3)}, reverse=True)
    more = {"a": torch.polar(time["a"], r.real(2, 3, 83)), "initial_state": r.complex(2, 3)}
    add("linear_scan_complex", "linear_scan", time, more)

    add("gated_delta_rule", "gated_delta_rule", delta())
    more = {"A_log": r.real(4), "dt_bias": r.real(4), "initial_state": r.real(2, 4, 3, 5).transpose(-1, -2)}
    raw = {"qk_l2norm": True, "beta_sigmoid": True}
    add("gated_delta_rule_everything", "gated_delta_rule", delta(), more, **raw, allow_neg_eigval=True, scale=0.3)
    more = {"A_log": r.real(4), "dt_bias": r.real(4, 5)}
    add("gated_delta_rule_channels", "gated_delta_rule", delta(channels=True), more, **raw, lower_bound=-5.0, reverse=True)
    packed = {"cu_seqlens": CU_SEQLENS, "initial_state": r.real(4, 4, 5, 3)}
    add("gated_delta_rule_packed", "gated_delta_rule", delta(batch=1), packed, qk_l2norm=True)
    numbered = {"seq_idx": index, "initial_state": r.real(2, 4, 5, 3)}
    add("gated_delta_rule_seq_idx", "gated_delta_rule", delta(channels=True), numbered, qk_l2norm=True)

    add("turned_maps", "turned_maps", turned_maps())

    add("causal_conv1d", "causal_conv1d", conv())
    more = {"bias": r.real(6), "initial_states": r.real(2, 6, 3)}
    add("causal_conv1d_everything", "causal_conv1d", conv(), more, activation="silu", return_final_states=True)
    packed = {"cu_seqlens": CU_SEQLENS, "bias": r.real(6)}
    add("causal_conv1d_packed", "causal_conv1d", conv(batch=1), packed, return_final_states=True, reverse=True)
    add("causal_conv1d_seq_idx", "causal_conv1d", conv(width=2), {"seq_idx": index}, activation="swish")
    return cases


CASES = all_cases()
