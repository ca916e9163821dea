//! Folders: every form that is read, and everything that can be wrong with one, as a sentence.

use crate::common::{Folder, Part, bits, tokens};
use safetensors::Dtype;
use serde_json::json;
use statescan::Exec;
use statescan_models::{Config, Family, Kind, Model};

const PROJECTION: &str = "backbone.layers.1.mixer.in_proj.weight";

#[track_caller]
fn refused(change: impl FnOnce(&mut Folder), with: &str) {
    let mut folder = Folder::new("mamba");
    change(&mut folder);
    let error = folder.error();
    assert!(error.contains(with) && !error.contains('\n'), "{error}");
}

#[test]
fn several_files_with_an_index_are_one_model() {
    let source = Folder::new("mamba2");
    let folder = source.write();
    let path = |name: &str| folder.path().join(name);
    std::fs::remove_file(path("model.safetensors")).unwrap();
    let error = |folder: &tempfile::TempDir| Model::load(folder).err().unwrap().to_string();
    assert!(error(&folder).contains("it has no model.safetensors, no pytorch_model.bin and no index"));

    let file = |i: usize| format!("model-0000{i}-of-00002.safetensors");
    for part in [0, 1] {
        let tensors = source.tensors.iter().enumerate().filter(|(i, _)| i % 2 == part).map(|(_, tensor)| tensor);
        std::fs::write(path(&file(part)), Folder::bytes(tensors)).unwrap();
    }
    let index = |map: serde_json::Value| std::fs::write(path("model.safetensors.index.json"), map.to_string()).unwrap();
    let names = source.tensors.keys().enumerate();
    let mut map: serde_json::Map<_, _> = names.map(|(i, name)| (name.clone(), json!(file(i % 2)))).collect();
    index(json!({"metadata": {}, "weight_map": map}));
    let (exec, text) = (Exec::cpu(1), tokens(9, 30));
    let [parts, whole] = [Model::load(&folder).unwrap(), source.model()].map(|model| model.forward(&exec, &text).unwrap());
    assert_eq!(bits(&parts), bits(&whole));

    map.insert("nowhere".into(), json!(file(0)));
    index(json!({"weight_map": map}));
    assert!(error(&folder).contains("00000-of-00002.safetensors: the tensor `nowhere` is missing"));
    for outside in ["../model.safetensors", "/etc/passwd", "", "a/b", "."] {
        map.insert("nowhere".into(), json!(outside));
        index(json!({"weight_map": map}));
        assert!(error(&folder).contains("is not the name of a file in its folder"), "{outside}");
    }
    index(json!({"weight_map": {"a": 3}}));
    assert!(error(&folder).contains("the file of `a` is no text"));
    index(json!([]));
    assert!(error(&folder).contains("it has no `weight_map`"));
}

#[test]
fn folders_of_mamba_ssm_are_the_same_models() {
    let (exec, text) = (Exec::cpu(1), tokens(20, 30));
    let cases = [
        (
            "mamba",
            json!({"d_model": 12, "n_layer": 2, "vocab_size": 29, "pad_vocab_size_multiple": 6, "ssm_cfg": {"d_state": 8, "dt_rank": 3}}),
        ),
        (
            "mamba2",
            json!({"d_model": 12, "n_layer": 2, "vocab_size": 30, "pad_vocab_size_multiple": 1, "tie_embeddings": false, "d_intermediate": 0, "attn_layer_idx": [],
                "ssm_cfg": {"layer": "Mamba2", "d_state": 8, "headdim": 4, "ngroups": 2, "dt_limit": [0.001, 3.0]}}),
        ),
    ];
    for (kind, config) in cases {
        let mut folder = Folder::new(kind);
        let expected = folder.model().forward(&exec, &text).unwrap();
        folder.config = config;
        let embedding = folder.tensors.remove("backbone.embeddings.weight").unwrap();
        folder.tensors.insert("backbone.embedding.weight".into(), embedding);
        assert_eq!(bits(&folder.model().forward(&exec, &text).unwrap()), bits(&expected), "{kind}");
    }
}

