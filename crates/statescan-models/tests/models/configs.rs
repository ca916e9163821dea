//! Every setting of a `config.json`: read, refused by name, or of no effect.

use crate::common::{Folder, Part, bits, own, tokens};
use safetensors::Dtype;
use serde_json::{Map, Value, json};
use statescan::{DType, Exec};
use statescan_models::{Config, Family, HeadNorms, Kind, Model, Package};
use std::collections::BTreeSet;

/// The effect of another value of a setting.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Effect {
    /// The model is another.
    Read,
    /// It is refused with these words.
    Refused(&'static str),
    /// The model is the same.
    Nothing,
}
use Effect::{Nothing, Read, Refused};

type Row = (&'static str, Value, Effect);

fn load(config: &Map<String, Value>) -> Result<Config, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), Value::Object(config.clone()).to_string()).unwrap();
    Config::load(folder.path()).map_err(|error| error.to_string())
}

/// Sets one setting after the other.
#[track_caller]
fn check(what: &str, base: &Map<String, Value>, rows: &[Row], at: Option<&str>) {
    let expected = load(base).unwrap();
    for (name, value, effect) in rows {
        let mut changed = base.clone();
        let place = match at {
            None => &mut changed,
            Some(at) => changed[at].as_object_mut().unwrap(),
        };
        place.insert((*name).to_owned(), value.clone());
        match (load(&changed), effect) {
            (Ok(config), Read) => assert_ne!(config, expected, "{what} {name} is read"),
            (Ok(config), Nothing) => assert_eq!(config, expected, "{what} {name} has no effect"),
            (Err(error), Refused(words)) => assert!(error.contains(words), "{what} {name}: {error}"),
            (got, _) => panic!("{what} {name}: {effect:?}, got {got:?}"),
        }
    }
}

/// The settings of all kinds of `transformers`.
fn common() -> Vec<Row> {
    vec![
        ("conv_kernel", json!(3), Read),
        ("conv_kernel", json!(9), Refused("`conv_kernel` must be an integer from 2 to 8, got 9")),
        ("eos_token_id", json!([3, 4]), Read),
        ("eos_token_id", Value::Null, Read),
        ("hidden_act", json!("swish"), Nothing),
        ("hidden_act", json!("gelu"), Refused("`hidden_act` must be silu")),
        ("layer_norm_epsilon", json!(1e-3), Read),
        ("num_hidden_layers", json!(3), Read),
        ("state_size", json!(24), Read),
        ("tie_word_embeddings", json!(true), Read),
        ("tie_word_embeddings", json!(false), Read),
        ("use_bias", json!(true), Read),
        ("use_conv_bias", json!(false), Read),
        ("vocab_size", json!(77), Read),
        // how a model begins
        ("initializer_range", json!(0.3), Nothing),
        ("rescale_prenorm_residual", json!(true), Nothing),
        ("time_step_floor", json!(0.1), Nothing),
        ("time_step_max", json!(0.7), Nothing),
        ("time_step_min", json!(0.2), Nothing),
        // how it is computed: in f32 here
        ("dtype", json!("bfloat16"), Nothing),
        ("residual_in_fp32", json!(false), Nothing),
        ("torch_dtype", json!("bfloat16"), Nothing),
        ("use_cache", json!(false), Nothing),
        // tokens that only tokenizers and training know of
        ("bos_token_id", json!(5), Nothing),
        ("pad_token_id", json!(5), Nothing),
        ("architectures", json!(["MambaModel"]), Nothing),
        ("quantization_config", json!({"load_in_8bit": true}), Refused("`quantization_config` must be absent")),
    ]
}

fn mamba() -> Vec<Row> {
    let own = vec![
        // `intermediate_size` goes before it
        ("expand", json!(3), Nothing),
        ("hidden_size", json!(64), Read),
        ("intermediate_size", json!(3072), Read),
        ("time_step_rank", json!(7), Read),
        ("time_step_rank", json!("auto"), Nothing),
        ("time_step_init_scheme", json!("constant"), Nothing),
        ("time_step_limit", json!([0.1, 0.2]), Nothing),
        ("time_step_scale", json!(2.0), Nothing),
        ("use_associative_scan", json!(false), Nothing),
        ("use_mambapy", json!(true), Nothing),
    ];
    [common(), own].concat()
}

