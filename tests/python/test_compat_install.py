"""Drop-ins have the signatures of their origins, and `install()` puts them where the origins would be."""

import ast
import dataclasses
import inspect
from importlib import import_module

import pytest
import torch

import origins
import test_import
from processes import output
from statescan.compat import _names, _transformers

# signatures of origins whose source is not at hand: forks of mamba_ssm, and AWS's package
OTHERS = """
    mamba_inner_fn_no_out_proj(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, A, B=None, C=None, D=None,
        delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True)
    bimamba_inner_fn(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, A_b,
        B=None, C=None, D=None, delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True)
    selective_scan(x, dt, A, B, C, D=None, initial_state=None)
    ssd(x, dt, A, B, C, chunk_size=128, D=None, initial_state=None, causal_mask=None)
"""
OTHERS = {line.partition("(")[0]: line for line in " ".join(OTHERS.split()).replace(") ", ")\n").splitlines()}


@pytest.fixture(scope="module")
def origin():
    if not origins.sources():
        pytest.skip(f"there are no sources of other packages in {origins.FOLDER}: .ci/peers.sh fetches them")
    return origins.Origin()


def ours(module, name):
    return getattr(import_module(_names.sources(module)[name], "statescan.compat"), name)


def value(default):
    """What the source of a default means."""
    known = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "field": dataclasses.field}
    return eval(compile(ast.Expression(default), "default", "eval"), known)


def check_parameters(what, expected, signature):
    """Those of an origin come first, with their names and defaults; what is added has a default."""
    found = list(signature.parameters.values())
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    shared = [parameter for parameter in found if parameter.kind is not parameter.KEYWORD_ONLY][: len(expected)]
    assert [stars.get(p.kind, "") + p.name for p in shared] == [name for name, _ in expected], what
    for parameter, (name, default) in zip(shared, expected):
        assert parameter.default == (parameter.empty if default is None else value(default)), (what, name)
    rest = (parameter for parameter in found if parameter not in shared and parameter.kind is not parameter.VAR_KEYWORD)
    assert all(parameter.default is not parameter.empty for parameter in rest), what


