//! The helpers of tests of models: folders of test vectors, folders made by hand, comparison by bits.

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use statescan_models::reference::Weights;
use statescan_models::{Config, Model};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder of other people's vectors: in the one that `STATESCAN_VECTORS` names, or in `shared/vectors` beside the repository.
pub fn shared(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vectors");
    let folder = std::env::var_os("STATESCAN_VECTORS").map_or(beside, PathBuf::from).join(name);
    if !folder.is_dir() {
        println!("skipped: no test vector {name}; STATESCAN_VECTORS names their folder");
        return None;
    }
    Some(folder)
}

/// A folder of our own vectors.
pub fn own(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(name)
}

/// The numbers of a tensor in a file.
pub fn read(path: &Path, tensor: &str) -> (Vec<usize>, Vec<f64>) {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let view = file.tensor(tensor).unwrap();
    let numbers = match view.dtype() {
        Dtype::F32 => view.data().chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect(),
        Dtype::I64 => view.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f64).collect(),
        other => panic!("{other:?}"),
    };
    (view.shape().to_vec(), numbers)
}

/// The largest of some numbers without their signs; not a number where one of them is none, which no comparison holds for.
pub fn largest<N: Into<f64>>(numbers: impl IntoIterator<Item = N>) -> f64 {
    let sizes = numbers.into_iter().map(|number| number.into().abs());
    sizes.fold(0.0, |most, size| if most.is_nan() || most >= size { most } else { size })
}

/// The largest difference.
#[track_caller]
pub fn apart<A: Into<f64> + Copy, B: Into<f64> + Copy>(got: &[A], expected: &[B]) -> f64 {
    assert_eq!(got.len(), expected.len());
    largest(got.iter().zip(expected).map(|(&a, &b)| a.into() - b.into()))
}

pub fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// Tokens below a size of vocabulary.
pub fn tokens(count: usize, vocab: usize) -> Vec<u32> {
    let mut random = Random(count as u64);
    (0..count).map(|_| (random.bits() % vocab as u64) as u32).collect()
}

/// Splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 24) as f32 * 2.0 - 1.0
    }
}

/// A tensor of a file: its type, shape and bytes.
#[derive(Clone)]
pub struct Part(pub Dtype, pub Vec<usize>, pub Vec<u8>);

/// A model's folder, to be written.
#[derive(Clone)]
pub struct Folder {
    pub config: Value,
    pub tensors: BTreeMap<String, Part>,
}

impl Folder {
    /// A model of a kind, with random weights.
    pub fn new(kind: &str) -> Self {
        let (dim, inner, dstate, rank, heads, groups, vocab) = (12, 24, 8, 3, 6, 2, 30);
        let mut config = json!({
            "model_type": kind, "vocab_size": vocab, "hidden_size": dim, "num_hidden_layers": 2, "state_size": dstate, "conv_kernel": 4,
            "expand": 2, "tie_word_embeddings": kind != "mamba2", "eos_token_id": [1, 2],
        });
        let mut shapes = vec![
            ("norm.weight", vec![dim]),
            ("mixer.A_log", vec![inner, dstate]),
            ("mixer.D", vec![inner]),
            ("mixer.out_proj.weight", vec![dim, inner]),
        ];
        let channels = match kind {
            "mamba2" => {
                config["num_heads"] = json!(heads);
                config["head_dim"] = json!(inner / heads);
                config["n_groups"] = json!(groups);
                config["time_step_limit"] = json!([0.001, 3.0]);
                (shapes[1].1, shapes[2].1) = (vec![heads], vec![heads]);
                shapes.push(("mixer.dt_bias", vec![heads]));
                shapes.push(("mixer.norm.weight", vec![inner]));
                inner + 2 * groups * dstate
            }
            _ => {
                config["time_step_rank"] = json!(rank);
                shapes.push(("mixer.x_proj.weight", vec![rank + 2 * dstate, inner]));
                shapes.push(("mixer.dt_proj.weight", vec![inner, rank]));
                shapes.push(("mixer.dt_proj.bias", vec![inner]));
                inner
            }
        };
        let projected = if kind == "mamba2" { inner + channels + heads } else { 2 * inner };
        shapes.push(("mixer.in_proj.weight", vec![projected, dim]));
        shapes.push(("mixer.conv1d.weight", vec![channels, 1, 4]));
        shapes.push(("mixer.conv1d.bias", vec![channels]));
        let mut all =
            vec![("backbone.embeddings.weight".to_owned(), vec![vocab, dim]), ("backbone.norm_f.weight".into(), vec![dim])];
        if kind == "mamba2" {
            all.push(("lm_head.weight".into(), vec![vocab, dim]));
        }
        for layer in 0..2 {
            all.extend(shapes.iter().map(|(name, shape)| (format!("backbone.layers.{layer}.{name}"), shape.clone())));
        }
        let mut random = Random(kind.len() as u64);
        let part = |(name, shape): (String, Vec<usize>)| {
            let numbers: Vec<f32> = (0..shape.iter().product()).map(|_| random.uniform()).collect();
            (name, Part(Dtype::F32, shape, numbers.iter().flat_map(|x| x.to_le_bytes()).collect()))
        };
        Folder { config, tensors: all.into_iter().map(part).collect() }
    }