fn falcon_mamba() -> Vec<Row> {
    let own = vec![("mixer_rms_eps", json!(1e-3), Read), ("use_falcon_mambapy", json!(true), Nothing)];
    [mamba(), own].concat()
}

fn mamba2() -> Vec<Row> {
    let heads = "`num_heads` must be such that num_heads x head_dim is expand x hidden_size";
    let own = vec![
        ("expand", json!(4), Refused(heads)),
        ("head_dim", json!(32), Refused(heads)),
        ("hidden_size", json!(64), Refused(heads)),
        ("num_heads", json!(64), Refused(heads)),
        ("n_groups", json!(4), Read),
        ("n_groups", json!(3), Refused("`n_groups` must be a divisor of the number of heads")),
        ("time_step_limit", json!([0.1, 0.2]), Read),
        ("chunk_size", json!(64), Nothing),
        ("intermediate_size", json!(77), Nothing),
        ("norm_before_gate", json!(true), Nothing),
        ("rms_norm", json!(false), Nothing),
        ("time_step_rank", json!(7), Nothing),
    ];
    [common(), own].concat()
}

/// The settings of all hybrids.
fn hybrid() -> Vec<Row> {
    let heads = "`mamba_n_heads` must be such that mamba_n_heads x mamba_d_head is mamba_expand x hidden_size";
    let rotation = "`rope_type` must be default";
    let unknown = ["initializer_range", "conv_kernel", "state_size", "use_bias", "use_conv_bias", "layer_norm_epsilon"];
    let unknown = [&unknown[..], &["rescale_prenorm_residual", "time_step_floor", "time_step_max", "time_step_min"]].concat();
    let own = vec![
        ("attention_bias", json!(true), Read),
        ("attention_dropout", json!(0.5), Nothing),
        ("head_dim", json!(64), Read),
        ("hidden_size", json!(64), Refused(heads)),
        ("mamba_chunk_size", json!(64), Nothing),
        ("mamba_conv_bias", json!(false), Read),
        ("mamba_d_conv", json!(3), Read),
        ("mamba_d_head", json!("auto"), Nothing),
        ("mamba_d_head", json!(32), Refused(heads)),
        ("mamba_d_state", json!(64), Read),
        ("mamba_expand", json!(4), Refused(heads)),
        ("mamba_n_groups", json!(2), Read),
        ("mamba_n_groups", json!(3), Refused("`mamba_n_groups` must be a divisor of the number of heads")),
        ("mamba_n_heads", json!(64), Refused(heads)),
        ("mamba_proj_bias", json!(true), Read),
        ("max_position_embeddings", json!(77), Nothing),
        ("num_attention_heads", json!(64), Read),
        ("num_hidden_layers", json!(3), Refused("layer")),
        ("num_key_value_heads", json!(4), Read),
        ("num_key_value_heads", json!(5), Refused("`num_key_value_heads` must be a divisor")),
        ("rms_norm_eps", json!(1e-3), Read),
        ("rope_parameters", json!({"rope_type": "yarn", "factor": 2.0}), Refused(rotation)),
        ("rope_parameters", json!({"rope_type": "default", "rope_theta": 100.0}), Read),
        ("rope_scaling", json!({"type": "linear", "factor": 2.0}), Refused("`type` must be default")),
        ("time_step_limit", json!([0.1, 0.2]), Read),
    ];
    let common = common().into_iter().filter(|(name, ..)| !unknown.contains(name) && *name != "num_hidden_layers");
    common.chain(own).chain([("initializer_range", json!(0.3), Nothing)]).collect()
}

