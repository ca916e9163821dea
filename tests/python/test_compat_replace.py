"""`install(replace=True)`: functions of packages that are installed run on ours, wherever they were imported before, and are put
back. The packages here are made for the test: their functions give a word that says that they ran."""

import textwrap

import pytest

from test_compat_install import run

CONVOLUTION = """
    def causal_conv1d_fn(x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False,
                         final_states_out=None, activation=None):
        '''The words of the origin.'''
        return "original"

    def causal_conv1d_update(x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None):
        return "original"

    def causal_conv1d_ref(x, weight):
        return "original"
"""
SCAN = """
    import functools

    try:
        from a_package_that_is_missing import causal_conv1d_fn
    except ImportError:
        causal_conv1d_fn = None

    def with_types(function):
        @functools.wraps(function)
        def wrapped(*arguments, **options):
            return function(*arguments, **options)
        return wrapped

    def selective_scan_fn(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False):
        return "original"

    @with_types
    def mamba_inner_fn(*arguments):
        return "original"
"""
LAYER = """
    import torch
    from causal_conv1d import causal_conv1d_fn
    from mamba_ssm.ops.selective_scan_interface import mamba_inner_fn, selective_scan_fn

    class Mamba(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(6, 4))

        def forward(self, x):
            return causal_conv1d_fn(x, self.weight, activation="silu")
"""
FILES = {
    "causal_conv1d/__init__.py": """
        __version__ = "1.7.0"
        from causal_conv1d.causal_conv1d_interface import causal_conv1d_fn, causal_conv1d_update
    """,
    "causal_conv1d/causal_conv1d_interface.py": CONVOLUTION,
    "mamba_ssm/__init__.py": """
        __version__ = "2.3.2"
        from mamba_ssm.modules.mamba_simple import Mamba
    """,
    "mamba_ssm/modules/__init__.py": "",
    "mamba_ssm/modules/mamba_simple.py": LAYER,
    "mamba_ssm/ops/__init__.py": "",
    "mamba_ssm/ops/selective_scan_interface.py": SCAN,
}


@pytest.fixture
def installed(tmp_path):
    """A folder with both packages."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path


USER = """
import functools, inspect, pickle, sys, threading, warnings
import torch, statescan, statescan.compat
import mamba_ssm
from causal_conv1d import causal_conv1d_fn, causal_conv1d_update
from causal_conv1d.causal_conv1d_interface import causal_conv1d_ref
from mamba_ssm.ops.selective_scan_interface import mamba_inner_fn, selective_scan_fn

held = {"in a dictionary": causal_conv1d_fn, "in a partial": functools.partial(causal_conv1d_fn, activation="silu")}
layer, x, weight = mamba_ssm.Mamba(), torch.randn(2, 6, 9), torch.randn(6, 4)
signature, words = inspect.signature(causal_conv1d_fn), causal_conv1d_fn.__doc__

def are_ours():
    found = held["in a dictionary"](x, weight)
    if isinstance(found, str):
        assert held["in a partial"](x, weight) == layer(x) == selective_scan_fn(x, x, x, x, x) == "original"
        return False
    assert torch.equal(found, statescan.causal_conv1d(x, weight))
    assert torch.equal(held["in a partial"](x, weight), statescan.causal_conv1d(x, weight, activation="silu"))
    assert torch.equal(layer(x), statescan.causal_conv1d(x, layer.weight, activation="silu"))
    assert inspect.signature(causal_conv1d_fn) == signature and causal_conv1d_fn.__doc__ == words
    return True
"""


def test_functions_run_on_ours_and_are_put_back(installed):
    code = """
print(are_ours())
with statescan.compat.install(replace=True) as first:
    print(are_ours(), causal_conv1d_ref(x, weight))
    again = statescan.compat.install(replace=True)
    again.undo()
    print(are_ours())
    layer(x).sum().backward()
    print(layer.weight.grad.shape == weight.shape, type(pickle.loads(pickle.dumps(layer))).__module__)
    data = pickle.dumps((layer, causal_conv1d_fn))