/// A folder of Qwen 3.5 with pictures, and with layers that guess further tokens, has the text model in parts of its settings and of its names.
#[test]
fn a_model_that_also_sees_is_read_as_its_text_model() {
    let (exec, text) = (Exec::cpu(1), tokens(9, 30));
    let plain = Folder::of("qwen3_5_text");
    let expected = plain.model().forward(&exec, &text).unwrap();
    let mut folder = plain.clone();
    let part = plain.tensors["model.norm.weight"].clone();
    let name =
        |name: &String| name.strip_prefix("model.").map(|rest| format!("model.language_model.{rest}")).unwrap_or(name.clone());
    folder.tensors = plain.tensors.iter().map(|(old, part)| (name(old), part.clone())).collect();
    folder.tensors.extend(["model.visual.merger.norm.weight", "mtp.norm.weight"].map(|name| (name.into(), part.clone())));
    folder.config = json!({"model_type": "qwen3_5", "text_config": plain.config, "vision_config": {"depth": 1}});
    let model = folder.model();
    assert_eq!(bits(&model.forward(&exec, &text).unwrap()), bits(&expected));
    // it is written as a text model
    let written = tempfile::tempdir().unwrap();
    model.save(written.path()).unwrap();
    let again = Model::load(written.path()).unwrap();
    assert_eq!((again.config().family, again.weights().len()), (Family::Qwen35, plain.tensors.len()));
    assert_eq!(bits(&again.forward(&exec, &text).unwrap()), bits(&expected));
    folder.config["quantization_config"] = json!({"bits": 4});
    assert!(folder.error().contains("`quantization_config`"), "{}", folder.error());
    let mut bare = plain;
    bare.config["model_type"] = json!("qwen3_5");
    assert!(bare.error().contains("`model_type` must be mamba,"), "{}", bare.error());
}

#[test]
fn a_tied_head_may_be_stored_as_well() {
    let (exec, text, head) = (Exec::cpu(1), tokens(9, 30), "lm_head.weight");
    let mut folder = Folder::new("mamba");
    let expected = folder.model().forward(&exec, &text).unwrap();
    let embedding = folder.tensors["backbone.embeddings.weight"].clone();
    folder.tensors.insert(head.into(), embedding.clone());
    assert_eq!(bits(&folder.model().forward(&exec, &text).unwrap()), bits(&expected));
    // the only table that is stored is both, as in `transformers`
    let mut alone = folder.clone();
    alone.tensors.remove("backbone.embeddings.weight");
    assert_eq!(bits(&alone.model().forward(&exec, &text).unwrap()), bits(&expected));
    // so is a head that is another, whatever the configuration says
    folder.tensors.get_mut(head).unwrap().2[0] ^= 1;
    let model = folder.model();
    assert!(!model.config().tied);
    folder.config["tie_word_embeddings"] = json!(false);
    assert_eq!(bits(&model.forward(&exec, &text).unwrap()), bits(&folder.model().forward(&exec, &text).unwrap()));
    // models of `mamba_ssm` read both into one table
    folder.config = json!({"d_model": 12, "n_layer": 2, "vocab_size": 30, "pad_vocab_size_multiple": 1, "ssm_cfg": {"d_state": 8, "dt_rank": 3}});
    let embedding = folder.tensors.remove("backbone.embeddings.weight").unwrap();
    folder.tensors.insert("backbone.embedding.weight".into(), embedding);
    assert!(folder.error().contains("ties the head to the embedding"), "{}", folder.error());
}

