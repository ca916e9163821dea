"""Models of `transformers` are one function in training and evaluation: that of their own modules, whatever stands in these."""

import pytest
import torch

from models import CHUNKED, close, go_plain, gradients_of, made, padded, tokens, transformers

# families for which a package has a function of a whole layer
WHOLE = ["Mamba", "FalconMamba", "Jamba", *CHUNKED]
# a norm of FalconH1 may have either order
ORDERS = [{"mamba_rms_norm": True, "mamba_norm_before_gate": before} for before in (False, True)]
KINDS = [(name, {}) for name in WHOLE] + [("FalconH1", order) for order in ORDERS]
ACTIVATIONS = {name: "mamba_hidden_act" if name == "NemotronH" else "hidden_act" for name in WHOLE if name != "Zamba2"}


@pytest.fixture(params=KINDS, ids=lambda kind: "-".join([kind[0], *(str(value) for value in kind[1].values())]))
def model(request):
    name, more = request.param
    model = made(name, **more)
    for mixer in mixers(model):
        # neither padding nor a norm that is passed by goes unseen
        torch.nn.init.uniform_(mixer.conv1d.bias, -1, 1)
        if has_norm(mixer):
            torch.nn.init.uniform_(mixer.norm.weight, 0.5, 2)
    return model


def mixers(model):
    return [module for module in model.modules() if hasattr(module, "conv1d")]


def has_norm(mixer):
    """FalconH1 may have none, or one that does nothing."""
    return hasattr(getattr(mixer, "norm", None), "weight")


def run(model, prompt):
    """Logits in evaluation and in training, and the gradients of the latter."""
    with torch.no_grad():
        evaluated = model.eval()(**prompt, use_cache=False).logits
    trained = model.train()(**prompt, use_cache=False).logits
    weights = torch.linspace(-1, 1, trained.numel()).view_as(trained)
    return evaluated, trained.detach(), gradients_of(model, (trained * weights).mean())


def check(model, monkeypatch, prompt=None):
    """Training, evaluation and plain `transformers` agree, gradients included; gives the latter's."""
    prompt = {"input_ids": tokens("cpu", seqlen=19)} if prompt is None else prompt
    evaluated, trained, gradients = run(model, prompt)
    go_plain(model, monkeypatch)
    plain, _, expected = run(model, prompt)
    close(evaluated, plain, "evaluation")
    close(trained, plain, "training")
    assert gradients.keys() == expected.keys()
    largest = max(gradient.abs().max() for gradient in expected.values())
    for name, gradient in expected.items():
        error = (gradients[name] - gradient).abs().max()
        assert error <= 1e-4 * gradient.abs().max() + 1e-6 * largest, name
    return expected


class Adapted(torch.nn.Linear):
    """A projection with something beside its weight."""

    def __init__(self, module):
        super().__init__(module.in_features, module.out_features, module.bias is not None)
        self.load_state_dict(module.state_dict())
        self.delta = torch.nn.Parameter(torch.randn_like(self.weight) / 16)

    def forward(self, x):
        return super().forward(x) + x @ self.delta.T


class Packed(torch.nn.Linear):
    """A projection with weights of 8 bits in one row, which it unpacks when it is called."""

    def __init__(self, module):
        super().__init__(module.in_features, module.out_features, module.bias is not None)
        scale = module.weight.detach().abs().amax() / 127
        packed = (module.weight.detach() / scale).round().to(torch.int8)
        self.weight = torch.nn.Parameter(packed.flatten(), requires_grad=False)
        self.register_buffer("scale", scale)
        self.bias = module.bias

    def forward(self, x):
        weight = self.weight.view(self.out_features, self.in_features) * self.scale
        return torch.nn.functional.linear(x, weight, self.bias)


class Scaled(torch.nn.Module):
    """A norm and a number behind it."""

    def __init__(self, norm):
        super().__init__()
        self.norm, self.scale = norm, torch.nn.Parameter(torch.tensor(1.5))
        # models read these of a norm
        self.weight, self.variance_epsilon = norm.weight, norm.variance_epsilon

    def forward(self, *args):
        return self.norm(*args) * self.scale


class Doubled(torch.nn.Module):
    def forward(self, weight):
        return 2 * weight


