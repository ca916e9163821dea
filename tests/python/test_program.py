"""The program beside `transformers`, over the chat templates and tokenizers that packages ship.

Packages are looked for in the folder `shipped` of the environment, which `.ci/environment.sh` makes, and the program in
`target/debug`, where `cargo test --workspace --features statescan-cli/tokenizers` builds it, or at `STATESCAN_PROGRAM`.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
from jinja2 import TemplateError  # noqa: E402
from transformers.utils.chat_template_utils import render_jinja_template  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = os.environ.get("STATESCAN_PROGRAM", ROOT / "target/debug/statescan")
SHIPPED = pathlib.Path(sys.prefix) / "shipped"
TEMPLATES = sorted(SHIPPED.rglob("*.jinja"))
TOKENIZERS = sorted(SHIPPED.rglob("tokenizer.json"))
TEXTS = ['It\'s 1 < 2 & 3 > 2, he said "so": naïve café 東京 🦀', "a", "  two  spaces\tand <|im_end|> </s>"]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def run(*args, **options):
    return subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=120, check=False, **options)


@pytest.fixture(scope="module", autouse=True)
def program(tmp_path_factory):
    """A program that reads tokenizers, or the reason why there is none."""
    if not TEMPLATES or not TOKENIZERS:
        pytest.skip(f"{SHIPPED} has no packages with templates and tokenizers")
    folder = model(tmp_path_factory.mktemp("any"), 256)
    (folder / "chat_template.jinja").write_text("a")
    found = run("generate", folder, "--prompt", "a", "--chat", "--tokens", "0") if os.path.exists(PROGRAM) else None
    if found is None or found.returncode:
        pytest.skip(f"{PROGRAM}: {found.stderr if found else 'not built'}")


def model(folder, vocab):
    config = transformers.MambaConfig(vocab_size=vocab, hidden_size=8, num_hidden_layers=1, state_size=4, eos_token_id=None)
    transformers.MambaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def of_bytes(tmp_path_factory):
    return model(tmp_path_factory.mktemp("bytes"), 256)


def prompts(folder, texts, *options):
    """The tokens of some prompts, or what the program says instead."""
    (folder / "prompts.txt").write_text("".join(text + "\n" for text in texts))
    found = run("generate", folder, "--prompts", folder / "prompts.txt", "--json", "--echo", "--quiet", "--tokens", "0", *options)
    if found.returncode:
        return found.stderr
    tokens = [[] for _ in texts]
    for line in found.stdout.splitlines():
        tokens[json.loads(line)["prompt"]].append(json.loads(line)["token"])
    return tokens


def rendered(template, system):
    """What `transformers` makes of the texts as what a user says, or none where the template refuses them."""
    before = [{"role": "system", "content": system}] if system else []
    said = [[*before, {"role": "user", "content": text}] for text in TEXTS]
    try:
        return render_jinja_template(said, chat_template=template, add_generation_prompt=True, **SPECIAL)[0]
    except (TemplateError, TypeError):
        return None


@pytest.mark.sampled(40)
@pytest.mark.parametrize("system", [None, 'Be <brief> & "kind".'])
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: f"{path.parts[len(SHIPPED.parts)]}_{path.stem}")
def test_templates(of_bytes, tmp_path, path, system):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(of_bytes / name)
    template = path.read_text()
    (tmp_path / "chat_template.jinja").write_text(template)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(SPECIAL))
    # twice, as the day may end between
    expected = [rendered(template, system)]
    found = prompts(tmp_path, TEXTS, "--chat", *(["--system", system] if system else []))
    expected.append(rendered(template, system))
    if expected[0] is None:
        assert isinstance(found, str), "transformers refuses it"
        return
    assert isinstance(found, list), found
    assert [bytes(tokens).decode() for tokens in found] in expected


def changed(backend):
    """Gives it tokens that it puts before and behind a text, and what calls that cut and padded leave."""
    names = ["<first>", "<last>"]
    backend.add_special_tokens(names)
    tokens = [(name, backend.token_to_id(name)) for name in names]
    backend.post_processor = tokenizers.processors.TemplateProcessing(single="<first> $A <last>", special_tokens=tokens)
    backend.enable_truncation(4)
    backend.enable_padding(length=40)


def compare_tokens(folder, backend, tokenizer_class, texts):
    model(folder, backend.get_vocab_size())
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer_class}))
    expected = transformers.AutoTokenizer.from_pretrained(folder)
    for options, special in [([], True), (["--no-special-tokens"], False)]:
        found = prompts(folder, texts, *options)
        assert found == [expected(text, add_special_tokens=special)["input_ids"] for text in texts], options


@pytest.mark.parametrize("change", [None, changed])
@pytest.mark.parametrize("path", TOKENIZERS, ids=lambda path: path.parts[len(SHIPPED.parts)])
def test_tokenizers(tmp_path, path, change):
    backend = tokenizers.Tokenizer.from_file(str(path))
    if change:
        change(backend)
    compare_tokens(tmp_path, backend, "PreTrainedTokenizerFast", TEXTS)


def test_a_class_that_adds_nothing(tmp_path):
    """It makes another tokenizer of the vocabulary, which cuts plain text in the same way."""
    backend = tokenizers.Tokenizer.from_file(str(TOKENIZERS[0]))
    changed(backend)
    compare_tokens(tmp_path, backend, "GPTNeoXTokenizer", ["plain text"])
