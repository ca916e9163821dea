"""Language models of `mamba_ssm.models`: an embedding, blocks, a norm and a head, with the names of their parameters."""

import copy
import json
import math
import os
import pathlib
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.types import Device

from .. import nn as layers
from .._types import Cache
from .blocks import Block, GatedMLP, add_and_norm
from .generation import GenerationMixin
from .layer_norm import RMSNorm


class CausalLMOutput(NamedTuple):
    """Logits, (batch, seqlen, vocabulary)."""

    logits: Tensor


@dataclass
class MambaConfig:
    """The settings of a model. `ssm_cfg` has arguments of the layers, and which ones: `layer`, "Mamba1" or "Mamba2"."""

    d_model: int = 2560
    d_intermediate: int = 0
    n_layer: int = 64
    vocab_size: int = 50277
    ssm_cfg: dict[str, Any] = field(default_factory=dict)
    attn_layer_idx: list[int] = field(default_factory=list)
    attn_cfg: dict[str, Any] = field(default_factory=dict)
    rms_norm: bool = True
    residual_in_fp32: bool = True
    fused_add_norm: bool = True
    pad_vocab_size_multiple: int = 8
    tie_embeddings: bool = True


def create_block(
    d_model: int,
    d_intermediate: int,
    ssm_cfg: dict[str, Any] | None = None,
    attn_layer_idx: list[int] | None = None,
    attn_cfg: dict[str, Any] | None = None,
    norm_epsilon: float = 1e-5,
    rms_norm: bool = False,
    residual_in_fp32: bool = False,
    fused_add_norm: bool = False,
    layer_idx: int | None = None,
    device: Device = None,
    dtype: torch.dtype | None = None,
) -> Block:
    """A block of a model; there are none with attention here."""
    if layer_idx is not None and layer_idx in (attn_layer_idx or ()):
        words = "there are no layers with attention here; install mamba_ssm for them"
        raise ImportError(f"create_block: `attn_layer_idx` has {layer_idx}: {words}")
    where = {"device": device, "dtype": dtype}
    settings = copy.deepcopy(ssm_cfg or {})
    kind = settings.pop("layer", "Mamba1")
    kinds = {"Mamba1": layers.Mamba, "Mamba2": layers.Mamba2}
    if kind not in kinds:
        raise ValueError(f'create_block: `ssm_cfg` must have a layer of "Mamba1" or "Mamba2", got {kind!r}')
    unit = nn.Identity
    if d_intermediate > 0:
        unit = partial(GatedMLP, hidden_features=d_intermediate, out_features=d_model, **where)
    block = Block(
        d_model,
        partial(kinds[kind], layer_idx=layer_idx, **settings, **where),
        unit,
        norm_cls=partial(RMSNorm if rms_norm else nn.LayerNorm, eps=norm_epsilon, **where),
        fused_add_norm=fused_add_norm,
        residual_in_fp32=residual_in_fp32,
    )
    block.layer_idx = layer_idx
    return block


def _draw(module, n_layer, initializer_range=0.02, rescale_prenorm_residual=True, n_residuals_per_layer=1):
    """First values of a module's parameters: what adds to the residual stream is the smaller, the more there is of it."""
    if isinstance(module, nn.Linear) and module.bias is not None and not getattr(module.bias, "_no_reinit", False):
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=initializer_range)
    if not rescale_prenorm_residual:
        return
    for name, parameter in module.named_parameters():
        if name in ("out_proj.weight", "fc2.weight"):
            nn.init.kaiming_uniform_(parameter, a=math.sqrt(5))
            with torch.no_grad():
                parameter /= math.sqrt(n_residuals_per_layer * n_layer)


