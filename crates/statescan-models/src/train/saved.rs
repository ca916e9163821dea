//! A trainer on disk: `training.safetensors`, all that it needs to go on, and the model as others read it.

use super::corpus::Corpus;
use super::{Options, Trainer, VOCAB};
use crate::config::Config;
use crate::device::Downloaded;
use crate::error::{Error, Result};
use crate::files::{make_folder, read, write_aside};
use crate::tensors::{Array, Tensors, check_tensor, from_file, to_bytes};
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
        make_folder(folder)?;
        let losses = Array { shape: vec![self.losses.len()], data: self.losses.clone() };
        let losses = Tensors::from([("losses".to_owned(), losses)]);
        let there = self.on_device.as_ref().map(|(_, training)| training.download()).transpose()?;
        let [weights, first, second] = match &there {
            None => [&self.weights, &self.moments.first, &self.moments.second],
            Some(Downloaded { weights, first, second }) => [weights, first, second],
        };
        let groups = [("weights.", weights), ("first.", first), ("second.", second), ("", &losses)];
        let about = json!({
            "options": self.options.to_json(),
            "config": self.config.to_json()?,
            "text": self.corpus.mark(),
            "steps": self.losses.len(),
            "evaluations": self.evaluations,
        });
        let metadata = HashMap::from([("training".to_owned(), about.to_string())]);
        write_aside(&folder.join(FILE), &to_bytes(&groups, DType::F32, Some(metadata))?)?;
        let model = to_bytes(&[("", weights)], self.options.dtype, None)?;
        write_aside(&folder.join("model.safetensors"), &model)?;
        self.config.save(folder)
    }

    /// Goes on from a folder that [`Trainer::save`] wrote, with the same text.
    ///
    /// # Errors
    /// If there is no such folder, or the text is another; a file that does not have what it says.
    pub fn resume(folder: impl AsRef<Path>, text: &[u8]) -> Result<Self> {
        Self::go_on(folder.as_ref(), Corpus::Bytes(text.to_vec()))
    }

    /// The same for a training over tokens.
    ///
    /// # Errors
    /// As [`Trainer::resume`].
    pub fn resume_tokens(folder: impl AsRef<Path>, tokens: Vec<u32>) -> Result<Self> {
        Self::go_on(folder.as_ref(), Corpus::Tokens(tokens))
    }

    fn go_on(folder: &Path, corpus: Corpus) -> Result<Self> {
        let path = folder.join(FILE);
        let bytes = read(&path)?;
        let format = |why: String| Error::Format { path: path.clone(), expected: "a saved training", why };
        let file = SafeTensors::deserialize(&bytes).map_err(|error| format(error.to_string()))?;
        let About { options, config, text, steps, evaluations } = About::read(&path, &bytes)?;
        let corpus = corpus.of(config.vocab);
        if text != corpus.mark() {
            return Err(format("it was trained on another text".into()));
        }
        // nothing is made of sizes that the file does not have
        if config.layers.len() > file.len() {
            return Err(Error::Missing { path, tensor: format!("weights.{}", config.norm(config.layers.len() - 1)) });
        }
        for (name, shape) in config.tensors() {
            check_tensor(&file, &path, &format!("weights.{name}"), &shape)?;
        }
        let mut trainer = Trainer::begin(options, config, corpus, None)?;
        let losses = Array { shape: vec![steps], data: Vec::new() };
        let like = Tensors::from([("losses".to_owned(), losses)]);
        trainer.losses = from_file(&file, &path, "", &like)?.remove("losses").map(|array| array.data).unwrap_or_default();
        trainer.weights = from_file(&file, &path, "weights.", &trainer.gradients)?;
        trainer.moments.first = from_file(&file, &path, "first.", &trainer.gradients)?;
        trainer.moments.second = from_file(&file, &path, "second.", &trainer.gradients)?;
        trainer.evaluations = evaluations;
        Ok(trainer)
    }
}

/// What a saved training says of itself.
struct About {
    options: Options,
    config: Config,
    text: String,
    steps: usize,
    evaluations: Vec<(usize, f32)>,
}

impl About {
    fn read(path: &Path, bytes: &[u8]) -> Result<Self> {
        let format = |why: String| Error::Format { path: path.to_owned(), expected: "a saved training", why };
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| format(error.to_string()))?;
        let about = header.metadata().as_ref().and_then(|map| map.get("training"));
        let about: Value = about.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let options = Options::from_json(&about["options"]).ok_or_else(|| format("it does not say its options".into()))?;
        options.check()?;
        let steps = about["steps"].as_u64().and_then(|steps| usize::try_from(steps).ok());
        let config = match &about["config"] {
            // those of earlier versions are of one kind
            Value::Null => Config::mamba(VOCAB, options.dim, options.layers),
            config => Config::parse(path, &config.to_string(), None)?,
        };
        let points = about["evaluations"].as_array().map_or(&[][..], |list| &list[..]);
        let point = |point: &Value| Some((usize::try_from(point[0].as_u64()?).ok()?, point[1].as_f64()? as f32));
        Ok(About {
            options,
            config,
            text: about["text"].as_str().unwrap_or_default().to_owned(),
            steps: steps.ok_or_else(|| format("it does not say its steps".into()))?,
            evaluations: points.iter().filter_map(point).collect(),
        })
    }
}