def projections(mixer, but=()):
    return [(name, m) for name, m in mixer.named_children() if type(m) is torch.nn.Linear and name not in but]


def test_padding_in_training(model, monkeypatch):
    prompt = padded("cpu")
    check(model, monkeypatch, prompt)


@pytest.mark.parametrize("name", ["Mamba", "FalconMamba", "Mamba2"])
def test_padding_changes_nothing_in_training(name):
    model = made(name).train()
    for mixer in mixers(model):
        torch.nn.init.uniform_(mixer.conv1d.bias, -1, 1)
    ids = tokens("cpu", batch=1, seqlen=12)
    longer = torch.cat([torch.zeros(1, 20, dtype=ids.dtype), ids], 1)

    def run(ids, **more):
        logits = model(ids, **more).logits[:, -12:]
        return logits, gradients_of(model, logits.square().mean())

    (got, gradients), (expected, wanted) = run(longer, attention_mask=(longer != 0).long()), run(ids)
    close(got, expected, "logits")
    for key, gradient in wanted.items():
        close(gradients[key], gradient, key)


def test_adapters(model, monkeypatch):
    added = []
    for mixer in mixers(model):
        for name, module in projections(mixer):
            setattr(mixer, name, Adapted(module))
            added.append((name, getattr(mixer, name).delta))
        torch.nn.utils.parametrize.register_parametrization(mixer.conv1d, "weight", Doubled())
        if has_norm(mixer):
            mixer.norm = Scaled(mixer.norm)
            added.append(("norm", mixer.norm.scale))
    assert len(added) >= 2
    check(model, monkeypatch)
    # `transformers` reads the weight of a projection to step sizes, and does not call it
    assert all(parameter.grad.any() for name, parameter in added if name != "dt_proj")


def test_hooks(model, monkeypatch):
    calls = []
    for mixer in mixers(model):
        for name in ("x_proj", "out_proj", "norm"):
            module = getattr(mixer, name, None)
            if module is not None:
                module.register_forward_hook(lambda module, args, y, name=name: calls.append(name) or 1.5 * y)
    check(model, monkeypatch)
    assert len(calls) % 4 == 0 and len(calls) >= 4


def test_packed_projections(model, monkeypatch):
    for mixer in mixers(model):
        for name, module in projections(mixer, but=("dt_proj",)):
            setattr(mixer, name, Packed(module))
    check(model, monkeypatch)


def test_offloaded_weights(model, monkeypatch):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    prompt = {"input_ids": tokens("cpu", seqlen=9)}
    with torch.no_grad():
        expected = model(**prompt).logits
        accelerate.cpu_offload(model, "cpu")
        assert mixers(model)[0].out_proj.weight.is_meta
        for mode in (model.train(), model.eval()):
            close(mode(**prompt, use_cache=False).logits, expected, "logits")
        go_plain(model, monkeypatch)
        close(model(**prompt).logits, expected, "plain")


def test_low_rank_adapters(model, monkeypatch):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    names = sorted({name for mixer in mixers(model) for name, _ in projections(mixer)})
    config = peft.LoraConfig(r=2, target_modules=names, init_lora_weights=False)
    # it refuses some projections of models that it knows
    peft.inject_adapter_in_model(config, torch.nn.ModuleList(mixers(model)))
    trained = [name for name in check(model, monkeypatch) if "lora_" in name]
    assert all(any(f"{name}.lora_A" in key for key in trained) for name in names if name != "dt_proj")


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_a_configuration(name, monkeypatch):
    check(made(name, **{ACTIVATIONS[name]: "gelu"}), monkeypatch)


def test_others_get_functions_of_a_whole_layer():
    """Models are given other functions than those who import these by name, before and after."""
    assert transformers.models.mamba.modeling_mamba.mamba_inner_fn() is None
    from mamba_ssm import mamba_inner_fn
    from mamba_ssm.ops import selective_scan_interface
    from mamba_ssm.ops.triton.ssd_combined import mamba_split_conv1d_scan_combined

    assert mamba_inner_fn is selective_scan_interface.mamba_inner_fn
    for function in (mamba_inner_fn, mamba_split_conv1d_scan_combined):
        assert function.__module__ in ("statescan.compat.inner", "statescan.compat.mamba_ssm")
