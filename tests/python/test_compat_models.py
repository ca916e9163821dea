"""Blocks, language models and generation under the names of `mamba_ssm`."""

import json

import pytest
import torch
from torch import nn
from torch.nn.functional import linear, silu

from agreement import agree
from cases import Random
from statescan import nn as layers
from statescan.compat import blocks, generation, layer_norm, mamba_ssm, models
from statescan.compat.mamba2_simple import Mamba2Simple

SMALL = {"d_model": 32, "n_layer": 2, "vocab_size": 50}
KINDS = {"Mamba": {}, "Mamba2": {"layer": "Mamba2", "headdim": 16, "d_state": 8, "chunk_size": 16}}


def model(kind="Mamba", **settings):
    torch.manual_seed(3)
    return models.MambaLMHeadModel(models.MambaConfig(**{**SMALL, "ssm_cfg": KINDS[kind], **settings}))


def tokens(batch=2, seqlen=7):
    return torch.randint(50, (batch, seqlen), generator=torch.Generator().manual_seed(4))


def plain(language_model, ids):
    """The model by its layers, a plain sum and PyTorch's norms in float64."""

    def normed(norm, x):
        kept = x if isinstance(norm, layer_norm.RMSNorm) else x - x.mean(-1, keepdim=True)
        y = kept / (kept.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight
        return y if norm.bias is None else y + norm.bias

    stream = language_model.backbone.embedding(ids)
    for block in language_model.backbone.layers:
        stream = stream + block.mixer(normed(block.norm, stream))
        if block.mlp is not None:
            y, gate = linear(normed(block.norm2, stream), block.mlp.fc1.weight).chunk(2, -1)
            stream = stream + linear(y * silu(gate), block.mlp.fc2.weight)
    return linear(normed(language_model.backbone.norm_f, stream), language_model.lm_head.weight)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fused_add_norm", [False, True])
@pytest.mark.parametrize("rms_norm", [False, True])
@pytest.mark.parametrize("d_intermediate", [0, 64])
def test_logits(kind, fused_add_norm, rms_norm, d_intermediate):
    settings = {"fused_add_norm": fused_add_norm, "rms_norm": rms_norm, "d_intermediate": d_intermediate}
    language_model = model(kind, **settings).double()
    ids = tokens()
    got = language_model(ids).logits
    # sums are float32 where norms keep them, `residual_in_fp32`
    torch.testing.assert_close(got, plain(language_model, ids), rtol=1e-5, atol=1e-6)
    assert got.shape == (2, 7, 56)
    torch.testing.assert_close(language_model(ids, num_last_tokens=2).logits, got[:, -2:])
    got.sum().backward()
    assert all(parameter.grad is not None for parameter in language_model.parameters())


def test_names_of_parameters():
    names = set(model(d_intermediate=64).state_dict())
    layer = "backbone.layers.1."
    mixer = {"A_log", "D", "conv1d.bias", "conv1d.weight", "dt_proj.bias", "dt_proj.weight", "in_proj.weight"}
    mixer |= {"out_proj.weight", "x_proj.weight"}
    expected = {f"{layer}mixer.{name}" for name in mixer}
    expected |= {f"{layer}{name}.weight" for name in ("norm", "norm2", "mlp.fc1", "mlp.fc2")}
    assert {name for name in names if name.startswith(layer)} == expected
    assert names >= {"backbone.embedding.weight", "backbone.norm_f.weight", "lm_head.weight"}
    tied = model()
    assert tied.lm_head.weight is tied.backbone.embedding.weight
    untied = model(tie_embeddings=False)
    assert untied.lm_head.weight is not untied.backbone.embedding.weight


def test_first_values():
    """What adds to the stream is smaller in deeper models; norms, embeddings and steps are left as they should be."""
    deep = model(n_layer=16, d_intermediate=64)
    bound = (1 / 64) ** 0.5 / (2 * 16) ** 0.5
    assert 0.9 * bound < deep.backbone.layers[0].mixer.out_proj.weight.abs().max() <= bound
    assert 0.018 < deep.backbone.embedding.weight.std() < 0.022
    assert deep.backbone.layers[0].mixer.dt_proj.bias.abs().min() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_generation_is_the_likeliest_token(kind):
    language_model = model(kind)
    out = language_model.generate(tokens(), 20, return_dict_in_generate=True, output_scores=True)
    assert out.sequences.shape == (2, 20) and len(out.scores) == 13
    likeliest = language_model(out.sequences).logits.argmax(-1)
    assert torch.equal(likeliest[:, 6:-1], out.sequences[:, 7:])
    assert torch.equal(language_model.generate(tokens(), 20, cg=True), out.sequences)
    assert language_model.generate(tokens(), 20, return_dict_in_generate=True).scores is None


def test_generation_with_options():
    language_model = model()
    ids = tokens()
    free = language_model.generate(ids, 20)
    taught = language_model.generate(ids, 20, teacher_outputs=torch.cat([ids, torch.full((2, 5), 3)], 1))
    assert torch.equal(taught[:, 7:12], torch.full((2, 5), 3))
    assert torch.equal(language_model(taught).logits.argmax(-1)[:, 11:-1], taught[:, 12:])
    first = free[:, 7]
    if (first == first[0]).all():
        assert language_model.generate(ids, 20, eos_token_id=int(first[0])).shape == (2, 8)
    assert language_model.generate(ids[:1], 20, eos_token_id=int(first[0])).shape == (1, 8)
    assert language_model.generate(ids, 20, vocab_size=10)[:, 7:].max() < 10
    others = language_model.generate(ids, 40, repetition_penalty=1e6)
    assert all(len(set(row.tolist())) >= 34 for row in others)

    class Streamer:
        seen, ended = [], False

        def put(self, value):
            self.seen.append(value)

        def end(self):
            self.ended = True

    streamer = Streamer()
    out = language_model.generate(ids, 12, streamer=streamer)
    assert torch.equal(torch.cat(streamer.seen, 1), out) and streamer.ended


def test_sample():
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    logits = probabilities.log().expand(4000, 4)
    torch.manual_seed(5)

    def drawn(**options):
        return generation.sample(logits, **options).bincount(minlength=4) / 4000

    def near(got, expected):
        return (got - torch.tensor(expected)).abs().max() < 0.04 and not got[torch.tensor(expected) == 0].any()

    assert near(drawn(), [1.0, 0, 0, 0])
    assert near(drawn(top_k=0), probabilities.tolist())
    assert near(drawn(top_k=2), [0.625, 0.375, 0, 0])
    assert near(drawn(top_k=0, top_p=0.7), [0.625, 0.375, 0, 0])
    assert near(drawn(top_k=3, top_p=0.5), [1.0, 0, 0, 0])
    assert near(drawn(top_k=0, min_p=0.2), [0.526, 0.316, 0.158, 0])
    squared = probabilities.square() / probabilities.square().sum()
    assert near(drawn(top_k=0, temperature=0.5), squared.tolist())
    with pytest.raises(ValueError, match="sample: `top_p` must be between 0 and 1, got 1.5"):
        drawn(top_p=1.5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", ["bin", "safetensors"])
def test_a_local_folder(kind, stored, tmp_path):
    language_model = model(kind)
    language_model.save_pretrained(tmp_path / "model")
    if stored == "safetensors":
        safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
        weights = {name: w.contiguous() for name, w in language_model.state_dict().items() if name != "lm_head.weight"}
        safetensors.save_file(weights, tmp_path / "model" / "model.safetensors")
        (tmp_path / "model" / "pytorch_model.bin").unlink()
    again = models.MambaLMHeadModel.from_pretrained(str(tmp_path / "model"))
    assert torch.equal(again(tokens()).logits, language_model(tokens()).logits)
    half = models.MambaLMHeadModel.from_pretrained(tmp_path / "model", dtype=torch.bfloat16)
    assert half.backbone.layers[0].mixer.in_proj.weight.dtype == torch.bfloat16


def test_folders_that_are_wrong(tmp_path):
    with pytest.raises(FileNotFoundError, match="`pretrained_model_name` must be a local folder, got 'state-spaces/mamba-130m'"):
        models.MambaLMHeadModel.from_pretrained("state-spaces/mamba-130m")
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "layers": 3}))
    with pytest.raises(ValueError, match="settings that a MambaConfig has not: layers"):
        models.MambaLMHeadModel.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    with pytest.raises(FileNotFoundError, match="has no model.safetensors or pytorch_model.bin"):
        models.MambaLMHeadModel.from_pretrained(tmp_path)
    with pytest.raises(ImportError, match="create_block: `attn_layer_idx` has 1: there are no layers with attention here"):
        model(attn_layer_idx=[1])
    with pytest.raises(ValueError, match='a layer of "Mamba1" or "Mamba2", got \'Mamba3\''):
        models.create_block(32, 0, ssm_cfg={"layer": "Mamba3"})