class MixerModel(nn.Module):
    """Tokens, (batch, seqlen), to hidden states, (batch, seqlen, d_model)."""

    def __init__(
        self,
        d_model: int,
        n_layer: int,
        d_intermediate: int,
        vocab_size: int,
        ssm_cfg: dict[str, Any] | None = None,
        attn_layer_idx: list[int] | None = None,
        attn_cfg: dict[str, Any] | None = None,
        norm_epsilon: float = 1e-5,
        rms_norm: bool = False,
        initializer_cfg: dict[str, Any] | None = None,
        fused_add_norm: bool = False,
        residual_in_fp32: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = {"device": device, "dtype": dtype}
        self.residual_in_fp32 = residual_in_fp32
        self.fused_add_norm = fused_add_norm
        self.embedding: nn.Embedding = nn.Embedding(vocab_size, d_model, **where)
        settings = {"norm_epsilon": norm_epsilon, "rms_norm": rms_norm, "fused_add_norm": fused_add_norm, **where}
        settings["residual_in_fp32"] = residual_in_fp32
        self.layers: nn.ModuleList = nn.ModuleList(
            create_block(d_model, d_intermediate, ssm_cfg, attn_layer_idx, attn_cfg, layer_idx=number, **settings)
            for number in range(n_layer)
        )
        self.norm_f: Any = (RMSNorm if rms_norm else nn.LayerNorm)(d_model, eps=norm_epsilon, **where)
        residuals = 1 if d_intermediate == 0 else 2
        self.apply(partial(_draw, n_layer=n_layer, n_residuals_per_layer=residuals, **(initializer_cfg or {})))

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> dict[int, Any]:
        return {
            number: layer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)
            for number, layer in enumerate(self.layers)
        }

    def forward(self, input_ids: Tensor, inference_params: Cache | None = None, **mixer_kwargs: Any) -> Tensor:
        hidden_states, residual = self.embedding(input_ids), None
        for layer in self.layers:
            hidden_states, residual = layer(hidden_states, residual, inference_params=inference_params, **mixer_kwargs)
        if self.fused_add_norm:
            return add_and_norm(self.norm_f, hidden_states, residual, self.residual_in_fp32, prenorm=False)
        residual = hidden_states if residual is None else hidden_states + residual
        return self.norm_f(residual.to(self.norm_f.weight.dtype))


class MambaLMHeadModel(nn.Module, GenerationMixin):
    """A language model: tokens to logits."""

    def __init__(
        self,
        config: MambaConfig,
        initializer_cfg: dict[str, Any] | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        where = {"device": device, "dtype": dtype}
        settings = asdict(config)
        multiple, tied = settings.pop("pad_vocab_size_multiple"), settings.pop("tie_embeddings")
        settings["vocab_size"] = -(-config.vocab_size // multiple) * multiple
        self.backbone: MixerModel = MixerModel(**settings, initializer_cfg=initializer_cfg, **where)
        self.lm_head: nn.Linear = nn.Linear(config.d_model, settings["vocab_size"], bias=False, **where)
        if tied:
            self.tie_weights()

    def tie_weights(self) -> None:
        if self.config.tie_embeddings:
            self.lm_head.weight = self.backbone.embedding.weight

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> dict[int, Any]:
        return self.backbone.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        inference_params: Cache | None = None,
        num_last_tokens: int = 0,
        **mixer_kwargs: Any,
    ) -> CausalLMOutput:
        """Logits, (batch, seqlen, vocabulary), of the last `num_last_tokens` steps if those are not 0. No layer looks at
        `position_ids`."""
        hidden_states = self.backbone(input_ids, inference_params=inference_params, **mixer_kwargs)
        if num_last_tokens > 0:
            hidden_states = hidden_states[:, -num_last_tokens:]
        return CausalLMOutput(logits=self.lm_head(hidden_states))

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name: str | os.PathLike[str], device: Device = None, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> "MambaLMHeadModel":
        """The model of a local folder: `config.json`, and `model.safetensors` or `pytorch_model.bin`."""
        settings = load_config_hf(pretrained_model_name)
        known = {setting.name for setting in fields(MambaConfig)}
        if not settings.keys() <= known:
            unknown = ", ".join(sorted(settings.keys() - known))
            raise ValueError(f"from_pretrained: config.json has settings that a MambaConfig has not: {unknown}")
        model = cls(MambaConfig(**settings), device=device, dtype=dtype, **kwargs)
        weights = load_state_dict_hf(pretrained_model_name, device=device, dtype=dtype)
        if model.config.tie_embeddings:
            weights.setdefault("lm_head.weight", weights.get("backbone.embedding.weight"))
        model.load_state_dict(weights)
        return model

    def save_pretrained(self, save_directory: str | os.PathLike[str]) -> None:
        """Writes `config.json` and `pytorch_model.bin`."""
        folder = pathlib.Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.state_dict(), folder / "pytorch_model.bin")
        (folder / "config.json").write_text(json.dumps(asdict(self.config), indent=4))


def _file_of(model_name, names):
    folder = pathlib.Path(model_name)
    if not folder.is_dir():
        cure = "huggingface_hub.snapshot_download makes one of a model on the hub"
        raise FileNotFoundError(f"from_pretrained: `pretrained_model_name` must be a local folder, got {model_name!r}; {cure}")
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise FileNotFoundError(f"from_pretrained: {folder} has no {' or '.join(names)}")
    return found


def load_config_hf(model_name: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings of a local folder."""
    return json.loads(_file_of(model_name, ["config.json"]).read_text())


def load_state_dict_hf(
    model_name: str | os.PathLike[str], device: Device = None, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """The weights of a local folder."""
    path = _file_of(model_name, ["model.safetensors", "pytorch_model.bin"])
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        weights = load_file(path)
    else:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    return {name: weight.to(device=device, dtype=dtype) for name, weight in weights.items()}