print(are_ours(), inspect.signature(causal_conv1d_fn) == signature)
print(type(pickle.loads(data)[0]).__module__, pickle.loads(data)[1] is causal_conv1d_fn)
statescan.compat.install(replace=True)
print(are_ours())
"""
    layer = "mamba_ssm.modules.mamba_simple"
    expected = ["False", "True", "original", "True", "True", layer, "False", "True", layer, "True", "True"]
    assert run(USER + code, installed) == expected


DELTA = {
    "fla/__init__.py": """
        __version__ = "0.6.0"
        from fla.ops import chunk_gated_delta_rule
    """,
    "fla/ops/__init__.py": "from fla.ops.gated_delta_rule import chunk_gated_delta_rule",
    "fla/ops/gated_delta_rule/__init__.py": """
        def chunk_gated_delta_rule(q, k, v, g, beta, **options):
            return "original"

        def naive_recurrent_gated_delta_rule(q, k, v, beta, g):
            return "original"
    """,
    "fla/ops/kda/__init__.py": """
        import functools

        def fused_recurrent_kda(q, k, v, g, beta, **options):
            return "original"
        fused_recurrent_kda = functools.lru_cache(maxsize=0)(fused_recurrent_kda)
    """,
}


def test_functions_of_fla(tmp_path):
    """Also by names that other modules have taken over before, and one whose code cannot be exchanged; others stay."""
    code = """
import torch, statescan, statescan.compat
import fla
from fla.ops import gated_delta_rule, kda
held = fla.chunk_gated_delta_rule
q, k, v = torch.randn(1, 9, 2, 4), torch.randn(1, 9, 2, 4), torch.randn(1, 9, 2, 3)
g, beta = -torch.rand(1, 9, 2), torch.rand(1, 9, 2)
channels = -torch.rand(1, 9, 2, 4)

def are_ours():
    found, by_channel = held(q, k, v, g, beta), kda.fused_recurrent_kda(q, k, v, channels, beta)
    if isinstance(found, str):
        assert by_channel == "original"
        return False
    assert torch.equal(found[0], statescan.gated_delta_rule(q, k, v, g, beta)[0]) and found[1] is None
    assert torch.equal(by_channel[0], statescan.gated_delta_rule(q, k, v, channels, beta)[0])
    return True

print(are_ours())
with statescan.compat.install(replace=True):
    print(are_ours(), gated_delta_rule.naive_recurrent_gated_delta_rule(q, k, v, beta, g))
print(are_ours())
"""
    for name, text in DELTA.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    assert run(code, tmp_path) == ["False", "True", "original", "False"]


LRU = """
import torch

class LRU(torch.nn.Module):
    def forward(self, x, integration_timesteps=None, lengths=None):
        return "original"
"""


def test_a_method_of_lrnnx(tmp_path):
    """Its layer LRU has no function for its scan."""
    folder = tmp_path / "lrnnx/models/lti"
    folder.mkdir(parents=True)
    for above in (folder, *folder.parents[:2]):
        (above / "__init__.py").touch()
    (folder / "lru.py").write_text(LRU)
    code = """
import torch, statescan.compat
from lrnnx.models.lti.lru import LRU
layer, x = LRU(), torch.randn(2, 5, 3)
shapes = dict.fromkeys(("nu_log", "theta_log", "gamma_log"), 4) | {"D": 3}
shapes |= dict.fromkeys(("B_re", "B_im"), (4, 3)) | dict.fromkeys(("C_re", "C_im"), (3, 4))
for name, shape in shapes.items():
    setattr(layer, name, torch.zeros(shape))
print(layer(x))
with statescan.compat.install(replace=True):
    print(torch.equal(layer(x), 0 * x))
print(layer(x))
"""
    assert run(code, tmp_path) == ["original", "True", "original"]


def test_the_last_context_puts_back(installed):
    code = """
plain, first, second = statescan.compat.install(), statescan.compat.install(replace=True), statescan.compat.install(replace=True)
first.undo()
print(are_ours())
with statescan.compat.install(replace=True):
    second.undo()
    print(are_ours())
import nkilib
print(are_ours())
plain.undo()
print("nkilib" in sys.modules)
"""
    assert run(USER + code, installed) == ["True", "True", "False", "False"]


def test_functions_that_cannot_have_other_code(installed):
    """Those of a decorator are exchanged where they are, and a name that was left without a function has one."""
    code = """
from mamba_ssm.modules import mamba_simple
from mamba_ssm.ops import selective_scan_interface as scans
arguments = [torch.randn(*shape) for shape in ((2, 12, 9), (6, 1, 4), (6,), (3 + 8, 6), (6, 3), (5, 6), (5,))]
A = -torch.rand(6, 4)
print(mamba_simple.mamba_inner_fn(*arguments, A), scans.causal_conv1d_fn)
with statescan.compat.install(replace=True):
    print(mamba_simple.mamba_inner_fn(*arguments, A).shape[-1], scans.mamba_inner_fn(*arguments, A).shape[-1])
    print(scans.causal_conv1d_fn(x, weight).shape[-1])
