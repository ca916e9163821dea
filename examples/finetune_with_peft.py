"""Fine-tunes a Mamba-2 of `transformers` with LoRA's matrices of `peft`, both on this package.

pip install "statescan[transformers]" peft matplotlib tqdm
python finetune_with_peft.py                        # a tiny model; writes finetune_with_peft.svg
python finetune_with_peft.py --model FOLDER         # a model of yours, with its tokenizer
"""

import argparse

import statescan.compat

# before the first import of a model
statescan.compat.install()

import matplotlib  # noqa: E402
import torch  # noqa: E402
from peft import LoraConfig, get_peft_model  # noqa: E402
from tqdm import trange  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, Mamba2Config, Mamba2ForCausalLM  # noqa: E402

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

TEXT = "The state remembers what the steps have told it, and forgets it at the rate that the steps say. " * 4


def tiny():
    """A model of bytes that has learned nothing."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 16, "num_heads": 8, "head_dim": 16, "n_groups": 1}
    return Mamba2ForCausalLM(Mamba2Config(vocab_size=256, **sizes)), lambda text: torch.tensor([list(text.encode())])


def loaded(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder), lambda text: tokenizer(text, return_tensors="pt").input_ids


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a local folder")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--plot", default="finetune_with_peft.svg")
    args = parser.parse_args(arguments)
    model, encode = loaded(args.model) if args.model else tiny()
    model = get_peft_model(model, LoraConfig(target_modules=["in_proj"], r=8, lora_alpha=16))
    model.print_trainable_parameters()
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    tokens, losses = encode(TEXT), []
    model.train()
    for _ in trange(args.steps):
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss: {losses[0]:.3f} at first, {losses[-1]:.3f} at last")
    # the matrices go into the weights, and nothing is slower than before
    merged = model.merge_and_unload().eval()
    written = merged.generate(tokens[:, :20], max_new_tokens=20, do_sample=False)
    print(f"{written.shape[1] - 20} tokens were written by the merged model")
    pyplot.figure(figsize=(5, 2.5))
    pyplot.plot(losses)
    pyplot.xlabel("step")
    pyplot.ylabel("loss")
    pyplot.tight_layout()
    pyplot.savefig(args.plot)


if __name__ == "__main__":
    main()
