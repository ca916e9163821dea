//! A trainer on disk: `training.safetensors`, all that it needs to go on, and the model as others read it.

use super::{Options, Trainer};
use crate::device::Downloaded;
use crate::error::{Error, Result};
use crate::files::write_aside;
use crate::tensors::{Array, Tensors, from_file, to_bytes};
use crate::weight::TYPES;
use safetensors::SafeTensors;
use serde_json::{Value, json};
use statescan::DType;
use std::collections::HashMap;
use std::path::Path;

const FILE: &str = "training.safetensors";

impl Trainer {
    /// Writes a folder: the model (`config.json`, `model.safetensors`) and `training.safetensors`. Each file is written aside and renamed, so
    /// that a process that is killed at any moment leaves a folder to resume from, if there was one before.
    ///
    /// # Errors
    /// If the folder or a file cannot be written.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        let folder = folder.as_ref();
        std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
        let losses = Array { shape: vec![self.losses.len()], data: self.losses.clone() };
        let losses = Tensors::from([("losses".to_owned(), losses)]);
        let there = self.on_device.as_ref().map(|(_, training)| training.download()).transpose()?;
        let [weights, first, second] = match &there {
            None => [&self.weights, &self.moments.first, &self.moments.second],
            Some(Downloaded { weights, first, second }) => [weights, first, second],
        };
        let groups = [("weights.", weights), ("first.", first), ("second.", second), ("", &losses)];
        let about = json!({"options": self.options.to_json(), "text": self.text_mark(), "steps": self.losses.len()});
        let metadata = HashMap::from([("training".to_owned(), about.to_string())]);
        write_aside(&folder.join(FILE), &to_bytes(&groups, DType::F32, Some(metadata))?)?;
        let model = to_bytes(&[("", weights)], self.options.dtype, None)?;
        write_aside(&folder.join("model.safetensors"), &model)?;
        write_aside(&folder.join("config.json"), format!("{:#}\n", self.config.to_json()).as_bytes())
    }

    /// Goes on from a folder that [`Trainer::save`] wrote, with the same text.
    ///
    /// # Errors
    /// If there is no such folder, or the text is another.
    pub fn resume(folder: impl AsRef<Path>, text: &[u8]) -> Result<Self> {
        let path = folder.as_ref().join(FILE);
        let bytes = std::fs::read(&path).map_err(Error::io(&path))?;
        let format = |why: String| Error::Format { path: path.clone(), expected: "a saved training", why };
        let file = SafeTensors::deserialize(&bytes).map_err(|error| format(error.to_string()))?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| format(error.to_string()))?;
        let about = header.metadata().as_ref().and_then(|map| map.get("training"));
        let about: Value = about.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let options = Options::from_json(&about["options"]).ok_or_else(|| format("it does not say its options".into()))?;
        let steps = about["steps"].as_u64().ok_or_else(|| format("it does not say its steps".into()))?;
        let mut trainer = Trainer::new(options, text)?;
        if about["text"] != trainer.text_mark() {
            return Err(format("it was trained on another text".into()));
        }
        let losses = Array { shape: vec![steps as usize], data: Vec::new() };
        let like = Tensors::from([("losses".to_owned(), losses)]);
        trainer.losses = from_file(&file, &path, "", &like)?.remove("losses").map(|array| array.data).unwrap_or_default();
        trainer.weights = from_file(&file, &path, "weights.", &trainer.gradients)?;
        trainer.moments.first = from_file(&file, &path, "first.", &trainer.gradients)?;
        trainer.moments.second = from_file(&file, &path, "second.", &trainer.gradients)?;
        Ok(trainer)
    }

    /// What tells one text from another: its length, and a sum of its bytes that depends on their order (FNV-1a).
    fn text_mark(&self) -> String {
        let all = self.text.iter().chain(&self.held_out);
        let sum = all.fold(0xcbf2_9ce4_8422_2325u64, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        format!("{} bytes, {sum:016x}", self.text.len() + self.held_out.len())
    }
}

impl Options {
    fn to_json(&self) -> Value {
        let Options { dim, layers, batch, seqlen, steps, rate, weight_decay, dropout, clip, seed, dtype } = *self;
        json!({"dim": dim, "layers": layers, "batch": batch, "seqlen": seqlen, "steps": steps, "rate": rate,
            "weight_decay": weight_decay, "dropout": dropout, "clip": clip, "seed": seed, "dtype": dtype.to_string()})
    }

    fn from_json(json: &Value) -> Option<Self> {
        let size = |key: &str| json[key].as_u64().map(|size| size as usize);
        Some(Options {
            dim: size("dim")?,
            layers: size("layers")?,
            batch: size("batch")?,
            seqlen: size("seqlen")?,
            steps: size("steps")?,
            rate: json["rate"].as_f64()?,
            weight_decay: json["weight_decay"].as_f64()?,
            dropout: json["dropout"].as_f64()?,
            clip: json["clip"].as_f64()?,
            seed: json["seed"].as_u64()?,
            dtype: TYPES.into_iter().find(|(dtype, _)| json["dtype"] == dtype.to_string()).map(|(dtype, _)| dtype)?,
        })
    }
}
