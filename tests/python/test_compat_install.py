"""Drop-ins have the signatures of their origins, and `install()` puts them where the origins would be."""

import inspect
import subprocess
import sys

import pytest

from statescan import nn
from statescan.compat import causal_conv1d, layer_norm, lrnnx, mamba_ssm, nkilib

SIGNATURES = {
    mamba_ssm: """
        selective_scan_fn(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False)
        mamba_inner_fn(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A,
            B=None, C=None, D=None, delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True, checkpoint_lvl=1,
            b_rms_weight=None, c_rms_weight=None, dt_rms_weight=None, b_c_dt_rms_eps=1e-06)
        selective_state_update(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None)
        mamba_chunk_scan_combined(x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, initial_states=None, seq_idx=None,
            cu_seqlens=None, dt_softplus=False, dt_limit=(0.0, inf), return_final_states=False, return_varlen_states=False,
            state_dtype=None)
        mamba_split_conv1d_scan_combined(zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, chunk_size, initial_states=None,
            seq_idx=None, dt_limit=(0.0, inf), return_final_states=False, activation='silu', rmsnorm_weight=None,
            rmsnorm_eps=1e-06, outproj_weight=None, outproj_bias=None, headdim=None, ngroups=1, norm_before_gate=True,
            state_dtype=None)
        rmsnorm_fn(x, weight, bias, z=None, eps=1e-06, group_size=None, norm_before_gate=True)
    """,
    layer_norm: """
        layer_norm_fn(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-06, dropout_p=0.0, rowscale=None,
            prenorm=False, residual_in_fp32=False, is_rms_norm=False, return_dropout_mask=False)
        rms_norm_fn(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-06, dropout_p=0.0, rowscale=None,
            prenorm=False, residual_in_fp32=False, return_dropout_mask=False)
        layer_norm_linear_fn(x, norm_weight, norm_bias, linear_weight, linear_bias, residual=None, eps=1e-06, prenorm=False,
            residual_in_fp32=False, is_rms_norm=False)
        RMSNorm(hidden_size, eps=1e-05, dropout_p=0.0, device=None, dtype=None)
    """,
    nn: """
        Mamba(d_model, d_state=16, d_conv=4, expand=2, dt_rank='auto', dt_min=0.001, dt_max=0.1, dt_init='random', dt_scale=1.0,
            dt_init_floor=0.0001, conv_bias=True, bias=False, use_fast_path=True, layer_idx=None, device=None, dtype=None)
        Mamba2(d_model, d_state=128, d_conv=4, conv_init=None, expand=2, headdim=64, d_ssm=None, ngroups=1, A_init_range=(1, 16),
            D_has_hdim=False, rmsnorm=True, norm_before_gate=False, dt_min=0.001, dt_max=0.1, dt_init_floor=0.0001,
            dt_limit=(0.0, inf), bias=False, conv_bias=True, chunk_size=256, use_mem_eff_path=True, layer_idx=None,
            process_group=None, sequence_parallel=True, device=None, dtype=None)
        S5(d_model, d_state, discretization='zoh', conj_sym=False, dt_min=0.001, dt_max=0.1, step_rescale=1.0, use_fast_path=True,
            device=None, dtype=None)
    """,
    causal_conv1d: """
        causal_conv1d_fn(x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False,
            final_states_out=None, activation=None)
        causal_conv1d_update(x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None)
    """,
    lrnnx: """
        simplified_scan_fn(u, delta, A, B, C, deltaA=None, return_last_state=False, discretization='bilinear')
        s5_inner_fn(u, delta, A, B, C, D, deltaA=None, discretization='bilinear', conj_sym=True)
        selective_scan_fn(u, delta, A, B, C, D=None, z=None, delta_bias=None, deltaA=None, delta_softplus=False,
            return_last_state=False, discretization='mamba')
        selective_state_update(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, deltaA=None,
            state_batch_indices=None, discretization='mamba')
        simplified_state_update(state, x, dt, A, B, C, D=None, deltaA=None, discretization='bilinear', conj_sym=True)
    """,
    nkilib: """
        selective_scan(x, dt, A, B, C, D=None, initial_state=None)
        ssd(x, dt, A, B, C, chunk_size=128, D=None, initial_state=None, causal_mask=None)
    """,
}


@pytest.mark.parametrize("module", SIGNATURES, ids=lambda module: module.__name__)
def test_signatures(module):
    """Those of the origins, keywords of our own aside."""
    expected = " ".join(SIGNATURES[module].split()).replace(") ", ")\n").splitlines()
    for line in expected:
        name = line.partition("(")[0]
        signature = inspect.signature(getattr(module, name))
        shared = [p for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert name + str(signature.replace(parameters=shared)) == line


def run(code, path=None):
    code = f"import sys; sys.path.insert(0, {str(path)!r})\n{code}" if path else code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


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
    expected = ["2.3.0+statescan", "1.6.0+statescan", "statescan.compat.mamba_ssm", "statescan.compat.lrnnx"]
    expected += ["statescan.nn.mamba", "statescan.compat.layer_norm"]
    assert run(INSTALL + code) == expected


def test_install_imports_nothing_and_is_found():
    code = """
import importlib.util
statescan.compat.install()
print(*(importlib.util.find_spec(name) is not None for name in ("mamba_ssm", "causal_conv1d", "lrnnx", "nkilib", "mamba")))
print("torch" in sys.modules, sum(type(finder).__module__ == "statescan.compat.standins" for finder in sys.meta_path))
"""
    assert run("import sys\n" + INSTALL + code) == ["True", "True", "True", "True", "False", "False", "1"]


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
    assert run(INSTALL + code, tmp_path) == ["1.0", "missing", "1.6.0+statescan"]


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
"""
    assert "transformers.models.modeling_mamba," in run(code, tmp_path)