fn bamba() -> Vec<Row> {
    let indices = "`attn_layer_indices` must be a list of numbers below num_hidden_layers";
    let own = vec![
        ("attn_layer_indices", json!([3, 7]), Read),
        ("attn_layer_indices", json!([32]), Refused(indices)),
        ("attn_layer_indices", json!(3), Refused(indices)),
        ("intermediate_size", json!(77), Read),
        ("mlp_bias", json!(true), Read),
        ("num_hidden_layers", json!(3), Read),
        ("num_key_value_heads", Value::Null, Read),
        ("num_logits_to_keep", json!(3), Nothing),
        ("rope_parameters", json!({"partial_rotary_factor": 1.0}), Read),
        ("rope_parameters", json!({"partial_rotary_factor": 1.5}), Refused("`partial_rotary_factor` must be a share")),
        ("z_loss_coefficient", json!(0.1), Nothing),
    ];
    hybrid().into_iter().filter(|(name, ..)| *name != "num_hidden_layers").chain(own).collect()
}

fn granite() -> Vec<Row> {
    let types = "`layer_types` must be mamba or attention for each layer";
    let experts = "`num_local_experts` must be 0, for layers of experts are not read";
    let mut last = vec!["attention"; 32];
    last[..31].fill("mamba");
    let own = vec![
        ("attention_multiplier", json!(0.5), Read),
        ("embedding_multiplier", json!(0.5), Read),
        ("embedding_multiplier", json!(0), Refused("`embedding_multiplier` must be a number above zero")),
        ("intermediate_size", json!(77), Nothing),
        ("layer_types", json!(last), Read),
        ("layer_types", Value::Null, Nothing),
        ("layer_types", json!(["mamba"]), Refused(types)),
        ("layer_types", json!(vec!["moe"; 32]), Refused(types)),
        ("logits_scaling", json!(0.5), Read),
        ("num_experts_per_tok", json!(7), Nothing),
        ("num_local_experts", json!(2), Refused(experts)),
        ("num_local_experts", Value::Null, Refused(experts)),
        ("output_router_logits", json!(true), Nothing),
        ("position_embedding_type", json!("rope"), Read),
        ("position_embedding_type", json!("nope"), Nothing),
        ("residual_multiplier", json!(0.5), Read),
        ("router_aux_loss_coef", json!(0.5), Nothing),
        ("shared_intermediate_size", json!(77), Read),
    ];
    hybrid().into_iter().chain(own).collect()
}

/// The settings of all models of the delta rule.
fn delta() -> Vec<Row> {
    let types = "`layer_types` must be linear_attention or full_attention for each layer";
    let rotation = "`rope_type` must be default, for no other rotation is computed";
    let mut last = vec!["full_attention"; 32];
    last[..31].fill("linear_attention");
    let unknown = ["conv_kernel", "layer_norm_epsilon", "num_hidden_layers", "state_size", "use_bias", "use_conv_bias"];
    let own = vec![
        ("attention_bias", json!(true), Read),
        ("attention_dropout", json!(0.5), Nothing),
        ("head_dim", json!(64), Read),
        ("hidden_size", json!(7680), Read),
        ("intermediate_size", json!(77), Read),
        ("layer_types", json!(last), Read),
        ("layer_types", Value::Null, Nothing),
        ("layer_types", json!(["linear_attention"]), Refused(types)),
        ("layer_types", json!(vec!["sliding_attention"; 32]), Refused(types)),
        ("linear_conv_kernel_dim", json!(3), Read),
        ("linear_conv_kernel_dim", json!(9), Refused("`linear_conv_kernel_dim` must be an integer from 2 to 8")),
        ("linear_key_head_dim", json!(64), Read),
        ("linear_key_head_dim", json!(257), Refused("`linear_key_head_dim` must be an integer from 1 to 256, got 257")),
        ("linear_num_key_heads", json!(2), Read),
        ("linear_num_key_heads", json!(7), Refused("`linear_num_value_heads` must be a multiple of linear_num_key_heads")),
        ("linear_num_value_heads", json!(240), Read),
        ("linear_value_head_dim", json!(64), Read),
        ("linear_value_head_dim", json!(512), Refused("`linear_value_head_dim` must be an integer from 1 to 256, got 512")),
        ("max_position_embeddings", json!(77), Nothing),
        ("num_attention_heads", json!(60), Read),
        ("num_hidden_layers", json!(3), Refused(types)),
        ("num_key_value_heads", json!(2), Read),
        ("num_key_value_heads", json!(7), Refused("`num_key_value_heads` must be a divisor")),
        ("rms_norm_eps", json!(1e-3), Read),
        ("rope_parameters", json!({"rope_type": "yarn", "factor": 2.0}), Refused(rotation)),
        ("rope_parameters", json!({"rope_type": "default", "rope_theta": 100.0}), Read),
        ("rope_scaling", json!({"type": "linear", "factor": 2.0}), Refused("`type` must be default")),
        ("rope_scaling", json!({"rope_theta": 100.0}), Read),
    ];
    common().into_iter().filter(|(name, ..)| !unknown.contains(name)).chain(own).collect()
}

