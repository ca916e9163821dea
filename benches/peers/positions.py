"""States at positions, and `exact`, on a CUDA device: what both cost beside the scan itself, in bf16 at the sizes of models.

A row of 8192 steps in a pool: as it is, packed, and with states at eight positions, drawn and at multiples of 128. Then texts of
2048 tokens with and without `exact`. Times are those of `steps.py`: medians out of a CUDA graph.
"""

import torch
from steps import microseconds

import statescan


def tokens(*shape, kind=torch.bfloat16):
    return torch.randn(shape, device="cuda").to(kind)


def scans(rows, steps):
    """Each scan, which takes bounds, its initial state and options, and the shape of a state."""
    x, (B, C) = tokens(rows, steps, 80, 64), tokens(2, rows, steps, 128)
    dt, A = torch.rand(rows, steps, 80, device="cuda").bfloat16() * 0.2, -torch.rand(80, device="cuda")
    wide, wide_dt = tokens(rows, steps, 5120).mT, torch.rand(rows, steps, 5120, device="cuda").bfloat16().mT * 0.2
    own, weight, (few, many) = -torch.rand(5120, 16, device="cuda"), tokens(5120, 4), tokens(2, rows, steps, 16).mT
    (q, k), v = tokens(2, rows, steps, 16, 128), tokens(rows, steps, 32, 128)
    g, beta = -torch.rand(rows, steps, 32, device="cuda") * 0.2, torch.rand(rows, steps, 32, device="cuda")
    u, delta = tokens(rows, steps, 1024, kind=torch.float32).mT, torch.rand(256, device="cuda") * 0.1
    rates = torch.complex(-torch.rand(256, device="cuda"), tokens(256, kind=torch.float32))
    to, back = tokens(256, 1024, kind=torch.complex64), tokens(1024, 256, kind=torch.complex64)
    return {
        "ssd": ((80, 64, 128), lambda bounds, state, **options: statescan.ssd(
            x, dt, A, B, C, cu_seqlens=bounds, initial_state=state, **options)),
        "selective_scan": ((5120, 16), lambda bounds, state, **options: statescan.selective_scan(
            wide, wide_dt, own, few, many, cu_seqlens=bounds, initial_state=state, **options)),
        "gated_delta_rule": ((32, 128, 128), lambda bounds, state, **options: statescan.gated_delta_rule(
            q, k, v, g, beta, qk_l2norm=True, cu_seqlens=bounds, initial_state=state, **options)),
        "causal_conv1d": ((5120, 3), lambda bounds, state, **options: statescan.causal_conv1d(
            wide, weight, activation="silu", cu_seqlens=bounds, initial_states=state, return_final_states=True, **options)),
        "simplified_scan": ((256,), lambda bounds, state, **options: statescan.simplified_scan(
            u, delta, rates, to, back, cu_seqlens=bounds, initial_state=state, return_last_state=True, **options)),
    }  # fmt: skip


def positions(steps=8192, count=8):
    """Times of a row, of the row packed, and of both kinds of positions."""
    drawn = sorted(torch.randint(1, steps, (count,)).tolist())
    aligned = [128 * (at * steps // (128 * (count + 1))) for at in range(1, count + 1)]
    for name, (own, scan) in scans(1, steps).items():
        kind = torch.complex64 if name == "simplified_scan" else torch.float32
        pool = torch.zeros(count + 2, *own, device="cuda", dtype=kind)
        first, second = torch.arange(2, device="cuda").split(1)
        all_slots = torch.arange(1, count + 2, device="cuda")[None]
        calls = [(None, second), ([0, steps], second), ([0, *drawn, steps], all_slots), ([0, *aligned, steps], all_slots)]
        times = []
        for bounds, write in calls:
            bounds, slots = bounds and torch.tensor(bounds, device="cuda"), statescan.StatePool(pool, first, write)
            times.append(microseconds([lambda bounds=bounds, slots=slots, scan=scan: scan(bounds, slots)] * 4))
        print(name, *(f"{time:.0f}" for time in times))


if __name__ == "__main__":
    torch.manual_seed(0)
    print(torch.cuda.get_device_name())
    print("8192 steps, us: a row, packed, states at 8 positions, at multiples of 128")
    positions()
    print("2048 tokens of each text, us: texts, the scan, exact")
    for rows in (1, 16):
        for name, (_, scan) in scans(rows, 2048).items():
            both = [microseconds([lambda exact=exact, scan=scan: scan(None, None, exact=exact)]) for exact in (False, True)]
            print(name, rows, *(f"{time:.0f}" for time in both))