@pytest.mark.parametrize("name", ["hf_mamba", "hf_mamba2"])
def test_stored_models(vectors, name):
    """Models of `transformers` with the names of `mamba_ssm`, against logits and tokens that `transformers` computed."""
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    settings = json.loads((vectors / name / "config.json").read_text())
    layer = {"d_state": settings["state_size"], "d_conv": settings["conv_kernel"], "expand": settings["expand"]}
    if name == "hf_mamba2":
        layer |= {"layer": "Mamba2", "headdim": settings["head_dim"], "ngroups": settings["n_groups"]}
    else:
        layer["dt_rank"] = settings["time_step_rank"]
    config = {"d_model": settings["hidden_size"], "n_layer": settings["num_hidden_layers"], "ssm_cfg": layer}
    config |= {"vocab_size": settings["vocab_size"], "pad_vocab_size_multiple": 1}
    language_model = models.MambaLMHeadModel(models.MambaConfig(**config, tie_embeddings=settings["tie_word_embeddings"]))
    weights = safetensors.load_file(vectors / name / "model.safetensors")
    weights = {key.replace("embeddings.", "embedding."): weight for key, weight in weights.items()}
    weights.setdefault("lm_head.weight", weights["backbone.embedding.weight"])
    language_model.load_state_dict(weights)
    expected = safetensors.load_file(vectors / name / "expected.safetensors")
    with torch.no_grad():
        difference = (language_model(expected["input_ids"]).logits - expected["logits"]).abs()
    assert (difference <= 1e-5 * expected["logits"].abs().max() + 1e-4 * expected["logits"].abs()).all()
    greedy = expected["greedy"]
    assert torch.equal(language_model.generate(greedy[:, :9], greedy.shape[1]), greedy)