fn qwen3_5() -> Vec<Row> {
    let own = vec![
        ("rope_parameters", json!({"partial_rotary_factor": 0.5}), Read),
        ("rope_parameters", json!({"partial_rotary_factor": 1.5}), Refused("`partial_rotary_factor` must be a share")),
        // positions in pictures, where those of a text are all equal
        ("rope_parameters", json!({"mrope_section": [11, 11, 10], "mrope_interleaved": true}), Nothing),
        // only the other class has the setting by which heads may write more than values
        ("linear_allow_neg_eigval", json!(true), Nothing),
    ];
    delta().into_iter().filter(|(name, value, _)| *name != "eos_token_id" || !value.is_null()).chain(own).collect()
}

fn olmo_hybrid() -> Vec<Row> {
    let own = vec![
        ("linear_a_log_max", json!(3.0), Nothing),
        ("linear_a_log_min", json!(3.0), Nothing),
        ("linear_allow_neg_eigval", json!(false), Read),
        ("linear_dt_init_floor", json!(3.0), Nothing),
        ("linear_dt_max", json!(3.0), Nothing),
        ("linear_dt_min", json!(3.0), Nothing),
        ("linear_key_head_dim", Value::Null, Nothing),
        ("linear_value_head_dim", Value::Null, Nothing),
        ("num_key_value_heads", Value::Null, Nothing),
        ("rope_parameters", json!({"rope_theta": null}), Read),
        ("rope_parameters", json!({"partial_rotary_factor": 0.5}), Nothing),
    ];
    delta().into_iter().chain(own).collect()
}

#[test]
fn every_setting_of_transformers_is_read_refused_or_of_no_effect() {
    let settings: Value = serde_json::from_str(&std::fs::read_to_string(own("settings.json")).unwrap()).unwrap();
    let all = [("mamba", mamba()), ("falcon_mamba", falcon_mamba()), ("mamba2", mamba2()), ("bamba", bamba())];
    let others = [("granitemoehybrid", granite()), ("qwen3_5_text", qwen3_5()), ("olmo_hybrid", olmo_hybrid())];
    for (kind, rows) in all.into_iter().chain(others) {
        let mut base = settings[kind].as_object().unwrap().clone();
        base.insert("model_type".into(), json!(kind));
        let mut alone = Map::from_iter([("model_type".to_owned(), json!(kind))]);
        if kind == "granitemoehybrid" {
            // the class begins with eight experts
            [&mut base, &mut alone].into_iter().for_each(|settings| _ = settings.insert("num_local_experts".into(), json!(0)));
        }
        assert_eq!(load(&base), load(&alone), "{kind}: what is missing is what the class begins with");
        let listed: BTreeSet<&str> = rows.iter().map(|(name, ..)| *name).collect();
        let missing: Vec<_> = settings[kind].as_object().unwrap().keys().filter(|name| !listed.contains(&name[..])).collect();
        assert!(missing.is_empty(), "{kind}: {missing:?} are in no row");
        let same = |(name, value, _): &Row| matches!(*name, "tie_word_embeddings") && base[*name] == *value;
        let rows: Vec<Row> = rows.into_iter().filter(|row| !same(row)).collect();
        check(kind, &base, &rows, None);
    }
}

