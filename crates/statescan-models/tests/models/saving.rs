//! Models written as folders: with their own names and types, and in other forms.

use crate::common::{Folder, bits, models, tokens};
use serde_json::{Value, json};
use statescan::{DType, Exec};
use statescan_models::{Config, Model, Package, SaveOptions};
use std::path::Path;

fn options(change: impl FnOnce(&mut SaveOptions)) -> SaveOptions {
    let mut options = SaveOptions::default();
    change(&mut options);
    options
}

fn names(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

fn logits(model: &Model) -> Vec<u32> {
    bits(&model.forward(&Exec::cpu(1), &tokens(20, 30)).unwrap())
}

#[test]
fn a_saved_model_is_the_same_bit_by_bit() {
    for (kind, model) in models() {
        let folder = tempfile::tempdir().unwrap();
        model.save(folder.path()).unwrap();
        let saved = Model::load(folder.path()).unwrap();
        assert_eq!((saved.config(), logits(&saved)), (model.config(), logits(&model)), "{kind}");
        assert!(saved.weights().iter().zip(model.weights()).all(|(a, b)| a.0 == b.0 && a.1.to_f32() == b.1.to_f32()), "{kind}");
        assert_eq!(names(folder.path()), ["config.json", "model.safetensors"]);
    }
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let (folder, model) = (tempfile::tempdir().unwrap(), Model::random(Config::mamba(30, 8, 2), dtype, 3).unwrap());
        model.save(folder.path()).unwrap();
        let saved = Model::load(folder.path()).unwrap();
        assert_eq!(logits(&saved), logits(&model));
        assert!(saved.weights().values().all(|weight| weight.dtype() == dtype));
    }
}

#[test]
fn names_of_both_packages_and_heads_that_are_stored_are_the_same_model() {
    for (kind, model) in models() {
        let [first, second] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        if ["mamba", "mamba2"].contains(&kind) {
            let form = options(|form| form.package = Some(Package::MambaSsm));
            let saved = match model.save_with(first.path(), &form) {
                Ok(()) => Model::load(first.path()).unwrap(),
                Err(error) => panic!("{kind}: {error}"),
            };
            assert!(saved.weights().contains_key("backbone.embedding.weight"));
            assert_eq!(saved.config().package, Package::MambaSsm);
            assert_eq!(logits(&saved), logits(&model), "{kind}");
            let back = options(|form| form.package = Some(Package::Transformers));
            saved.save_with(second.path(), &back).unwrap();
            assert_eq!(logits(&Model::load(second.path()).unwrap()), logits(&model), "{kind}");
        }
        let tied = model.config().tied;
        let form = options(|form| form.tied = Some(!tied));
        let changed = model.save_with(second.path(), &form);
        if !tied {
            assert!(changed.unwrap_err().to_string().contains("ties the head to the embedding"));
            continue;
        }
        changed.unwrap();
        let untied = Model::load(second.path()).unwrap();
        assert!(!untied.config().tied && untied.weights().contains_key("lm_head.weight"));
        assert_eq!(logits(&untied), logits(&model), "{kind}");
        untied.save_with(second.path(), &options(|form| form.tied = Some(true))).unwrap();
        let tied = Model::load(second.path()).unwrap();
        assert!(tied.config().tied && !tied.weights().contains_key("lm_head.weight"));
        assert_eq!(logits(&tied), logits(&model), "{kind}");
    }
}

#[test]
fn large_models_are_several_files_which_replace_one_and_are_replaced() {
    let (_, model) = models().next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    model.save(folder.path()).unwrap();
    model.save_with(folder.path(), &options(|form| form.shard_bytes = 4000)).unwrap();
    let files = names(folder.path());
    assert!(files.len() > 4 && !files.contains(&"model.safetensors".to_owned()), "{files:?}");
    let count = files.iter().filter(|name| name.starts_with("model-0")).count();
    assert!(files.contains(&format!("model-{count:05}-of-{count:05}.safetensors")), "{files:?}");
    let index: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("model.safetensors.index.json")).unwrap()).unwrap();
    assert_eq!(index["metadata"]["total_size"], json!(4 * model.config().weights()));
    assert_eq!(logits(&Model::load(folder.path()).unwrap()), logits(&model));
    model.save(folder.path()).unwrap();
    assert!(!folder.path().join("model.safetensors.index.json").exists());
    assert_eq!(logits(&Model::load(folder.path()).unwrap()), logits(&model));
}

#[test]
fn weights_are_rounded_to_the_type_that_is_asked_for_or_refused() {
    for (dtype, file) in [(DType::BF16, safetensors::Dtype::BF16), (DType::F16, safetensors::Dtype::F16)] {
        let folder = tempfile::tempdir().unwrap();
        let mut source = Folder::new("mamba");
        source.config["dtype"] = json!("float32");
        source.config["bos_token_id"] = json!(17);
        source.model().save_with(folder.path(), &options(|form| form.dtype = Some(dtype))).unwrap();
        let saved = Model::load(folder.path()).unwrap();
        assert_eq!(logits(&saved), logits(&source.clone().rounded(file, true).model()), "{dtype}");
        // settings that mean nothing here stay, but for the type
        let settings: Value = serde_json::from_slice(&std::fs::read(folder.path().join("config.json")).unwrap()).unwrap();
        assert_eq!((&settings["bos_token_id"], &settings["expand"]), (&json!(17), &json!(2)));
        assert_eq!(settings["dtype"], json!(if dtype == DType::BF16 { "bfloat16" } else { "float16" }));
    }
    let mut large = Folder::new("mamba");
    large.tensors.get_mut("backbone.norm_f.weight").unwrap().2[8..12].copy_from_slice(&70000f32.to_le_bytes());
    let (folder, model) = (tempfile::tempdir().unwrap(), large.model());
    let error = model.save_with(folder.path(), &options(|form| form.dtype = Some(DType::F16))).unwrap_err().to_string();
    assert!(
        error.contains("`backbone.norm_f.weight` cannot be written in f16, which does not reach 70000 at element 2"),
        "{error}"
    );
    let error = model.save_with(folder.path(), &options(|form| form.dtype = Some(DType::F64))).unwrap_err().to_string();
    assert!(error.contains("Model::save_with: `type of weights` must be f32, bf16 or f16"), "{error}");
    assert!(names(folder.path()).is_empty(), "nothing is written");
}