def test_a_cache_of_many_steps():
    """Layers go on from `InferenceParams` by any number of steps, and start again after `reset`."""
    language_model, ids = model("Mamba2"), tokens(seqlen=12)
    expected = language_model(ids).logits
    cache = generation.InferenceParams(max_seqlen=12, max_batch_size=2)
    for _ in range(2):
        parts = []
        for start, end in ((0, 5), (5, 6), (6, 12)):
            parts.append(language_model(ids[:, start:end], inference_params=cache).logits)
            cache.seqlen_offset = end
        torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=1e-4, atol=1e-5)
        cache.reset(12, 2)


def test_block_of_any_mixer():
    class Mixer(nn.Linear):
        def __init__(self, dim):
            super().__init__(dim, dim)

        def forward(self, x, inference_params=None, scale=1):
            return super().forward(x) * scale

    block = blocks.Block(8, Mixer, nn.Identity, residual_in_fp32=True).bfloat16()
    x = torch.randn(2, 3, 8, dtype=torch.bfloat16)
    hidden, stream = block(x, x, scale=2)
    assert stream.dtype == torch.float32 and torch.equal(stream, 2 * x.float())
    assert torch.equal(hidden, block.mixer(block.norm(x + x)) * 2)
    with pytest.raises(ValueError, match="Block: `norm_cls` must make a LayerNorm or RMSNorm"):
        blocks.Block(8, Mixer, nn.Identity, norm_cls=lambda dim: nn.Linear(dim, dim), fused_add_norm=True)


def test_gated_unit():
    unit = blocks.GatedMLP(8, 100, 5, dtype=torch.float64)
    assert unit.fc1.weight.shape == (256, 8) and unit.fc2.weight.shape == (5, 128)
    assert blocks.GatedMLP(96).fc2.weight.shape == (96, 256)

    def plain_unit(x, first, second):
        y, gate = (x @ first.T).chunk(2, -1)
        return (y * silu(gate)) @ second.T

    def call(x, first, second):
        return torch.func.functional_call(unit, {"fc1.weight": first, "fc2.weight": second}, (x,))

    r = Random(1)
    agree(call, plain_unit, {"x": r.real(2, 8), "first": r.real(256, 8), "second": r.real(5, 128)})


@pytest.mark.parametrize("ngroups", [1, 2])
@pytest.mark.parametrize("learnable_init_states", [False, True])
def test_mamba2_simple(ngroups, learnable_init_states):
    """One norm over all channels, and a state to start from."""
    torch.manual_seed(6)
    layer = Mamba2Simple(16, 8, headdim=8, ngroups=ngroups, learnable_init_states=learnable_init_states, chunk_size=16).double()
    if learnable_init_states:
        nn.init.normal_(layer.init_states)
    x = Random(2).real(2, 11, 16)
    z, xBC, dt = layer.in_proj(x).split([32, 32 + 2 * ngroups * 8, 4], -1)
    xBC = silu(layer.conv1d(xBC.transpose(1, 2))[..., :11]).transpose(1, 2)
    value, B, C = xBC.split([32, ngroups * 8, ngroups * 8], -1)
    options = {"D": layer.D, "dt_bias": layer.dt_bias, "dt_softplus": True}
    if learnable_init_states:
        options["initial_states"] = layer.init_states.expand(2, -1, -1, -1)
    maps = (map.unflatten(-1, (ngroups, 8)) for map in (B, C))
    y = mamba_ssm.mamba_chunk_scan_combined(value.unflatten(-1, (4, 8)), dt, -layer.A_log.exp(), *maps, 16, **options)
    y = y.flatten(2) * silu(z)
    y = y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.norm.weight
    torch.testing.assert_close(layer(x), layer.out_proj(y), rtol=1e-6, atol=1e-7)
    if learnable_init_states:
        layer(x).sum().backward()
        assert layer.init_states.grad.abs().sum() > 0
        with pytest.raises(ValueError, match="Mamba2Simple: `inference_params` must be None"):
            layer(x, inference_params=generation.InferenceParams(4, 2))
    assert isinstance(layer, layers.Mamba2)
    with pytest.raises(ValueError, match='Mamba2Simple: `activation` must be "silu" or "swish"'):
        Mamba2Simple(16, headdim=8, activation="relu")