#[test]
fn every_setting_of_mamba_ssm_is_read_refused_or_of_no_effect() {
    let base = json!({"d_model": 64, "d_intermediate": 0, "n_layer": 2, "vocab_size": 100, "ssm_cfg": {}, "attn_layer_idx": [], "attn_cfg": {},
        "rms_norm": true, "residual_in_fp32": true, "fused_add_norm": true, "pad_vocab_size_multiple": 8, "tie_embeddings": true});
    let mut base = base.as_object().unwrap().clone();
    let alone = json!({"d_model": 64, "n_layer": 2, "vocab_size": 100});
    assert_eq!(load(&base), load(alone.as_object().unwrap()));
    let rows = [
        ("attn_cfg", json!({"num_heads": 4}), Nothing),
        ("attn_layer_idx", json!([1]), Refused("`attn_layer_idx` must be empty")),
        ("d_intermediate", json!(64), Refused("`d_intermediate` must be 0")),
        ("d_model", json!(32), Read),
        ("fused_add_norm", json!(false), Nothing),
        ("n_layer", json!(3), Read),
        ("pad_vocab_size_multiple", json!(16), Read),
        ("residual_in_fp32", json!(false), Nothing),
        ("rms_norm", json!(false), Refused("`rms_norm` must be true")),
        ("ssm_cfg", json!(3), Refused("`ssm_cfg` must be an object")),
        ("tie_embeddings", json!(false), Read),
        ("vocab_size", json!(200), Read),
    ];
    check("MambaConfig", &base, &rows, None);
    let both = |rest: Vec<Row>| {
        let both = vec![
            ("bias", json!(true), Read),
            ("conv_bias", json!(false), Read),
            ("d_conv", json!(3), Read),
            ("d_model", json!(64), Nothing),
            ("d_model", json!(32), Refused("`d_model` must be that of the model")),
            ("d_state", json!(24), Read),
            ("device", json!("cuda"), Nothing),
            ("dt_init_floor", json!(0.1), Nothing),
            ("dt_max", json!(0.5), Nothing),
            ("dt_min", json!(0.5), Nothing),
            ("dtype", json!("float16"), Nothing),
            ("expand", json!(4), Read),
            ("layer_idx", json!(0), Nothing),
            ("width", json!(4), Refused("got `width`")),
        ];
        [both, rest].concat()
    };
    base.insert("ssm_cfg".into(), json!({"layer": "Mamba1"}));
    let rows = both(vec![
        ("dt_init", json!("constant"), Nothing),
        ("dt_limit", json!([0.1, 0.2]), Refused("got `dt_limit`")),
        ("dt_rank", json!(7), Read),
        ("dt_rank", json!("auto"), Nothing),
        ("dt_scale", json!(2.0), Nothing),
        ("expand", json!(1.5), Read),
        ("headdim", json!(16), Refused("got `headdim`")),
        ("layer", json!("Mamba3"), Refused("`layer` must be Mamba1 or Mamba2")),
        ("use_fast_path", json!(false), Nothing),
    ]);
    check("Mamba", &base, &rows, Some("ssm_cfg"));
    base.insert("ssm_cfg".into(), json!({"layer": "Mamba2"}));
    let rows = both(vec![
        ("A_init_range", json!([1, 2]), Nothing),
        ("chunk_size", json!(64), Nothing),
        ("conv_init", json!(0.1), Nothing),
        ("D_has_hdim", json!(true), Refused("`D_has_hdim` must be false")),
        ("d_ssm", json!(128), Nothing),
        ("d_ssm", json!(64), Refused("`d_ssm` must be expand x d_model")),
        ("dt_limit", json!([0.1, 0.2]), Read),
        ("dt_rank", json!(7), Refused("got `dt_rank`")),
        ("headdim", json!(32), Read),
        ("headdim", json!(48), Refused("`headdim` must be a divisor")),
        ("ngroups", json!(2), Read),
        ("norm_before_gate", json!(true), Refused("`norm_before_gate` must be false")),
        ("process_group", Value::Null, Nothing),
        ("rmsnorm", json!(false), Refused("`rmsnorm` must be true")),
        ("sequence_parallel", json!(false), Nothing),
        ("use_mem_eff_path", json!(false), Nothing),
    ]);
    check("Mamba2", &base, &rows, Some("ssm_cfg"));
}