#[test]
fn settings_are_read_or_refused() {
    let folder = Folder::new("mamba");
    let config = Config::load(folder.write().path()).unwrap();
    assert_eq!((config.family, config.inner, config.dt_rank, config.eos), (Family::Mamba, 24, 3, vec![1, 2]));
    assert_eq!(config.layers, [Kind::Mamba; 2]);
    refused(|folder| folder.config = json!([]), "config.json: it is not a model's configuration: it is no object");
    refused(
        |folder| folder.config["model_type"] = json!("llama"),
        "`model_type` must be mamba, falcon_mamba, mamba2, bamba, granitemoehybrid, qwen3_5_text or olmo_hybrid, got \"llama\"",
    );
    refused(|folder| folder.config["hidden_size"] = json!(0), "`hidden_size` must be an integer from 1 to 16777216, got 0");
    refused(|folder| folder.config["vocab_size"] = json!(1u64 << 40), "`vocab_size` must be an integer");
    refused(|folder| folder.config["conv_kernel"] = json!(9), "`conv_kernel` must be an integer from 2 to 8, got 9");
    refused(|folder| folder.config["hidden_act"] = json!("gelu"), "`hidden_act` must be silu");
    refused(|folder| folder.config["use_bias"] = json!("no"), "`use_bias` must be true or false");
    let long = format!("got \"{}..", "x".repeat(59));
    refused(|folder| folder.config["use_bias"] = json!("x".repeat(1 << 20)), &long);
    refused(|folder| folder.config["layer_norm_epsilon"] = json!(-1.0), "`layer_norm_epsilon` must be a number from 0 to 1");
    refused(|folder| folder.config["eos_token_id"] = json!(-1), "`eos_token_id` must be a token");
    let with_generation = |text: &str| {
        let written = folder.write();
        std::fs::write(written.path().join("generation_config.json"), text).unwrap();
        Config::load(written.path()).map(|config| config.eos).map_err(|error| error.to_string())
    };
    assert_eq!(with_generation(r#"{"eos_token_id": [7, 9]}"#).unwrap(), [7, 9], "it comes before that of config.json");
    assert_eq!(with_generation(r#"{"eos_token_id": 3}"#).unwrap(), [3]);
    assert_eq!(with_generation("{}").unwrap(), [1, 2]);
    assert!(
        with_generation(r#"{"eos_token_id": "end"}"#).unwrap_err().contains("generation_config.json: `eos_token_id` must be")
    );
    assert!(
        with_generation("[]").unwrap_err().contains("generation_config.json: it is not settings of generation: it is no object")
    );
    let mut heads = Folder::new("mamba2");
    heads.config["n_groups"] = json!(4);
    assert!(heads.error().contains("`n_groups` must be a divisor of the number of heads, got 4"));
    heads.config["head_dim"] = json!(5);
    assert!(heads.error().contains("`num_heads` must be such that"));
    let mut limits = Folder::new("mamba2");
    limits.config["time_step_limit"] = json!([1.0, 0.5]);
    assert!(limits.error().contains("`time_step_limit` must be two numbers"));
    for (key, value, with) in [
        ("rms_norm", json!(false), "`rms_norm` must be true"),
        ("attn_layer_idx", json!([1]), "`attn_layer_idx` must be empty"),
        ("d_intermediate", json!(64), "`d_intermediate` must be 0"),
        ("ssm_cfg", json!({"layer": "Mamba3"}), "`layer` must be Mamba1 or Mamba2"),
        ("ssm_cfg", json!(3), "`ssm_cfg` must be an object"),
    ] {
        let mut folder = Folder::new("mamba");
        folder.config = json!({"d_model": 12, "n_layer": 2, "vocab_size": 30});
        folder.config[key] = value;
        assert!(folder.error().contains(with), "{}", folder.error());
    }
}

#[test]
fn infinities_as_python_writes_them_are_read() {
    let mut folder = Folder::new("mamba2");
    folder.config["note"] = json!("\\\"Infinity, \" NaN \u{e9}");
    let written = folder.write();
    let path = written.path().join("config.json");
    let limits = |text: &str| {
        let config = std::fs::read_to_string(&path).unwrap().replace("[0.001,3.0]", text);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        Config::load(folder.path()).map(|config| config.dt_limit)
    };
    assert_eq!(limits("[0.001,3.0]").unwrap(), (0.001, 3.0));
    assert_eq!(limits("[0.5, Infinity]").unwrap(), (0.5, f64::INFINITY));
    assert_eq!(limits(r#"[-Infinity, {"__float__": "Infinity"}]"#).unwrap(), (f64::NEG_INFINITY, f64::INFINITY));
    assert_eq!(limits("null").unwrap(), (0.0, f64::INFINITY));
    assert!(limits("[NaN, 1.0]").is_err() && limits("[0.0, Infinit]").is_err() && limits("[1.0]").is_err());
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    refused(|folder| _ = folder.tensors.remove(PROJECTION), "the tensor `backbone.layers.1.mixer.in_proj.weight` is missing");
    refused(
        |folder| folder.config["num_hidden_layers"] = json!(1),
        "`backbone.layers.1.mixer.A_log` is not part of a mamba model",
    );
    refused(|folder| folder.config["num_hidden_layers"] = json!(1 << 24), "`backbone.layers.2.norm.weight` is missing");
    refused(|folder| folder.config["state_size"] = json!(1 << 24), "must have shape [24, 16777216], got [24, 8]");
    refused(|folder| folder.tensors.get_mut(PROJECTION).unwrap().1 = vec![12, 48], "must have shape [48, 12], got [12, 48]");
    let double = |folder: &mut Folder| {
        let part = folder.tensors.get_mut(PROJECTION).unwrap();
        *part = Part(Dtype::F64, part.1.clone(), [part.2.clone(), part.2.clone()].concat());
    };
    refused(double, "must be f32, bf16 or f16, got f64");
    for (value, with) in [(f32::NAN, "got NaN at element 5"), (f32::NEG_INFINITY, "got -inf at element 5")] {
        refused(|folder| folder.tensors.get_mut(PROJECTION).unwrap().2[20..24].copy_from_slice(&value.to_le_bytes()), with);
    }
}

#[test]
fn files_that_are_cut_short_are_refused() {
    let source = Folder::new("mamba");
    let folder = source.write();
    let (path, bytes) = (folder.path().join("model.safetensors"), Folder::bytes(&source.tensors));
    for len in [0, 7, 8, 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..len]).unwrap();
        let error = Model::load(&folder).err().unwrap().to_string();
        assert!(error.contains("model.safetensors: "), "{len} bytes: {error}");
        assert!(error.contains(&format!("got {len}")), "{len} bytes: {error}");
    }
    let text = source.config.to_string();
    std::fs::write(folder.path().join("config.json"), &text[..text.len() - 1]).unwrap();
    assert!(Model::load(&folder).err().unwrap().to_string().contains("config.json: it is not a model's configuration: EOF"));
    std::fs::remove_file(folder.path().join("config.json")).unwrap();
    assert!(Model::load(&folder).err().unwrap().to_string().contains("config.json: No such file"));
}

#[test]
fn weights_that_are_not_aligned_are_copied() {
    // a header whose length is no multiple of four puts every tensor at an odd place
    let source = Folder::new("mamba");
    let bytes = Folder::bytes(&source.tensors);
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let text = [&bytes[8..8 + header], b" "].concat();
    let odd = [&(text.len() as u64).to_le_bytes()[..], &text, &bytes[8 + header..]].concat();
    let folder = source.write();
    std::fs::write(folder.path().join("model.safetensors"), odd).unwrap();
    let (exec, text) = (Exec::cpu(1), tokens(5, 30));
    let [odd, whole] = [Model::load(&folder).unwrap(), source.model()].map(|model| model.forward(&exec, &text).unwrap());
    assert_eq!(bits(&odd), bits(&whole));
}
