"""A plugin of pytest for the tests of other packages, from their source distributions, on our functions.

Their Python files are imported as if they were installed, extensions that were not built are empty modules, and
`install(replace=True)` puts our functions in place. What tests compare with, their reference functions, is theirs.
`.ci/peers.sh` calls it.
"""

import hashlib
import os
import sys
import types

# the packages' extensions
EXTENSIONS = ("causal_conv1d_cuda", "selective_scan_cuda", "simplified_scan_cuda")
# the most cases of one test: of larger grids a sample is drawn, the same one in every run
MOST = int(os.environ.get("STATESCAN_PEER_CASES", "12"))
# the gradients of reference functions take time as the square of the length: minutes from here on
LONGEST = 1000
# tests that concern the packages' own kernels, or what is not here, by all of some words in their names
LEFT_OUT = {
    ("_race_condition",): "the package's own kernel, ten thousand times",
    # a state that is carried on by our step is the one that our scan would have reached
    ("test_selective_state_update", "bilinear"): "lrnnx's step decays by exp(dt A), its scan by (1 + dt A / 2) / (1 - dt A / 2)",
    ("test_mamba_step_consistency", "dirac"): "lrnnx's layer hands its rule to the step only, not to its fast path",
}


def pytest_configure(config):
    for name in EXTENSIONS:
        sys.modules.setdefault(name, types.ModuleType(name))
    import statescan.compat

    statescan.compat.install(replace=True)


def pytest_report_header():
    import statescan.compat

    found = statescan.compat.report()
    ours = [name for name, words in found.items() if words.startswith("statescan")]
    assert any("." in name for name in ours), f"nothing is ours:\n{found}"
    return f"on statescan: {', '.join(ours)}"


def is_left_out(item):
    length = item.callspec.params.get("seqlen", 0) if hasattr(item, "callspec") else 0
    return length > LONGEST or any(all(word in item.nodeid for word in words) for words in LEFT_OUT)


def pytest_collection_modifyitems(config, items):
    tests = {}
    for item in items:
        if not is_left_out(item):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = []
    for cases in tests.values():
        kept += sorted(cases, key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())[:MOST]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