#[test]
fn channels_are_those_of_the_weights_where_settings_contradict_each_other() {
    let (exec, text) = (Exec::cpu(1), tokens(9, 30));
    for kind in ["mamba", "falcon_mamba"] {
        let mut folder = Folder::new(kind);
        let expected = bits(&folder.model().forward(&exec, &text).unwrap());
        // as falcon-mamba-7b has it
        (folder.config["expand"], folder.config["intermediate_size"]) = (json!(16), json!(24));
        assert_eq!(bits(&folder.model().forward(&exec, &text).unwrap()), expected, "{kind}");
        (folder.config["expand"], folder.config["intermediate_size"]) = (json!(2), json!(36));
        assert_eq!(bits(&folder.model().forward(&exec, &text).unwrap()), expected, "{kind}");
        folder.config["expand"] = json!(4);
        assert!(folder.error().contains("must have shape"), "{}", folder.error());
    }
}

fn hybrid_layers() -> Vec<Kind> {
    Config::bamba(9, 8, 1, &[], 4).layers
}

#[test]
fn a_null_of_rope_theta_means_no_positions_where_it_stands_too() {
    for (settings, rotary) in
        [(json!({"rope_theta": null}), 0), (json!({"rope_theta": 7.0}), 4), (json!({"rope_parameters": null}), 4)]
    {
        let mut folder = Folder::of("olmo_hybrid");
        let config = folder.config.as_object_mut().unwrap();
        config.remove("rope_parameters");
        config.extend(settings.as_object().unwrap().clone());
        let read = Config::load(folder.write().path()).unwrap();
        assert_eq!(read.attention.rotary, rotary, "{settings}");
    }
}

