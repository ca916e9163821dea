//! A trainer on disk: `training.safetensors`, all that it needs to go on, and the model as others read it.

use super::corpus::Corpus;
use super::{Options, Trainer, VOCAB};
use crate::checkpoint::WEIGHTS;
use crate::config::{Config, save_json};
use crate::device::Downloaded;
use crate::error::{Error, Result};
use crate::files::{make_folder, read, remove, write_aside};
use crate::model::save::{files_of_weights, settings};
use crate::tensors::{Array, Tensors, check_tensor, from_file, to_bytes};
use safetensors::SafeTensors;
use serde_json::{Map, Value, json};
use statescan::DType;
use std::collections::HashMap;
use std::path::Path;

const FILE: &str = "training.safetensors";

impl Trainer {
    /// Writes a folder: the model (`config.json`, `model.safetensors`) and `training.safetensors`. Each file is written aside and renamed, and the last one
    /// is that of the training, so that a process that is killed at any moment leaves a folder to resume from, if there was one before.
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
        let none = Tensors::new();
        let base = self.adapted.as_ref().map_or(&none, |adapted| &adapted.base);
        let groups = [("weights.", weights), ("first.", first), ("second.", second), ("base.", base), ("", &losses)];
        let settings = settings(self.settings.clone(), &self.config, Some(self.options.dtype))?;
        let about = json!({
            "options": self.options.to_json(),
            "config": settings,
            "text": self.corpus.mark(),
            "steps": self.losses.len(),
            "evaluations": self.evaluations,
            "best": self.best,
        });
        let metadata = HashMap::from([("training".to_owned(), about.to_string())]);
        match &self.adapted {
            None => self.write_model(folder, weights, settings)?,
            Some(adapted) => self.write_model(folder, &adapted.merged(weights)?, settings)?,
        }
        write_aside(&folder.join(FILE), &to_bytes(&groups, DType::F32, Some(metadata))?)
    }

    /// Writes the model alone as it is now, `config.json` and `model.safetensors`.
    ///
    /// # Errors
    /// If the folder or a file cannot be written.
    pub fn save_model(&self, folder: impl AsRef<Path>) -> Result<()> {
        make_folder(folder.as_ref())?;
        let settings = settings(self.settings.clone(), &self.config, Some(self.options.dtype))?;
        self.write_model(folder.as_ref(), &*self.merged()?, settings)
    }

    fn write_model(&self, folder: &Path, weights: &Tensors, settings: Map<String, Value>) -> Result<()> {
        let (before, model) = (files_of_weights(folder), to_bytes(&[("", weights)], self.options.dtype, None)?);
        write_aside(&folder.join(WEIGHTS), &model)?;
        before.iter().filter(|name| *name != WEIGHTS).try_for_each(|name| remove(&folder.join(name)))?;
        save_json(folder, settings)
    }

    /// Goes on from a folder that [`Trainer::save`] wrote, with the same text.
    ///
    /// # Errors
    /// If there is no such folder, or the text is another; a file that does not have what it says.
    pub fn resume(folder: impl AsRef<Path>, corpus: impl Into<Corpus>) -> Result<Self> {
        let (folder, corpus) = (folder.as_ref(), corpus.into());
        let path = folder.join(FILE);
        let bytes = read(&path)?;
        let format = |why: String| Error::Format { path: path.clone(), expected: "a saved training", why };
        let file = SafeTensors::deserialize(&bytes).map_err(|error| format(error.to_string()))?;
        let About { options, config, settings, text, steps, evaluations, best } = About::read(&path, &bytes)?;
        let corpus = corpus.of(config.vocab);
        if text != corpus.mark() {
            return Err(format("it was trained on another text".into()));
        }
        // nothing is made of sizes that the file does not have
        if config.layers.len() > file.len() {
            return Err(Error::Missing { path, tensor: format!("weights.{}", config.norm(config.layers.len() - 1)) });
        }
        let model = if options.lora.is_some() { "base." } else { "weights." };
        for (name, shape) in config.tensors() {
            check_tensor(&file, &path, &format!("{model}{name}"), &shape)?;
        }
        let mut trainer = Trainer::begin(options, config, corpus, None)?;
        let losses = Array { shape: vec![steps], data: Vec::new() };
        let like = Tensors::from([("losses".to_owned(), losses)]);
        trainer.losses = from_file(&file, &path, "", &like)?.remove("losses").map(|array| array.data).unwrap_or_default();
        let [weights, first, second] =
            ["weights.", "first.", "second."].map(|prefix| from_file(&file, &path, prefix, &trainer.weights));
        (trainer.weights, trainer.moments.first, trainer.moments.second) = (weights?, first?, second?);
        if let Some(adapted) = &mut trainer.adapted {
            adapted.base = from_file(&file, &path, "base.", &trainer.gradients)?;
        }
        (trainer.evaluations, trainer.best, trainer.settings) = (evaluations, best, settings);
        Ok(trainer)
    }
}

/// The description that a saved training has of itself.
struct About {
    options: Options,
    config: Config,
    settings: Map<String, Value>,
    text: String,
    steps: usize,
    evaluations: Vec<(usize, f32)>,
    best: Option<(usize, f32)>,
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
            // models of earlier versions are of one kind
            Value::Null => Config::mamba(VOCAB, options.dim, options.layers),
            config => Config::parse(path, &config.to_string(), None)?,
        };
        let points = about["evaluations"].as_array().map_or(&[][..], |list| &list[..]);
        let point = |point: &Value| Some((usize::try_from(point[0].as_u64()?).ok()?, point[1].as_f64()? as f32));
        Ok(About {
            options,
            config,
            settings: about["config"].as_object().cloned().unwrap_or_default(),
            text: about["text"].as_str().unwrap_or_default().to_owned(),
            steps: steps.ok_or_else(|| format("it does not say its steps".into()))?,
            evaluations: points.iter().filter_map(point).collect(),
            best: point(&about["best"]),
        })
    }
}
