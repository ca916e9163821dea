//! `statescan eval` and `statescan convert` from outside.

use crate::common::*;
use serde_json::Value;
use statescan::Exec;
use statescan_models::{Config, Model};
use std::path::Path;

/// A folder with a small model of bytes.
fn model(folder: &Path) -> Model {
    let model = Model::random(Config::mamba(256, 16, 2), statescan::DType::F32, 5).unwrap();
    model.save(folder).unwrap();
    std::fs::write(folder.join("generation_config.json"), "{}").unwrap();
    model
}

#[track_caller]
fn done(args: &[&str]) -> String {
    let output = statescan(args);
    assert_eq!(status(&output), 0, "{args:?}: {}", stderr(&output));
    stdout(&output)
}

#[track_caller]
fn refused(args: &[&str], says: &str) {
    let output = statescan(args);
    let message = stderr(&output);
    assert_eq!(status(&output), 2, "{args:?}: {message}");
    assert!(message.contains(says) && message.trim_end().lines().count() == 1, "{args:?} should say {says:?}: {message}");
    assert!(output.stdout.is_empty(), "nothing is said");
}

#[test]
fn a_text_is_scored() {
    let folder = tempfile::tempdir().unwrap();
    let (of_model, path) = (folder.path().join("model"), folder.path().join("text"));
    let text_of_it = b"Down the Rabbit-Hole. ".repeat(90);
    std::fs::write(&path, &text_of_it).unwrap();
    let tokens: Vec<u32> = text_of_it.iter().map(|&byte| u32::from(byte)).collect();
    let bits = model(&of_model).bits_per_token(&Exec::cpu(1), &tokens).unwrap();
    let found: Value = serde_json::from_str(&done(&["eval", text(&of_model), text(&path), "--json"])).unwrap();
    assert_eq!((&found["bytes"], &found["tokens"]), (&1980.into(), &1980.into()));
    for (name, expected) in [("bits_per_byte", bits), ("bits_per_token", bits), ("perplexity", bits.exp2())] {
        assert!((found[name].as_f64().unwrap() - expected).abs() < 1e-9 * expected, "{name}: {found} beside {expected}");
    }
    let said = done(&["eval", text(&of_model), text(&path)]);
    assert!(
        said.starts_with("1980 bytes, 1980 tokens; 1979 bytes in 1979 tokens guessed\n")
            && said.contains(&format!("{bits:.4} bits/byte")),
        "{said}"
    );
    assert!(said.lines().all(|line| line.len() <= 80), "{said}");
    std::fs::write(&path, "a").unwrap();
    refused(
        &["eval", text(&of_model), text(&path)],
        "text: a text must have at least two tokens, so that one can be guessed from the other, got 1",
    );
    refused(&["eval", text(&of_model), text(&folder.path().join("none"))], "none: No such file");
    refused(&["eval", text(folder.path()), text(&path)], "config.json: No such file");
    refused(
        &["eval", "owner/name", text(&path)],
        "owner/name: there is no such folder; nothing is downloaded here, but `hf download NAME",
    );
    refused(&["eval", text(&of_model)], "TEXT must be given, got `a folder alone`");
    refused(&["eval", text(&of_model), text(&path), "--type", "bf16"], "the device of --type must be a GPU, got `cpu`");
}