#[test]
fn configurations_that_are_made_can_be_written_and_read() {
    let mut falcon = Config::falcon_mamba(100, 24, 3);
    (falcon.eps, falcon.mixer_eps, falcon.eos, falcon.dt_rank) = (1e-3, 3e-4, vec![7], 5);
    let mut second = Config::mamba2(50, 32, 1, 8);
    (second.dt_limit, second.ngroups, second.tied, second.eos) = ((0.01, f64::INFINITY), 4, false, vec![1, 2]);
    let mut odd = Config::mamba(40, 10, 2);
    (odd.inner, odd.nheads, odd.bias, odd.conv_bias, odd.width) = (15, 15, true, false, 3);
    let mut other = Config::mamba2(50, 32, 1, 8);
    (other.package, other.dt_limit) = (Package::MambaSsm, (0.01, 0.5));
    let mut own = Config::mamba(40, 10, 2);
    own.package = Package::MambaSsm;
    let mut hybrid = Config::bamba(50, 32, 3, &[1], 8);
    (hybrid.attention.bias, hybrid.feed_forward.bias, hybrid.dt_limit, hybrid.eos) = (true, true, (0.01, 0.5), vec![3]);
    let mut granite = Config::bamba(50, 32, 2, &[0], 8);
    (granite.family, granite.attention.rotary, granite.attention.scale, granite.tied) = (Family::GraniteHybrid, 8, 0.25, true);
    (granite.scales.embedding, granite.scales.residual, granite.scales.logits) = (12.0, 0.22, 8.0);
    let mut qwen = Config::qwen3_5(50, 32, 3, &[1], 8);
    (qwen.attention.bias, qwen.eos, qwen.tied) = (true, vec![3], true);
    let mut olmo = qwen.clone();
    (olmo.family, olmo.allow_neg_eigval, olmo.mixer_eps) = (Family::OlmoHybrid, true, 1e-5);
    (olmo.attention.norms, olmo.attention.gate, olmo.attention.rotary) = (HeadNorms::All, false, 0);
    let delta = [qwen.clone(), olmo.clone()];
    let others = [Config::mamba(256, 128, 6), falcon, second, odd, other.clone(), own, hybrid.clone(), granite];
    for config in others.into_iter().chain(delta) {
        let folder = tempfile::tempdir().unwrap();
        config.save(folder.path().join("new")).unwrap();
        assert_eq!(Config::load(folder.path().join("new")).unwrap(), config);
    }
    let refused = |mut config: Config, change: fn(&mut Config), with: &str| {
        change(&mut config);
        let error = config.to_json().unwrap_err().to_string();
        assert!(error.contains(with), "{error}");
    };
    refused(
        Config::falcon_mamba(9, 8, 1),
        |config| config.package = Package::MambaSsm,
        "mamba_ssm has no setting for `family` of this model: it must be mamba or mamba2, got falcon_mamba",
    );
    let refused_hybrid = |change: fn(&mut Config), with: &str| refused(hybrid.clone(), change, with);
    refused_hybrid(|config| config.package = Package::MambaSsm, "mamba_ssm has no setting for `family` of this model");
    refused_hybrid(|config| config.scales.residual = 0.5, "`scales` of this model: it must be 1");
    refused_hybrid(|config| config.attention.scale = 0.5, "`attention.scale` of this model");
    refused_hybrid(
        |config| config.attention.kv_heads = 3,
        "`attention.kv_heads` must be a divisor of the heads of queries, got 3",
    );
    refused_hybrid(|config| config.attention.rotary = 3, "`attention.rotary` must be even, and at most a head's numbers, got 3");
    refused_hybrid(|config| config.feed_forward.hidden = 0, "`feed_forward.hidden` must be an integer from 1");
    refused_hybrid(
        |config| config.layers.swap(0, 1),
        "`layers` must be of kinds that the family has in this place, but for none, got 0",
    );
    refused_hybrid(|config| config.layers.truncate(5), "`layers` must be pairs of a mixer and a feed-forward layer, got 5");
    let refused_delta = |change: fn(&mut Config), with: &str| refused(qwen.clone(), change, with);
    refused_delta(|config| config.attention.gate = false, "`attention.gate` of this model: it must be that of its family");
    refused_delta(|config| config.attention.norms = HeadNorms::All, "`attention.gate` of this model: it must be false without");
    let none = |config: &mut Config| (config.attention.norms, config.attention.gate) = (HeadNorms::None, false);
    refused_delta(none, "`attention.norms` of this model");
    refused_delta(|config| config.allow_neg_eigval = true, "`allow_neg_eigval` of this model: it must be false");
    refused_delta(|config| config.conv_bias = true, "`bias` of this model: it must be false");
    refused_delta(|config| config.mixer_eps = 1e-3, "`mixer_eps` of this model: it must be that of its family");
    refused_delta(|config| config.dstate = 300, "`dstate` must be at most 256 with the delta rule, got 300");
    refused(
        olmo.clone(),
        |config| config.scales.residual = 0.5,
        "`scales.residual` of this model: it must be 1 where norms follow",
    );
    refused(olmo, |config| config.attention.rotary = 4, "`attention.rotary` of this model");
    refused(Config::mamba(9, 32, 1), |config| config.layers = hybrid_layers(), "`layers` must be of kinds");
    refused(
        Config::mamba(9, 32, 1),
        |config| config.scales.residual = 0.5,
        "`scales` of this model: it must be 1, but in hybrids",
    );
    refused(Config::mamba2(9, 32, 1, 8), |config| config.scales.logits = f32::NAN, "`scales` of this model: it must be 1");
    refused(Config::mamba(9, 32, 1), |config| config.dt_limit = (0.01, 0.5), "`dt_limit` of this model");
    refused(other.clone(), |config| config.mixer_eps = 1e-3, "`mixer_eps` of this model: it must be 1e-5, got 0.001");
    refused(other, |config| config.nheads = 7, "`nheads` must be a divisor of the channels, got 7");
}