print(mamba_simple.mamba_inner_fn(*arguments, A), scans.causal_conv1d_fn)
"""
    assert run(USER + code, installed) == ["original", "None", "5", "5", "9", "original", "None"]


def test_what_ours_refuses_is_the_origins(installed):
    code = """
with statescan.compat.install(replace=True):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        print(causal_conv1d_fn(x, weight, activation="relu"), causal_conv1d_fn(x, weight, activation="relu"))
    print(len(caught), "`activation`" in str(caught[0].message), caught[0].filename)
    found = statescan.compat.report()
    print("as installed where" in found["causal_conv1d.causal_conv1d_interface.causal_conv1d_fn"])
    try:
        causal_conv1d_fn(x)
    except TypeError as error:
        print("weight" in str(error))
"""
    assert run(USER + code, installed) == ["original", "original", "1", "True", "<string>", "True", "True"]


def test_report(installed):
    code = """
def said(name):
    return statescan.compat.report().get(name, "nothing").replace(" ", "-")

scan = "mamba_ssm.ops.selective_scan_interface.selective_scan_fn"
print(said("mamba_ssm"), said(scan), said("lrnnx"))
with statescan.compat.install(replace=True):
    import lrnnx
    print(said("mamba_ssm"), said(scan), said("lrnnx"), said("mamba_ssm.modules.mamba_simple.Mamba"))
    print(len(str(statescan.compat.report()).splitlines()) == len(statescan.compat.report()) >= 8)
print(said(scan), said("lrnnx"))
"""
    expected = [
        "installed,-2.3.2",
        "as-installed",
        "not-installed;-install()-lets-statescan-stand-in-for-it",
        "installed,-2.3.2",
        "statescan",
    ]
    expected += ["statescan,-which-stands-in-for-1.0.0", "as-installed,-on-functions-of-statescan", "True"]
    assert run(USER + code, installed) == [*expected, "as-installed", expected[2]]


@pytest.mark.parametrize("broken", ["causal_conv1d", "mamba_ssm"])
def test_a_package_without_its_extension(installed, broken):
    """Ours is found in its place, also by the other package."""
    path = installed / broken / "__init__.py"
    path.write_text("import an_extension_that_is_missing\n" + path.read_text())
    code = """
import sys, statescan.compat
with statescan.compat.install(replace=True):
    from causal_conv1d import causal_conv1d_fn
    from mamba_ssm import Mamba
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
    import BROKEN
    print(BROKEN.__version__.endswith("+statescan"), "an_extension_that_is_missing" in statescan.compat.report()["BROKEN"])
try:
    import BROKEN
except ImportError as error:
    print(error.name)
"""
    assert run(code.replace("BROKEN", broken), installed) == ["True", "True", "an_extension_that_is_missing"]


def test_threads(installed):
    """Calls give one or the other while others install and put back."""
    code = """
failures = []

def repeat(what):
    try:
        for _ in range(100):
            what()
    except Exception as error:
        failures.append(error)

def install_and_undo():
    statescan.compat.install(replace=True).undo()

def within():
    with statescan.compat.install(replace=True):
        assert are_ours()

def use():
    found = causal_conv1d_fn(x, weight)
    assert isinstance(found, str) or found.shape == x.shape

threads = [threading.Thread(target=repeat, args=(what,)) for what in (install_and_undo, install_and_undo, within, within, use)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(failures, are_ours())
statescan.compat.install(replace=True)
print(are_ours())
"""
    assert run(USER + code, installed) == ["[]", "False", "True"]


def test_compiled(installed):
    code = """
statescan.compat.install(replace=True)
compiled = torch.compile(lambda x, weight: 2 * causal_conv1d_fn(x, weight), fullgraph=True, backend="aot_eager")
print(torch.equal(compiled(x, weight), 2 * statescan.causal_conv1d(x, weight)))
"""
    assert run(USER + code, installed) == ["True"]


def test_models_that_have_chosen_are_no_reason_to_warn(installed):
    """They hold the functions that are replaced."""
    models = installed / "transformers" / "models"
    models.mkdir(parents=True)
    for package in (models.parent, models):
        (package / "__init__.py").touch()
    (models / "modeling_mamba.py").write_text("from causal_conv1d import causal_conv1d_fn")
    code = """
import transformers.models.modeling_mamba as chosen
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    statescan.compat.install(replace=True)
print(len(caught), chosen.causal_conv1d_fn(x, weight).shape == x.shape)
"""
    assert run(USER + code, installed) == ["0", "True"]


def test_nothing_is_replaced_without_the_word(installed):
    assert run(USER + "statescan.compat.install()\nprint(are_ours())", installed) == ["False"]
