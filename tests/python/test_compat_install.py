"""Drop-ins have the signatures of their origins, and `install()` puts them where the origins would be."""

import inspect
import subprocess
import sys

import pytest

from statescan import nn
from statescan.compat import (
    blocks,
    causal_conv1d,
    generation,
    layer_norm,
    lrnnx,
    mamba2_simple,
    mamba_ssm,
    models,
    names,
    nkilib,
    norms,
    references,
)

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
        mamba_inner_fn_no_out_proj(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, A, B=None, C=None, D=None,
            delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True)
        bimamba_inner_fn(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, A_b,
            B=None, C=None, D=None, delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True)
        mamba_chunk_scan(x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, dt_softplus=False)
        ssd_selective_scan(x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, dt_limit=(0.0, inf))
    """,
    norms: """
        layernorm_fn(x, weight, bias, z=None, eps=1e-06, group_size=None, norm_before_gate=True, is_rms_norm=False)
        rms_norm_ref(x, weight, bias, z=None, eps=1e-06, group_size=None, norm_before_gate=True, upcast=True)
    """,
    references: """
        selective_scan_ref(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False)
        mamba_inner_ref(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A,
            B=None, C=None, D=None, delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True)
        selective_state_update_ref(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, deltaA=None,
            discretization='mamba')
        simplified_scan_ref(u, delta, A, B, C, deltaA=None, return_last_state=False, discretization='bilinear')
        s5_inner_ref(u, delta, A, B, C, D, deltaA=None, discretization='bilinear', conj_sym=True)
        simplified_state_update_ref(state, x, dt, A, B, C, D=None, deltaA=None, discretization='bilinear', conj_sym=True)
        ssd_chunk_scan_combined_ref(x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, dt_softplus=False)
        mamba_conv1d_scan_ref(xBC, conv1d_weight, conv1d_bias, dt, A, chunk_size, D=None, z=None, dt_bias=None, dt_softplus=False,
            dt_limit=(0.0, inf), activation='silu', headdim=None, ngroups=1)
        mamba_split_conv1d_scan_ref(zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, chunk_size, dt_limit=(0.0, inf),
            activation='silu', rmsnorm_weight=None, rmsnorm_eps=1e-06, outproj_weight=None, outproj_bias=None, headdim=None,
            ngroups=1, norm_before_gate=True)
        causal_conv1d_ref(x, weight, bias=None, initial_states=None, return_final_states=False, final_states_out=None,
            activation=None, seq_idx=None)
        causal_conv1d_update_ref(x, conv_state, weight, bias=None, activation=None, cache_seqlens=None)
        causal_conv1d_varlen_states_ref(x, cu_seqlens, state_len)
        layer_norm_ref(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-06, dropout_p=0.0, rowscale=None,
            prenorm=False, dropout_mask=None, dropout_mask1=None, upcast=False)
        rms_norm_ref(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-06, dropout_p=0.0, rowscale=None,
            prenorm=False, dropout_mask=None, dropout_mask1=None, upcast=False)
    """,
    blocks: """
        Block(dim, mixer_cls, mlp_cls, norm_cls=LayerNorm, fused_add_norm=False, residual_in_fp32=False)
        GatedMLP(in_features, hidden_features=None, out_features=None, activation=silu, bias=False, multiple_of=128, device=None,
            dtype=None)
    """,
    generation: """
        sample(logits, top_k=1, top_p=0.0, min_p=0.0, temperature=1.0)
        decode(input_ids, model, max_length, top_k=1, top_p=0.0, min_p=0.0, temperature=1.0, repetition_penalty=1.0,
            eos_token_id=None, teacher_outputs=None, vocab_size=None, cg=False, enable_timing=False, output_scores=False,
            streamer=None)
    """,
    models: """
        create_block(d_model, d_intermediate, ssm_cfg=None, attn_layer_idx=None, attn_cfg=None, norm_epsilon=1e-05,
            rms_norm=False, residual_in_fp32=False, fused_add_norm=False, layer_idx=None, device=None, dtype=None)
        MixerModel(d_model, n_layer, d_intermediate, vocab_size, ssm_cfg=None, attn_layer_idx=None, attn_cfg=None,
            norm_epsilon=1e-05, rms_norm=False, initializer_cfg=None, fused_add_norm=False, residual_in_fp32=False, device=None,
            dtype=None)
        MambaLMHeadModel(config, initializer_cfg=None, device=None, dtype=None)
        load_config_hf(model_name)
        load_state_dict_hf(model_name, device=None, dtype=None)
    """,
    mamba2_simple: """
        Mamba2Simple(d_model, d_state=64, d_conv=4, conv_init=None, expand=2, headdim=128, ngroups=1, A_init_range=(1, 16),
            dt_min=0.001, dt_max=0.1, dt_init_floor=0.0001, dt_limit=(0.0, inf), learnable_init_states=False, activation='swish',
            bias=False, conv_bias=True, chunk_size=256, use_mem_eff_path=True, layer_idx=None, device=None, dtype=None)
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
        causal_conv1d_varlen_states(x, cu_seqlens, state_len)
    """,
    lrnnx: """
        simplified_scan_fn(u, delta, A, B, C, deltaA=None, return_last_state=False, discretization='bilinear')
        s5_inner_fn(u, delta, A, B, C, D, deltaA=None, discretization='bilinear', conj_sym=True)
        selective_scan_fn(u, delta, A, B, C, D=None, z=None, delta_bias=None, deltaA=None, delta_softplus=False,
            return_last_state=False, discretization='mamba')
        selective_scan_ref(u, delta, A, B, C, D=None, z=None, delta_bias=None, deltaA=None, delta_softplus=False,
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
        shared = [p.replace(default=Named(p.default)) if is_named(p.default) else p for p in shared]
        assert name + str(signature.replace(parameters=shared)) == line


def is_named(default):
    return callable(default) and default is not inspect.Parameter.empty


class Named(str):
    """The name of a function or class, as a default that is written without quotes."""

    def __new__(cls, what):
        return super().__new__(cls, what.__name__)

    def __repr__(self):
        return str(self)


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
    expected = ["2.3.2+statescan", "1.7.0+statescan", "statescan.compat.mamba_ssm", "statescan.compat.lrnnx"]
    expected += ["statescan.nn.mamba", "statescan.compat.layer_norm"]
    assert run(INSTALL + code) == expected


def test_every_name_is_imported():
    lines = [f"from {module} import {name}" for module in names.MODULES for name in names.sources(module)]
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
print(hasattr(mamba_ssm, "Mamba3"), getattr(mamba_ssm, "Mamba3", None), importlib.util.find_spec("mamba_ssm.ops.cute"))
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    for line in ("from mamba_ssm import Mamba3", "import mamba_ssm.ops.cute", "from mamba_ssm.ops.cute import mamba3",
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
    assert run(INSTALL + code, tmp_path) == ["1.0", "missing", "1.7.0+statescan"]


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