/// The settings of a family that has these.
fn of_family(family: &str, settings: Value) -> Map<String, Value> {
    let mut all = settings.as_object().unwrap().clone();
    all.insert("model_type".into(), json!(family));
    all
}

#[test]
fn any_share_of_a_head_that_is_turned_is_saved() {
    // none of four numbers, 30 of 44, which 30/44 of them is not, and all
    for (family, headdim, share, rotary) in
        [("bamba", 4, 0.1, 0), ("qwen3_5_text", 4, 0.1, 0), ("bamba", 44, 0.69, 30), ("qwen3_5_text", 44, 1.0, 44)]
    {
        let mut settings = Folder::hybrid(family).config;
        settings["head_dim"] = json!(headdim);
        settings["rope_parameters"] = json!({"rope_theta": 100.0, "partial_rotary_factor": share});
        let config = load(&of_family(family, settings)).unwrap();
        assert_eq!(config.attention.rotary, rotary, "{family}");
        let (folder, model) = (tempfile::tempdir().unwrap(), Model::random(config.clone(), DType::F32, 1).unwrap());
        model.save(folder.path()).unwrap_or_else(|error| panic!("{family}, {rotary} of {headdim}: {error}"));
        assert_eq!(*Model::load(folder.path()).unwrap().config(), config, "{family}, {rotary} of {headdim}");
    }
}

#[test]
fn errors_say_what_a_missing_size_of_heads_stands_for() {
    for (settings, expected) in [
        (
            json!({"hidden_size": 7680, "num_attention_heads": 15}),
            "`linear_key_head_dim` must be an integer from 1 to 256, got nothing, which stands for 384",
        ),
        (
            json!({"linear_num_key_heads": 15}),
            "`linear_value_head_dim` must be an integer from 1 to 256, got nothing, which stands for 384",
        ),
        (
            json!({"hidden_size": 450}),
            "`head_dim` must be even, as numbers of a head are turned in pairs, got nothing, which stands for 15",
        ),
        (json!({"hidden_size": 20}), "`head_dim` must be at least 1, got nothing, which stands for 0"),
        (json!({"head_dim": 15}), "`head_dim` must be even, as numbers of a head are turned in pairs, got 15"),
    ] {
        let error = load(&of_family("olmo_hybrid", settings)).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn parts_of_several_types_become_a_tensor_that_has_their_numbers() {
    let whole = Folder::hybrid("olmo_hybrid");
    let mut parts = whole.clone();
    let at = "model.layers.0.linear_attn.";
    let Part(_, shape, bytes) = parts.tensors.remove(&format!("{at}conv1d.weight")).unwrap();
    let row = bytes.len() / shape[0];
    let mut rest = &bytes[..];
    for (name, rows) in [("q", 6), ("k", 6), ("v", 20)] {
        let part;
        (part, rest) = rest.split_at(rows * row);
        // the first part is rounded, the numbers of the others are those of f32
        let part = if name == "q" {
            Part(Dtype::BF16, vec![rows, 1, 4], part.chunks(4).flat_map(|x| [x[2], x[3]]).collect())
        } else {
            Part(Dtype::F32, vec![rows, 1, 4], part.to_vec())
        };
        parts.tensors.insert(format!("{at}{name}_conv1d.weight"), part);
    }
    let read = |folder: &Folder| folder.model().weights()[&format!("{at}conv1d.weight")].to_f32();
    let (got, expected) = (read(&parts), read(&whole));
    assert_eq!(bits(&got[24..]), bits(&expected[24..]));
    assert!(got[..24].iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits() & 0xffff_0000));
}
