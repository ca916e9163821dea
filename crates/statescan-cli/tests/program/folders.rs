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
    assert!(said.starts_with("1980 bytes, 1980 tokens\n") && said.contains(&format!("{bits:.4} bits/byte")), "{said}");
    assert!(said.lines().all(|line| line.len() <= 80), "{said}");
    std::fs::write(&path, "a").unwrap();
    refused(&["eval", text(&of_model), text(&path)], "at least one, got 1 tokens");
    refused(&["eval", text(&of_model), text(&folder.path().join("none"))], "none: No such file");
    refused(&["eval", text(folder.path()), text(&path)], "config.json: No such file");
    refused(&["eval", text(&of_model), text(&path), "--type", "bf16"], "the device of --type must be a GPU, got `cpu`");
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
    refused(&["convert", from, to, "--type", "f64"], "`type of weights` must be f32, bf16 or f16");
    refused(&["convert", from, from, "--force"], "OUT must be another folder than IN");
    refused(&["convert", to, from], "it has a model (model.safetensors); --force overwrites it");
    refused(&["convert", &format!("{to}none"), to], "config.json: No such file");
    let output = statescan(&["convert", from, to, "--shard-size", "0"]);
    assert!(status(&output) == 2 && stderr(&output).contains("it must be a number of bytes above 0"), "{}", stderr(&output));
    assert!(!Path::new(to).exists());
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