#[test]
fn several_texts_are_scored_each_and_together() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["one", "two"].map(|name| folder.path().join(name));
    let texts = [b"Alice was beginning ".repeat(9), b"to get very tired of ".repeat(30)];
    paths.iter().zip(&texts).for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    let [one, two] = paths.each_ref().map(|path| text(path));
    // without a folder it is the model in the program
    let scores: Vec<Value> =
        done(&["eval", one, two, "--json"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let number = |score: &Value, name: &str| score[name].as_f64().unwrap();
    for (score, path) in scores.iter().zip([one, two]) {
        let alone: Value = serde_json::from_str(&done(&["eval", path, "--json"])).unwrap();
        assert_eq!(*score, alone);
        assert!(score["model"].is_null() && number(score, "bits_per_byte") < 4.0, "{score}");
    }
    let bits = |score: &Value| number(score, "bits_per_byte") * number(score, "bytes_guessed");
    let [first, second, all] = &scores[..] else { panic!("{scores:?}") };
    assert_eq!((&all["texts"], &all["bytes"], &all["bytes_guessed"]), (&2.into(), &810.into(), &808.into()));
    assert!((bits(all) - bits(first) - bits(second)).abs() < 1e-9 * bits(all));
    let said = done(&["eval", one, two]);
    assert!(said.starts_with(&format!("{one}\n180 bytes")) && said.contains("2 texts\n810 bytes"), "{said}");
}

/// A tokenizer of 128 tokens that are the letters of texts, as bytes are, but for one that is special, with one that is put before a text.
#[cfg(feature = "tokenizers")]
fn with_tokenizer(folder: &Path, special: u32, name: &str) {
    let letter = |id: u32| if id == special { name.to_owned() } else { char::from_u32(id).unwrap().to_string() };
    let vocab: serde_json::Map<_, _> = (0..128).map(|id| (letter(id), id.into())).collect();
    let token = serde_json::json!({"SpecialToken": {"id": name, "type_id": 0}});
    let all = serde_json::json!({"Sequence": {"id": "A", "type_id": 0}});
    let json = serde_json::json!({
        "version": "1.0", "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}, "padding": null,
        "added_tokens": [{"id": special, "content": name, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true}],
        "normalizer": null,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(?s)."}, "behavior": "Isolated", "invert": false},
        "post_processor": {"type": "TemplateProcessing", "single": [token, all], "pair": [token, all],
            "special_tokens": {name: {"id": name, "ids": [special], "tokens": [name]}}},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "?"},
    });
    std::fs::write(folder.join("tokenizer.json"), json.to_string()).unwrap();
}

#[cfg(feature = "tokenizers")]
#[test]
fn a_tokenizer_of_another_folder_is_used_as_transformers_uses_it() {
    let (folder, other) = (crate::common::model(), tempfile::tempdir().unwrap());
    let greedy = ["generate", text(folder.path()), "--prompt", "Once", "--temperature", "0", "--tokens", "9", "--json"];
    let tokens = |args: &[&str]| -> Vec<Value> {
        let said = done(&[&greedy[..], args].concat());
        said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["token"].clone()).collect()
    };
    let bytes = tokens(&[]);
    let end = bytes.iter().position(|token| bytes[..3].iter().all(|before| before != token)).unwrap();
    with_tokenizer(other.path(), bytes[end].as_u64().unwrap() as u32, "<end>");
    let tokenizer = ["--tokenizer", text(other.path())];
    let plain = [&tokenizer[..], &["--no-special-tokens"]].concat();
    assert_eq!(tokens(&plain), bytes, "the same tokens");
    // the prompt is whole, with the token that is put before it
    let prompt: Vec<Value> = b"Once".iter().map(|&byte| byte.into()).collect();
    let begun = tokens(&[&tokenizer[..], &["--echo"]].concat());
    assert_eq!(begun[..5], [&[bytes[end].clone()][..], &prompt].concat());
    assert_eq!(tokens(&[&plain[..], &["--echo"]].concat())[..4], prompt);
    // its name ends a text, and is no text
    let stopped = tokens(&[&plain[..], &["--stop", "<end>"]].concat());
    assert_eq!(stopped, bytes[..=end]);
    // a byte of every text is guessed if a token is put before it
    let path = other.path().join("text");
    std::fs::write(&path, "Once upon").unwrap();
    let score = |args: &[&str]| {
        serde_json::from_str::<Value>(&done(&[&["eval", text(folder.path()), text(&path), "--json"], args].concat())).unwrap()
    };
    let counts = |score: Value| ["tokens", "bytes_guessed", "tokens_guessed"].map(|name| score[name].as_u64().unwrap());
    assert_eq!(counts(score(&tokenizer)), [10, 9, 9]);
    assert_eq!(counts(score(&plain)), [9, 8, 8]);
    std::fs::write(&path, b"Once\xff").unwrap();
    refused(
        &[&["eval", text(folder.path()), text(&path)], &tokenizer[..]].concat(),
        "text: the text must be UTF-8, which it is not from byte 4 on",
    );
    refused(
        &[&greedy[..], &["--tokenizer", text(folder.path().parent().unwrap())]].concat(),
        "it has no tokenizer.json; name the folder of a tokenizer",
    );
    // convert copies it
    let to = other.path().join("converted");
    assert!(done(&[&["convert", text(folder.path()), text(&to)], &tokenizer[..]].concat()).contains("with tokenizer.json"));
    assert_eq!(tokens(&["--no-special-tokens"]), tokens(&["--tokenizer", text(&to), "--no-special-tokens"]));
}