@pytest.mark.parametrize("module", _names.MODULES)
def test_signatures(origin, module):
    """Every function, and every method of a class, has the parameters of its origin."""
    for name in _names.sources(module):
        # the root of fla takes in what its operations have
        found, node = ours(module, name), origin.find(module, name) or origin.find(f"{module}.ops", name)
        if isinstance(node, ast.ClassDef):
            for method, function in origins.methods(node).items():
                member = inspect.getattr_static(found, method)
                signature = inspect.signature(getattr(member, "__func__", member))
                check_parameters(f"{name}.{method}", origins.parameters(function), signature)
            if dataclasses.is_dataclass(found):
                has = [(field.name, field.default, field.default_factory) for field in dataclasses.fields(found)]
                assert [name for name, *_ in has] == [name for name, _ in origins.fields(node)]
                for (field, *defaults), (_, default) in zip(has, origins.fields(node)):
                    wanted = dataclasses.MISSING if default is None else value(default)
                    wanted = getattr(wanted, "default_factory", wanted)
                    assert wanted in defaults, (name, field)
        elif node is not None:
            check_parameters(name, origins.parameters(node), inspect.signature(found))
        elif "_cuda" not in module and (module, name) != ("mamba_ssm.modules.mamba_simple", "Block"):
            # compiled modules tell no signatures, and the block of older versions is that of the newer ones
            parameters = inspect.signature(found).parameters.values()
            shared = [p.replace(annotation=p.empty) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
            assert name + str(inspect.Signature(shared)) == OTHERS[name]


def test_models_of_transformers_are_given_the_same_signatures():
    for name, function in _transformers.FUNCTIONS.items():
        modules = [module for module in _names.MODULES if name in _names.sources(module)]
        assert inspect.signature(function) == inspect.signature(ours(modules[0], name)), name


def run(code, path=None):
    return output(f"import sys; sys.path.insert(0, {str(path)!r})\n{code}" if path else code).split()


INSTALL = "import statescan.compat; statescan.compat.install()\n"


def test_imports_of_the_origins():
    code = """
from mamba_ssm.ops.selective_scan_interface import mamba_inner_fn, selective_scan_fn
from mamba_ssm import Mamba, Mamba2
from mamba_ssm.modules.mamba2 import Mamba2 as Mamba2Too
from mamba_ssm.modules.mamba_simple import Mamba as MambaToo
from mamba_ssm.ops.triton.layer_norm import RMSNorm, layer_norm_fn, layer_norm_linear_fn, rms_norm_fn
from mamba_ssm.ops.triton.layernorm_gated import LayerNorm, RMSNorm, layernorm_fn, rmsnorm_fn
from mamba_ssm.ops.triton.selective_state_update import selective_state_update
from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined, mamba_split_conv1d_scan_combined
from causal_conv1d import causal_conv1d_fn, causal_conv1d_update
from lrnnx.models.ltv import S5
from lrnnx.models.ltv.s5 import S5 as S5Too
from lrnnx.ops.selective_scan import selective_scan_fn as lrnnx_scan
from lrnnx.ops.simplified_scan import s5_inner_fn, simplified_scan_fn
from lrnnx.ops.triton.simplified_state_update import simplified_state_update
from nkilib.experimental.scan import selective_scan, ssd
import mamba_ssm, causal_conv1d
assert (Mamba, Mamba2, S5) == (MambaToo, Mamba2Too, S5Too)
print(mamba_ssm.__version__, causal_conv1d.__version__, selective_scan_fn.__module__, lrnnx_scan.__module__)
print(Mamba.__module__, rms_norm_fn.__module__)
"""
    expected = ["2.3.2+statescan", "1.7.0+statescan", "statescan.compat.mamba_ssm", "statescan.compat.lrnnx"]
    expected += ["statescan.nn.mamba", "statescan.compat.layer_norm"]
    assert run(INSTALL + code) == expected


def test_every_name_is_imported():
    lines = [f"from {module} import {name}" for module in _names.MODULES for name in _names.sources(module)]
    assert len(lines) > 60
    run(INSTALL + "\n".join(lines))


# lines of projects that use these packages, and a package of it each
LINES = """
    from mamba_ssm import Mamba, Mamba2, MambaLMHeadModel
    from mamba_ssm.models.config_mamba import MambaConfig
    from mamba_ssm.models.mixer_seq_simple import MambaLMHeadModel, MixerModel, create_block
    from mamba_ssm.modules.block import Block
    from mamba_ssm.modules.mamba2_simple import Mamba2Simple
    from mamba_ssm.modules.mamba_simple import Mamba, Block
    from mamba_ssm.modules.mlp import GatedMLP
    from mamba_ssm.modules.ssd_minimal import segsum, ssd_minimal_discrete
    from mamba_ssm.ops.triton.ssd_chunk_state import chunk_state, chunk_state_ref
    import selective_scan_cuda, selective_scan_cuda_core, selective_scan_cuda_oflex, causal_conv1d_cuda
    from mamba_ssm.ops.selective_scan_interface import mamba_inner_fn_no_out_proj, bimamba_inner_fn, selective_scan_ref
    from mamba_ssm.ops.triton.layer_norm import layer_norm_ref, rms_norm_ref
    from mamba_ssm.ops.triton.layernorm_gated import RMSNorm as RMSNormGated
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update_ref
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan, ssd_selective_scan, mamba_split_conv1d_scan_ref
    from mamba_ssm.utils.generation import InferenceParams, GenerationMixin
    from mamba_ssm.utils.hf import load_config_hf, load_state_dict_hf
    from causal_conv1d.causal_conv1d_interface import causal_conv1d_ref, causal_conv1d_update_ref
    from causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states
    from lrnnx.ops import mamba_inner_fn, selective_scan_ref
    from lrnnx.ops.simplified_scan import s5_inner_ref, simplified_scan_ref
"""


def test_lines_of_projects():
    assert run(INSTALL + "\n".join(line.strip() for line in LINES.splitlines()) + "\nprint(MambaConfig().n_layer)") == ["64"]


def test_names_that_are_not_here():
    """An import fails with a sentence, and one that is caught has warned once; who only asks gets an answer."""
    code = """
import importlib.util, warnings
import mamba_ssm.ops
warnings.simplefilter("error")
print(hasattr(mamba_ssm, "Mamba4"), getattr(mamba_ssm, "Mamba4", None), importlib.util.find_spec("mamba_ssm.ops.cute"))
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    for line in ("from mamba_ssm import Mamba4", "import mamba_ssm.ops.cute", "from mamba_ssm.ops.cute import mamba3",
                 "from mamba_ssm.ops import cute"):
        for _ in range(2):
            try:
                exec(line)
            except ImportError as error:
                print(f"{type(error).__name__}:", "install mamba-ssm for it" in str(error), "stands in for" in str(error))
print(len(caught), caught[0].filename)
"""
    lines = ["ImportError:"] * 2 + ["ModuleNotFoundError:"] * 4 + ["ImportError:"] * 2
    expected = ["False", "None", "None", *(word for line in lines for word in (line, "True", "True")), "2", "<string>"]
    assert run(INSTALL + code) == expected


def test_install_imports_nothing_and_is_found():
    code = """
import importlib.util
statescan.compat.install()
print(*(importlib.util.find_spec(name) is not None for name in ("mamba_ssm", "causal_conv1d", "lrnnx", "nkilib", "mamba")))
print("torch" in sys.modules, sum(type(finder).__module__ == "statescan.compat._standins" for finder in sys.meta_path))
"""
    assert test_import.run("import sys\n" + INSTALL + code).split() == ["True", "True", "True", "True", "False", "False", "1"]


def test_nothing_without_install():
    code = """
import statescan.compat
try:
    import nkilib
except ModuleNotFoundError:
    print("missing")
"""
    assert run(code) == ["missing"]


def test_installed_packages_go_first(tmp_path):
    package = tmp_path / "mamba_ssm"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '1.0'")
    code = """
import mamba_ssm
try:
    import mamba_ssm.ops
except ModuleNotFoundError:
    print(mamba_ssm.__version__, "missing")
import causal_conv1d
print(causal_conv1d.__version__)
"""
    assert run(INSTALL + code, tmp_path) == ["1.0", "missing", "1.7.0+statescan"]


def test_the_last_context_puts_back():
    code = """
def is_there():
    try:
        import nkilib
        return True
    except ImportError:
        return False
first, second = statescan.compat.install(), statescan.compat.install()
import lrnnx.models
first.undo()
first.undo()
print(is_there(), lrnnx is sys.modules["lrnnx"])
second.undo()
print(is_there())
"""
    assert run("import sys, statescan.compat\n" + code) == ["True", "True", "False"]
    # a call without a context installs for ever
    assert run("import sys\n" + INSTALL + code) == ["True", "True", "True"]


def test_contexts_in_threads():
    code = """
import threading
failures, barrier = [], threading.Barrier(4, timeout=60)
def work(number):
    for turn in range(50):
        barrier.wait()
        with statescan.compat.install():
            for _ in range(number):
                try:
                    import nkilib
                except ImportError as error:
                    failures.append(error)
threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 10, 40)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(failures, "nkilib" in sys.modules, len(sys.meta_path) == count)
"""
    before = "import sys, statescan.compat\ncount = len(sys.meta_path)"
    assert run(before + code) == ["[]", "False", "True"]


def test_late_install_warns(tmp_path):
    models = tmp_path / "transformers" / "models"
    models.mkdir(parents=True)
    for package in (models.parent, models):
        (package / "__init__.py").touch()
    (models / "modeling_mamba.py").write_text("def causal_conv1d_fn(): ...")
    code = """
import warnings, transformers.models.modeling_mamba, statescan.compat
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    statescan.compat.install()
    statescan.compat.install()
print(*(warning.message for warning in caught))
print("transformers.models.modeling_mamba" in statescan.compat.report(), str(statescan.compat.report()).count("new process"))
"""
    words = run(code, tmp_path)
    assert "transformers.models.modeling_mamba," in words and words[-2:] == ["True", "1"]


def test_report_says_what_is_ready():
    code = """
import statescan.compat
def said(name):
    return statescan.compat.report()[name].split(":")[0].split(";")[0].split(",")[0].replace(" ", "-")
print(said("causal_conv1d"), said("nkilib"))
statescan.compat.install()
import nkilib
print(said("causal_conv1d"), said("nkilib"))
"""
    assert run(code) == ["not-installed", "not-installed", "ready", "statescan"]


def test_without_pytorch_an_error_names_the_extra():
    code = """
import sys
sys.modules["torch"] = None
import statescan.compat
statescan.compat.install()
for line in ("import statescan.nn", "from mamba_ssm import Mamba", "from causal_conv1d import causal_conv1d_fn"):
    try:
        exec(line)
    except ImportError as error:
        print(error.name, str(error).endswith("needs PyTorch: pip install 'statescan[torch]'"))
"""
    assert test_import.run(code).split() == ["torch", "True"] * 3
