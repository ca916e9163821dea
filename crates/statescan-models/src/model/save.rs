//! Models written as folders.

use super::Model;
use crate::checkpoint::{INDEX, WEIGHTS};
use crate::config::{self, Config, HEAD, Package};
use crate::error::{Error, Result};
use crate::files::{make_folder, read, remove, write_aside, write_aside_with};
use crate::weight::{Weight, file_dtype};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::{Map, Value, json};
use statescan::DType;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{BufWriter, Write};
use std::path::Path;

/// How a model is written.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SaveOptions {
    /// The type of all weights, f32, bf16 or f16; none leaves each its own.
    pub dtype: Option<DType>,
    /// The package whose names and settings are written; none leaves those that were read.
    pub package: Option<Package>,
    /// Whether the head is the embedding, and stored once; none leaves it as it is.
    pub tied: Option<bool>,
    /// The most bytes of a file; larger models become several files and an index.
    pub shard_bytes: u64,
}

impl Default for SaveOptions {
    fn default() -> Self {
        SaveOptions { dtype: None, package: None, tied: None, shard_bytes: 5_000_000_000 }
    }
}

impl Model {
    /// Writes `config.json` and `model.safetensors`, or several files with an index, with the names and types that the model was read with. Each file is
    /// written aside and renamed; weights of another model in the folder are replaced.
    ///
    /// # Errors
    /// If the folder or a file cannot be written.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        self.save_with(folder, &SaveOptions::default())
    }

    /// Saves the model in another form.
    ///
    /// # Errors
    /// As [`Model::save`]; settings that a package does not have, a type that is none of weights or in which a weight is infinite, a head to be tied that is
    /// not the embedding.
    pub fn save_with(&self, folder: impl AsRef<Path>, options: &SaveOptions) -> Result<()> {
        let folder = folder.as_ref();
        let mut config = self.config.clone();
        config.package = options.package.unwrap_or(config.package);
        config.tied = options.tied.unwrap_or(config.tied);
        let known = if config.package == self.config.package { self.settings.clone() } else { Map::new() };
        let settings = settings(known, &config, options.dtype)?;
        let weights = self.weights_as(&config, options.dtype, folder)?;
        make_folder(folder)?;
        write_weights(folder, &weights, options.shard_bytes)?;
        config::save_json(folder, settings)
    }

    /// The weights by the names that a configuration gives them, each of which is finite in its type.
    fn weights_as(&self, config: &Config, dtype: Option<DType>, folder: &Path) -> Result<BTreeMap<String, Stored<'_>>> {
        let own = self.config.embedding();
        let mut weights = BTreeMap::new();
        for (name, weight) in &self.weights {
            let name = if name == own { config.embedding() } else { name };
            weights.insert(name.to_owned(), weight);
        }
        if config.tied && !self.config.tied {
            if self.head.bytes() != self.embedding.bytes() {
                return Err(Error::Untied { path: folder.to_owned() });
            }
            weights.remove(HEAD);
        }
        if !config.tied {
            weights.insert(HEAD.to_owned(), &self.head);
        }
        let mut all = BTreeMap::new();
        for (name, weight) in weights {
            let stored = Stored::new(weight, dtype.unwrap_or(weight.dtype()))?;
            stored.check(folder, &name)?;
            all.insert(name, stored);
        }
        Ok(all)
    }
}

/// The settings of a configuration, and those that are known beside it, which mean nothing here; a type that is asked for is named where one was.
pub(crate) fn settings(known: Map<String, Value>, config: &Config, dtype: Option<DType>) -> Result<Map<String, Value>> {
    let mut settings = known;
    merge(&mut settings, config.to_json()?);
    let name = match dtype {
        Some(DType::BF16) => "bfloat16",
        Some(DType::F16) => "float16",
        _ => "float32",
    };
    for key in ["dtype", "torch_dtype"] {
        if dtype.is_some() && settings.contains_key(key) {
            settings.insert(key.to_owned(), json!(name));
        }
    }
    Ok(settings)
}

/// Puts settings over others, in objects within objects too.
fn merge(settings: &mut Map<String, Value>, over: Map<String, Value>) {
    for (key, value) in over {
        match (settings.get_mut(&key), value) {
            (Some(Value::Object(settings)), Value::Object(over)) => merge(settings, over),
            (_, value) => _ = settings.insert(key, value),
        }
    }
}

/// A weight as it is written: in its own type, or rounded when it is written.
struct Stored<'w> {
    weight: &'w Weight,
    dtype: DType,
    file_dtype: Dtype,
}

impl<'w> Stored<'w> {
    fn new(weight: &'w Weight, dtype: DType) -> Result<Self> {
        let (op, argument, expected) = ("Model::save_with", "type of weights", "f32, bf16 or f16");
        let file_dtype = file_dtype(dtype).ok_or(statescan::Error::DType { op, argument, expected, got: dtype })?;
        Ok(Stored { weight, dtype, file_dtype })
    }