    /// A hybrid of a family, with random weights: a scan, attention, a scan, each with a feed-forward layer.
    pub fn hybrid(family: &str) -> Self {
        let (vocab, dim, heads, granite) = (30, 12, 6, family == "granitemoehybrid");
        let mut config = json!({
            "model_type": family, "vocab_size": vocab, "hidden_size": dim, "num_hidden_layers": 3, "num_attention_heads": 3,
            "num_key_value_heads": if granite { 3 } else { 1 }, "mamba_n_heads": heads, "mamba_n_groups": 2, "mamba_d_state": 8,
            "time_step_limit": [0.001, 3.0], "rms_norm_eps": 1e-5, "attention_bias": true, "eos_token_id": [1, 2],
        });
        let delta = json!({
            "layer_types": ["linear_attention", "full_attention", "linear_attention"], "intermediate_size": 10, "head_dim": 4,
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 3, "linear_value_head_dim": 5,
            "rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.5},
        });
        let own = match granite {
            _ if FAMILIES[5..].contains(&family) => delta,
            true => json!({
                "layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 0, "shared_intermediate_size": 10,
                "position_embedding_type": "rope", "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 2.0,
                "attention_multiplier": 0.3, "tie_word_embeddings": true,
            }),
            false => json!({"attn_layer_indices": [1], "intermediate_size": 10, "mlp_bias": true}),
        };
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let mut random = Random(family.len() as u64);
        let part = |(name, shape): (String, Vec<usize>)| {
            let numbers: Vec<f32> = (0..shape.iter().product()).map(|_| random.uniform()).collect();
            (name, Part(Dtype::F32, shape, numbers.iter().flat_map(|x| x.to_le_bytes()).collect()))
        };
        let tensors = Config::load(folder.path()).unwrap().tensors().into_iter().map(part).collect();
        Folder { config, tensors }
    }

    /// A model of a family, with random weights.
    pub fn of(family: &str) -> Self {
        if FAMILIES[3..].contains(&family) { Self::hybrid(family) } else { Self::new(family) }
    }

    /// Norms with a large term under the root. Those of rows near zero make numbers of rounding errors: with the usual term rounding the weights to bf16 moves
    /// the gradient of a Mamba-2 of these sizes by 6 to 8 % of its length, and with this one by 1.5 %.
    pub fn with_wide_norms(mut self) -> Self {
        let eps = if self.config.get("rms_norm_eps").is_some() { "rms_norm_eps" } else { "layer_norm_epsilon" };
        self.config[eps] = 0.3.into();
        self
    }

    /// Rounds every weight to a 16-bit type, and stores it in that or in f32.
    pub fn rounded(mut self, dtype: Dtype, stored: bool) -> Self {
        for part in self.tensors.values_mut() {
            let numbers = part.2.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
            let round = |x: f32| match dtype {
                Dtype::BF16 => (half::bf16::from_f32(x).to_bits(), half::bf16::from_f32(x).to_f32()),
                _ => (half::f16::from_f32(x).to_bits(), half::f16::from_f32(x).to_f32()),
            };
            *part = match stored {
                true => Part(dtype, part.1.clone(), numbers.flat_map(|x| round(x).0.to_le_bytes()).collect()),
                false => Part(Dtype::F32, part.1.clone(), numbers.flat_map(|x| round(x).1.to_le_bytes()).collect()),
            };
        }
        self
    }

    /// The tensors, stored in f32, as the oracle takes them.
    pub fn weights(&self) -> Weights {
        let number = |b: &[u8]| f64::from(f32::from_le_bytes(b.try_into().unwrap()));
        self.tensors.iter().map(|(name, part)| (name.clone(), part.2.chunks_exact(4).map(number).collect())).collect()
    }

    /// Bytes of a file with these tensors.
    pub fn bytes<'a>(tensors: impl IntoIterator<Item = (&'a String, &'a Part)>) -> Vec<u8> {
        let views = tensors.into_iter().map(|(name, part)| (name, TensorView::new(part.0, part.1.clone(), &part.2).unwrap()));
        safetensors::serialize(views, None).unwrap()
    }

    /// Writes the folder.
    pub fn write(&self) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), self.config.to_string()).unwrap();
        std::fs::write(folder.path().join("model.safetensors"), Self::bytes(&self.tensors)).unwrap();
        folder
    }

    pub fn model(&self) -> Model {
        Model::load(self.write()).unwrap()
    }

    /// The sentence that loading it fails with.
    pub fn error(&self) -> String {
        Model::load(self.write()).expect_err("a folder that is refused").to_string()
    }
}

/// All families; hybrids are those behind the first three, and those of the delta rule the last ones.
pub const FAMILIES: [&str; 7] = ["mamba", "falcon_mamba", "mamba2", "bamba", "granitemoehybrid", "qwen3_5_text", "olmo_hybrid"];

/// A small model of each family.
pub fn models() -> impl Iterator<Item = (&'static str, Model)> {
    FAMILIES.into_iter().map(|family| (family, Folder::of(family).model()))
}
