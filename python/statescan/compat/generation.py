"""Generation, as `mamba_ssm.utils.generation` has it: prompts of one length, a pass over them, and a step for each token."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class InferenceParams:
    """Holds what layers keep between calls: their states by their numbers, and how many steps they have seen."""

    max_seqlen: int
    max_batch_size: int
    seqlen_offset: int = 0
    batch_size_offset: int = 0
    key_value_memory_dict: dict[Any, Any] = field(default_factory=dict)
    lengths_per_sample: torch.Tensor | None = None

    def reset(self, max_seqlen: int, max_batch_size: int) -> None:
        """Starts again: states are written anew by the next call."""
        self.max_seqlen = max_seqlen
        self.max_batch_size = max_batch_size
        self.seqlen_offset = 0
        if self.lengths_per_sample is not None:
            self.lengths_per_sample.zero_()


@dataclass
class GenerationOutput:
    """Tokens, (batch, length), prompts included, and where wanted the logits of each that was chosen, (batch, vocabulary)."""

    sequences: torch.Tensor
    scores: tuple[torch.Tensor, ...] | None = None


def _without_unlikely(logits, top_p):
    """Leaves the fewest tokens, the likeliest first, whose probabilities have a sum of `top_p`; all if that is 0 or 1."""
    if not 0.0 < top_p < 1.0:
        return logits
    ascending, order = logits.sort(dim=-1)
    unlikely = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
    return logits.masked_fill(unlikely.scatter(-1, order, unlikely), -torch.inf)


def sample(logits: Tensor, top_k: int = 1, top_p: float = 0.0, min_p: float = 0.0, temperature: float = 1.0) -> Tensor:
    """Draws a token for each row of logits, (batch, vocabulary).

    Args:
        top_k: tokens to choose from, the likeliest ones; 1 draws nothing, 0 is all.
        top_p: see `decode`.
        min_p: with a `top_k` of 0, the least part of the likeliest token's probability that a token needs.
        temperature: divides the logits.
    """
    if not 0.0 <= top_p <= 1.0:
        raise ValueError(f"sample: `top_p` must be between 0 and 1, got {top_p}")
    if top_k == 1:
        return logits.argmax(-1)
    chosen = None
    if top_k > 0:
        logits, chosen = logits.topk(min(top_k, logits.shape[-1]), dim=-1)
    elif min_p > 0.0:
        likely = logits.softmax(-1)
        logits = logits.masked_fill(likely < min_p * likely.amax(-1, keepdim=True), -torch.inf)
    drawn = torch.multinomial(_without_unlikely(logits / temperature, top_p).softmax(-1), 1)
    return (drawn if chosen is None else chosen.gather(-1, drawn)).squeeze(-1)


def _less_likely(logits, tokens, penalty):
    """Logits of tokens that were there divided by the penalty, or multiplied where they are negative."""
    scores = logits.gather(1, tokens)
    return logits.scatter(1, tokens, torch.where(scores < 0, scores * penalty, scores / penalty))


@torch.no_grad()
def decode(
    input_ids: Tensor,
    model: Any,
    max_length: int,
    top_k: int = 1,
    top_p: float = 0.0,
    min_p: float = 0.0,
    temperature: float = 1.0,
    repetition_penalty: float = 1.0,
    eos_token_id: int | None = None,
    teacher_outputs: Tensor | None = None,
    vocab_size: int | None = None,
    cg: bool = False,
    enable_timing: bool = False,
    output_scores: bool = False,
    streamer: Any = None,
) -> GenerationOutput:
    """Goes on with prompts of one length.

    Args:
        input_ids: (batch, seqlen).
        model: called with tokens, `position_ids`, `inference_params` and `num_last_tokens`, gives an object with `logits`.
        max_length: of a row, prompt included.
        top_k, min_p, temperature: as in `sample`; the likeliest token by default.
        top_p: the least sum of probabilities of the tokens to choose from; 0 and 1 choose from all.
        repetition_penalty: divides the logits of tokens that a row has had.
        eos_token_id: generation ends where all rows have it at once.
        teacher_outputs: (batch, length), tokens to take in the place of drawn ones, as far as they go.
        vocab_size: tokens of the vocabulary, where the model has logits of more.
        cg, enable_timing: taken as the origin takes them; steps are calls here, and nothing is printed.
        output_scores: whether to keep logits.
        streamer: an object whose `put` is called with prompts and tokens, and `end` behind the last.

    Returns:
        An object with `sequences` and `scores`.
    """
    cache = InferenceParams(max_seqlen=max_length, max_batch_size=input_ids.shape[0])
    told = 0 if teacher_outputs is None else teacher_outputs.shape[1]
    sequences, scores, tokens = input_ids, [], input_ids
    if streamer is not None:
        streamer.put(input_ids.cpu())
    while True:
        positions = None if cache.seqlen_offset == 0 else torch.full_like(tokens, cache.seqlen_offset)
        logits = model(tokens, position_ids=positions, inference_params=cache, num_last_tokens=1).logits.squeeze(1)
        logits = logits[..., :vocab_size]
        if output_scores:
            scores.append(logits.clone())
        cache.seqlen_offset += tokens.shape[1]
        if cache.seqlen_offset < told:
            tokens = teacher_outputs[:, cache.seqlen_offset, None]
        else:
            if repetition_penalty != 1.0:
                logits = _less_likely(logits, sequences, repetition_penalty)
            tokens = sample(logits, top_k, top_p, min_p, temperature)[:, None]
        sequences = torch.cat([sequences, tokens], 1)
        if streamer is not None:
            streamer.put(tokens.cpu())
        if cache.seqlen_offset >= max_length - 1 or (eos_token_id is not None and (tokens == eos_token_id).all()):
            break
    if streamer is not None:
        streamer.end()
    return GenerationOutput(sequences, tuple(scores))


class GenerationMixin:
    """`generate` for models with caches of this kind."""

    def allocate_inference_cache(self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no `allocate_inference_cache`")

    def generate(
        self,
        input_ids: Tensor,
        max_length: int,
        top_k: int = 1,
        top_p: float = 0.0,
        min_p: float = 0.0,
        temperature: float = 1.0,
        return_dict_in_generate: bool = False,
        output_scores: bool = False,
        **kwargs: Any,
    ) -> Tensor | GenerationOutput:
        """`decode`: the tokens, or with `return_dict_in_generate` the object that has them."""
        options = {"min_p": min_p, "temperature": temperature, "output_scores": output_scores, **kwargs}
        output = decode(input_ids, self, max_length, top_k, top_p, **options)
        if not output_scores:
            output.scores = None
        return output if return_dict_in_generate else output.sequences