#[cfg(feature = "pytorch")]
#[test]
fn pickled_weights_are_converted() {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../statescan-models/tests/vectors/mamba_pickled");
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("to");
    done(&["convert", text(&from), text(&to)]);
    assert!(to.join("model.safetensors").exists());
    let [read, written] =
        [from.as_path(), &to].map(|folder| Model::load(folder).unwrap().forward(&Exec::cpu(1), &[1, 2, 3]).unwrap());
    assert_eq!(read, written);
}

#[test]
fn a_vocabulary_that_is_not_bytes_is_refused_without_a_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let (of_model, path) = (folder.path().join("model"), folder.path().join("text"));
    Model::random(Config::mamba(300, 8, 1), statescan::DType::F32, 1).unwrap().save(&of_model).unwrap();
    std::fs::write(&path, "Alice").unwrap();
    for args in [&["eval", text(&of_model), text(&path)][..], &["generate", text(&of_model), "--prompt", "a"]] {
        refused(args, "it has no tokenizer.json, and the 300 tokens of its model are not bytes");
    }
}

#[test]
fn a_folder_is_written_in_another_form() {
    let folder = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
    let logits = |model: &Model| model.forward(&Exec::cpu(1), &[1, 2, 3]).unwrap();
    let expected = logits(&model(&from));
    let (from, to) = (text(&from), text(&to));
    let said = done(&["convert", from, to, "--names", "mamba_ssm", "--tied", "false", "--shard-size", "20K"]);
    assert!(said.contains("weights in ") && said.contains(", with generation_config.json"), "{said}");
    let converted = Model::load(to).unwrap();
    assert_eq!(logits(&converted), expected);
    assert!(["lm_head.weight", "backbone.embedding.weight"].iter().all(|name| converted.weights().contains_key(*name)));
    assert!(Path::new(to).join("model.safetensors.index.json").exists());
    refused(&["convert", from, to], "it has a model (model.safetensors.index.json); --force overwrites it");
    done(&["convert", from, to, "--type", "bf16", "--force"]);
    assert!(Model::load(to).unwrap().weights().values().all(|weight| weight.dtype() == statescan::DType::BF16));
    assert!(!Path::new(to).join("model.safetensors.index.json").exists());
}

#[test]
fn forms_that_a_model_cannot_have_are_refused_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let [from, falcon, to] = ["from", "falcon", "to"].map(|name| folder.path().join(name));
    model(&from);
    Model::random(Config::falcon_mamba(30, 8, 1), statescan::DType::F32, 5).unwrap().save(&falcon).unwrap();
    let (from, falcon, to) = (text(&from), text(&falcon), text(&to));
    refused(&["convert", falcon, to, "--names", "mamba_ssm"], "mamba_ssm has no setting for `family` of this model");
    refused(&["convert", from, from, "--force"], "OUT must be another folder than IN");
    refused(&["convert", to, from], "it has a model (model.safetensors); --force overwrites it");
    refused(&["convert", &format!("{to}none"), to], "none: there is no such folder");
    let output = statescan(&["convert", from, to, "--shard-size", "0"]);
    assert!(status(&output) == 2 && stderr(&output).contains("it must be a number of bytes above 0"), "{}", stderr(&output));
    assert!(!Path::new(to).exists());
}