    fn rounded(&self) -> statescan::Result<Weight> {
        Weight::rounded(&self.weight.to_f32(), self.dtype, self.weight.shape())
    }

    /// Number of bytes.
    fn size(&self) -> usize {
        self.weight.len() * self.dtype.size()
    }

    fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        if self.dtype == self.weight.dtype() {
            return out.write_all(self.weight.bytes());
        }
        out.write_all(self.rounded().map_err(std::io::Error::other)?.bytes())
    }

    /// Refuses numbers that the type does not have. Only f16 has fewer of them than the types of weights.
    fn check(&self, folder: &Path, name: &str) -> Result<()> {
        if self.dtype != DType::F16 || self.weight.dtype() == DType::F16 {
            return Ok(());
        }
        match self.rounded()?.first_not_finite() {
            None => Ok(()),
            Some((position, _)) => {
                let got = f64::from(self.weight.to_f32()[position]);
                Err(Error::Range { path: folder.to_owned(), tensor: name.to_owned(), dtype: self.dtype, got, position })
            }
        }
    }
}

/// Writes the files of weights, and removes those of other weights.
fn write_weights(folder: &Path, weights: &BTreeMap<String, Stored<'_>>, most: u64) -> Result<()> {
    let before = files_of_weights(folder);
    let shards = shards(weights, most);
    let (mut map, mut written) = (Map::new(), Vec::new());
    for (i, shard) in shards.iter().enumerate() {
        let file = match shards.len() {
            1 => WEIGHTS.to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
        };
        write_shard(&folder.join(&file), shard)?;
        map.extend(shard.iter().map(|(name, _)| ((*name).to_owned(), json!(file))));
        written.push(file);
    }
    if shards.len() > 1 {
        let size: usize = weights.values().map(|stored| stored.size()).sum();
        let text = json!({"metadata": {"total_size": size}, "weight_map": map});
        write_aside(&folder.join(INDEX), format!("{text:#}\n").as_bytes())?;
        written.push(INDEX.to_owned());
    }
    before.iter().filter(|name| !written.contains(name)).try_for_each(|name| remove(&folder.join(name)))
}

/// The safetensors files that a folder has of a model: one, or an index, what it lists, and all that are named like a part of a model.
pub(crate) fn files_of_weights(folder: &Path) -> BTreeSet<String> {
    let mut files = BTreeSet::from([WEIGHTS, INDEX].map(str::to_owned));
    let listed = read(&folder.join(INDEX)).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    let listed = listed.as_ref().and_then(|index| index["weight_map"].as_object()).into_iter().flat_map(Map::values);
    let inside = |name: &&str| Path::new(name).file_name().is_some_and(|file| file == *name);
    files
        .extend(listed.filter_map(Value::as_str).filter(inside).filter(|name| name.ends_with(".safetensors")).map(str::to_owned));
    let names =
        std::fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    files.extend(names.filter(|name| is_part(name, "model-", ".safetensors")));
    files
}

/// Whether a name is that of one of several files: `model-00001-of-00002.safetensors`.
fn is_part(name: &str, begin: &str, end: &str) -> bool {
    let numbers = name.strip_prefix(begin).and_then(|rest| rest.strip_suffix(end)).and_then(|rest| rest.split_once("-of-"));
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers.is_some_and(|(first, second)| number(first) && number(second))
}

type Shard<'s, 'w> = Vec<(&'s str, &'s Stored<'w>)>;

/// Weights in the order of names, as many in a file as it may have; a larger one is alone.
fn shards<'s, 'w>(weights: &'s BTreeMap<String, Stored<'w>>, most: u64) -> Vec<Shard<'s, 'w>> {
    let (mut shards, mut size) = (vec![Vec::new()], 0);
    for (name, stored) in weights {
        let more = stored.size() as u64;
        if size > 0 && size + more > most {
            shards.push(Vec::new());
            size = 0;
        }
        size += more;
        shards.last_mut().expect("there is one").push((&name[..], stored));
    }
    shards
}

/// Writes a file tensor by tensor, those of wider types first, so that each is aligned.
fn write_shard(path: &Path, shard: &Shard<'_, '_>) -> Result<()> {
    let mut tensors = shard.clone();
    tensors.sort_by_key(|(_, stored)| std::cmp::Reverse(stored.dtype.size()));
    let mut end = 0;
    let info = |(name, stored): &(&str, &Stored<'_>)| {
        let (start, shape) = (end, stored.weight.shape().to_vec());
        end += stored.size();
        ((*name).to_owned(), TensorInfo { dtype: stored.file_dtype, shape, data_offsets: (start, end) })
    };
    let infos: Vec<_> = tensors.iter().map(info).collect();
    let format = |error: String| Error::Format { path: path.to_owned(), expected: "what safetensors can hold", why: error };
    let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(about), infos).map_err(|error| format(error.to_string()))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|error| format(error.to_string()))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    write_aside_with(path, |file| {
        let mut out = BufWriter::new(file);
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        for (_, stored) in &tensors {
            stored.write(&mut out)?;
        }
        out.flush()
    })
}
