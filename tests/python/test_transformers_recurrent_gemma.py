"""RecurrentGemma of `transformers` with its loop over tokens on `linear_scan`, against its own."""

import subprocess
import sys

import pytest
import torch

from models import SHARED, gradients_of, padded, tokens, transformers
from statescan.compat import _recurrent_gemma

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"))]


@pytest.fixture(params=DEVICES)
def model(request):
    torch.manual_seed(0)
    sizes = {**SHARED, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96, "attention_window_size": 8}
    config = transformers.RecurrentGemmaConfig(**sizes, lru_width=48)
    return transformers.RecurrentGemmaForCausalLM(config).eval().to(request.param)


def plain(model, monkeypatch):
    layer = type(next(m for m in model.modules() if hasattr(m, "_rnn_scan")))
    assert _recurrent_gemma.is_ours() and layer._rnn_scan.__wrapped__ is _recurrent_gemma._REPLACED[layer]
    monkeypatch.setattr(layer, "_rnn_scan", layer._rnn_scan.__wrapped__)


def close(got, expected, bound):
    assert (got - expected).abs().max() <= bound * expected.abs().max()


@pytest.mark.parametrize("kind", ["whole", "padded", "texts"])
def test_logits_and_gradients(model, kind, monkeypatch):
    """Also of rows that begin with padding, and of texts behind one another, which positions of 0 begin."""
    device = model.device
    prompt = padded(device) if kind == "padded" else {"input_ids": tokens(device)}
    prompt = {name: tensor.to(device) for name, tensor in prompt.items()}
    if kind == "texts":
        prompt["position_ids"] = torch.cat([torch.arange(20), torch.arange(17)]).repeat(2, 1).to(device)

    def run():
        logits = model(**prompt, use_cache=False).logits
        weights = torch.linspace(-1, 1, logits.numel(), device=device).view_as(logits)
        return logits.detach(), gradients_of(model, (logits * weights).mean())

    logits, gradients = run()
    plain(model, monkeypatch)
    expected_logits, expected_gradients = run()
    close(logits, expected_logits, 1e-5)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        close(gradient, expected_gradients[name], 1e-4)


def test_generation(model, monkeypatch):
    """States go on from prompt to prompt's end and through steps."""
    prompt, options = padded(model.device), {"max_new_tokens": 12, "do_sample": False, "output_logits": True}
    options["return_dict_in_generate"] = True
    found = model.generate(**prompt, **options)
    states = [m.recurrent_states for m in model.modules() if hasattr(m, "_rnn_scan")]
    plain(model, monkeypatch)
    expected = model.generate(**prompt, **options)
    assert torch.equal(found.sequences, expected.sequences)
    close(torch.stack(found.logits), torch.stack(expected.logits), 1e-5)
    for state, layer in zip(states, [m for m in model.modules() if hasattr(m, "_rnn_scan")]):
        assert state.dtype == torch.float32
        close(state, layer.recurrent_states, 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_types(model, dtype, monkeypatch):
    """In f64 theirs carries states in f32; one token and no state gives the input."""
    layer = next(m for m in model.modules() if hasattr(m, "_rnn_scan"))
    x, a = torch.randn(2, 9, 48, device=model.device).to(dtype), torch.rand(2, 9, 48, device=model.device).to(dtype)
    reset = torch.zeros(2, 9, 1, dtype=torch.bool, device=model.device)
    calls = [(x, a, reset, None), (x[:, :1], a[:, :1], reset[:, :1], None), (x, a, reset, torch.ones(2, 48, device=model.device))]
    found = [layer._rnn_scan(*call) for call in calls]
    plain(model, monkeypatch)
    for (h, state), (expected, expected_state) in zip(found, [layer._rnn_scan(*call) for call in calls]):
        assert (h.dtype, state.dtype) == (expected.dtype, expected_state.dtype)
        torch.testing.assert_close(h, expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)
        torch.testing.assert_close(state, expected_state)


def test_compiled(model):
    if model.device.type != "cpu":
        pytest.skip("one device is enough")
    layer, x = next(m for m in model.modules() if hasattr(m, "_rnn_scan")), torch.randn(2, 9, 48)
    positions = torch.arange(9)[None]
    compiled = torch.compile(lambda x: layer(x, positions), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x, positions))


STUB = """
class RecurrentGemmaRglru:
    def _rnn_scan(self, hidden_states, recurrent_gate, reset, recurrent_states, acc_dtype=None):
        return "original"
"""


@pytest.mark.parametrize("early", [False, True])
def test_put_and_put_back(early, tmp_path):
    """Whether the module is imported before `install()` or after it; a second context changes nothing."""
    folder = tmp_path / "transformers/models/recurrent_gemma"
    folder.mkdir(parents=True)
    for above in (folder, *folder.parents[:2]):
        (above / "__init__.py").touch()
    (folder / "modeling_recurrent_gemma.py").write_text(STUB)
    code = f"""
import sys, statescan.compat
sys.path.insert(0, {str(tmp_path)!r})
{"from transformers.models.recurrent_gemma import modeling_recurrent_gemma as m" if early else ""}
with statescan.compat.install():
    from transformers.models.recurrent_gemma import modeling_recurrent_gemma as m
    with statescan.compat.install():
        pass
    print(hasattr(m.RecurrentGemmaRglru._rnn_scan, "__wrapped__"), statescan.compat.report()[m.__name__])
print(m.RecurrentGemmaRglru()._rnn_scan(1, 2, 3, 4), m.__name__ in statescan.compat.report())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["True statescan for the loop over tokens", "original False"]