/// The names in a folder, in their order.
fn names(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn what_is_replaced_is_replaced_whole() {
    let folder = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
    model(&from);
    done(&["convert", text(&from), text(&to), "--shard-size", "10K"]);
    for name in ["pytorch_model.bin", "training.safetensors", "loss.svg", "tokenizer.json", "notes.txt"] {
        std::fs::write(to.join(name), "theirs").unwrap();
    }
    let index = to.join("model.safetensors.index.json");
    let old = std::fs::read_to_string(&index).unwrap();
    let first = names(&to).into_iter().find(|name| name.starts_with("model-00001")).unwrap();
    std::fs::rename(to.join(&first), to.join("first.safetensors")).unwrap();
    std::fs::write(&index, old.replace(&first, "first.safetensors")).unwrap();
    done(&["convert", text(&from), text(&to), "--force", "--shard-size", "20K"]);
    let left = names(&to);
    let shards = left.iter().filter(|name| name.starts_with("model-")).count();
    assert_eq!(left.len(), shards + 4, "config, index, settings of generation, notes: {left:?}");
    let last = format!("-of-{shards:05}.safetensors");
    assert!(left.iter().filter(|name| name.starts_with("model-")).all(|name| name.ends_with(&last)), "{left:?}");
    done(&["convert", text(&from), text(&to), "--force"]);
    assert_eq!(names(&to), ["config.json", "generation_config.json", "model.safetensors", "notes.txt"]);
    // a refused conversion has changed nothing
    std::fs::write(to.join("tokenizer.json"), "theirs").unwrap();
    let output = statescan(&["convert", text(&from), text(&to), "--force", "--type", "f64"]);
    assert!(status(&output) == 2 && stderr(&output).contains("possible values: f32, bf16, f16"), "{}", stderr(&output));
    assert!(to.join("tokenizer.json").exists());
}

#[cfg(unix)]
#[test]
fn links_to_what_is_read_are_replaced_and_never_written_through() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let [from, links, blobs, hub] = ["from", "links", "blobs", "hub"].map(|name| folder.path().join(name));
    model(&from);
    [&links, &blobs, &hub].into_iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    let read = |folder: &Path| names(folder).iter().map(|name| std::fs::read(folder.join(name)).unwrap()).collect::<Vec<_>>();
    let before = read(&from);
    for name in names(&from) {
        symlink(from.join(&name), links.join(&name)).unwrap();
        std::fs::copy(from.join(&name), blobs.join(&name)).unwrap();
        symlink(blobs.join(&name), hub.join(&name)).unwrap();
    }
    done(&["convert", text(&from), text(&links), "--type", "bf16", "--force"]);
    assert!(read(&from) == before, "the model that was read is as it was");
    assert!(names(&links).iter().all(|name| !links.join(name).is_symlink()) && read(&links) != before);
    // the files of a hub's folder lie in another one
    refused(&["convert", text(&hub), text(&blobs), "--force"], "OUT must be another folder than IN");
    let text_of_it = folder.path().join("text");
    std::fs::write(&text_of_it, b"the cat sat on the mat. ".repeat(100)).unwrap();
    let train =
        ["train", text(&text_of_it), "--from", text(&hub), "--seqlen", "16", "--batch", "1", "--steps", "1", "--force", "--save"];
    refused(&[&train[..], &[text(&blobs)]].concat(), "--save must be another folder than --from");
    done(&[&train[..], &[text(&links)]].concat());
    assert!(read(&blobs) == before && read(&from) == before);
    let state = ["generate", text(&hub), "--prompt", "a", "--tokens", "1", "--force", "--save-state"];
    for place in [hub.join("model.safetensors"), blobs.join("model.safetensors"), hub.join("generation_config.json")] {
        refused(&[&state[..], &[text(&place)]].concat(), "must be none of the files of the model in use");
    }
    assert!(read(&blobs) == before && read(&hub) == before);
}

#[test]
fn fine_tuning_keeps_every_setting() {
    let folder = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
    let settings = |folder: &Path| serde_json::from_slice::<Value>(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    model(&from);
    let mut config = settings(&from);
    let own = serde_json::json!({"pad_token_id": 3, "bos_token_id": 1, "max_position_embeddings": 77, "dtype": "float32",
        "router_aux_loss_coef": 0.001, "rope_parameters": {"rope_type": "default"}});
    config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
    std::fs::write(from.join("config.json"), config.to_string()).unwrap();
    let text_of_it = folder.path().join("text");
    std::fs::write(&text_of_it, b"the cat sat on the mat. ".repeat(100)).unwrap();
    let common = ["--seqlen", "16", "--batch", "1", "--steps", "1", "--type", "bf16", "--save", text(&to)];
    done(&[&["train", text(&text_of_it), "--from", text(&from)], &common[..]].concat());
    config["dtype"] = "bfloat16".into();
    assert_eq!(settings(&to), config);
    done(&["train", text(&text_of_it), "--resume", text(&to), "--steps", "2"]);
    assert_eq!(settings(&to), config, "and once it was resumed");
}

#[test]
fn names_from_files_reach_a_terminal_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let mut tensors = std::collections::BTreeMap::new();
    for (name, weight) in model.weights() {
        tensors.insert(name.clone(), statescan_models::Array { shape: weight.shape().to_vec(), data: weight.to_f32() });
    }
    let view = |array: &statescan_models::Array| array.data.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let mut all: Vec<_> = tensors.iter().map(|(name, array)| (name.clone(), array.shape.clone(), view(array))).collect();
    all.push(("\u{1b}[2J\u{7}evil".into(), vec![1], vec![0; 4]));
    let views = all.iter().map(|(name, shape, data)| {
        (name, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), data).unwrap())
    });
    std::fs::write(folder.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    refused(&["eval", text(folder.path()), "/dev/null"], "the tensor `\\u{1b}[2J\\u{7}evil` is not part of");
}
