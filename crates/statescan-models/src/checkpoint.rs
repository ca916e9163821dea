//! [`Checkpoint`]: the weights of a folder, by name. Files are read, or mapped into memory where nobody may write them, or where they are large.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::files::{is_there, open, read, read_text, why_not};
use crate::initial::initial;
use crate::memory::left;
use crate::random::Random;
use crate::tensors::{Array, Tensors};
use crate::weight::{Bytes, TYPES, Weight, file_dtype};
use memmap2::Mmap;
use safetensors::SafeTensors;
use statescan::DType;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

pub(crate) const WEIGHTS: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// The file of a folder's weights, or the index of several: what is looked for, one after the other.
const FILES: [(&str, &str); 2] = [(WEIGHTS, INDEX), ("pytorch_model.bin", "pytorch_model.bin.index.json")];

/// The tensors of a folder that nobody has taken yet.
pub(crate) struct Checkpoint {
    folder: PathBuf,
    /// The files that tensors are from, and the index of several.
    pub(crate) files: Vec<PathBuf>,
    tensors: BTreeMap<String, Entry>,
    taken: BTreeMap<String, Weight>,
}

struct Entry {
    path: Arc<Path>,
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
    place: Place,
}

/// The place of a tensor's elements.
enum Place {
    File(Bytes, Range<usize>),
    Memory(Weight),
}

impl Checkpoint {
    fn empty(folder: &Path) -> Self {
        Checkpoint { folder: folder.to_owned(), files: Vec::new(), tensors: BTreeMap::new(), taken: BTreeMap::new() }
    }

    /// The weights of a folder: `model.safetensors`, or the files that `model.safetensors.index.json` lists, or pickled ones.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let mut checkpoint = Checkpoint::empty(folder);
        for [whole, index] in FILES.map(|(whole, index)| [folder.join(whole), folder.join(index)]) {
            if is_there(&whole) {
                checkpoint.add(&whole)?;
                return Ok(checkpoint);
            }
            if is_there(&index) {
                checkpoint.add_indexed(&index)?;
                return Ok(checkpoint);
            }
        }
        Err(Error::NoWeights { path: folder.to_owned() })
    }

    /// Weights that the process has.
    pub(crate) fn of(tensors: &Tensors) -> Result<Self> {
        let weight = |(name, array): (&String, &Array)| Ok((name.clone(), Weight::from_slice(&array.data, &array.shape)?));
        Self::of_weights(tensors.iter().map(weight))
    }

    /// Random weights of these names and shapes, as a model begins with.
    pub(crate) fn random(
        config: &Config,
        tensors: impl IntoIterator<Item = (String, Vec<usize>)>,
        dtype: DType,
        seed: u64,
    ) -> Result<Self> {
        let mut random = Random::new(seed);
        let weight = |(name, shape): (String, Vec<usize>)| {
            let weight = Weight::rounded(&initial(config, &name, &shape, &mut random), dtype, &shape)?;
            Ok((name, weight))
        };
        Self::of_weights(tensors.into_iter().map(weight))
    }

    fn of_weights(weights: impl Iterator<Item = Result<(String, Weight)>>) -> Result<Self> {
        let path: Arc<Path> = Path::new("memory").into();
        let mut checkpoint = Checkpoint::empty(&path);
        for weight in weights {
            let (name, weight) = weight?;
            let dtype = file_dtype(weight.dtype()).unwrap_or(safetensors::Dtype::F32);
            let (path, shape) = (path.clone(), weight.shape().to_vec());
            checkpoint.tensors.insert(name, Entry { path, dtype, shape, place: Place::Memory(weight) });
        }
        Ok(checkpoint)
    }

    /// The tensors of a file that the process has in memory, which errors call `path`.
    pub(crate) fn of_bytes(path: &Path, bytes: Bytes) -> Result<Self> {
        let mut checkpoint = Checkpoint::empty(path);
        checkpoint.add_bytes(path, bytes)?;
        Ok(checkpoint)
    }

    /// The tensors of one file.
    fn add(&mut self, path: &Path) -> Result<()> {
        self.files.push(path.to_owned());
        let file = open(path)?;
        if path.extension().is_some_and(|extension| extension == "bin") {
            return self.add_pickled(path);
        }
        let about = file.metadata().map_err(Error::io(path))?;
        if !about.permissions().readonly() && left().is_none_or(|left| about.len() <= left / 2) {
            return self.add_bytes(path, Arc::new(read(path)?));
        }
        // SAFETY: the file is read as plain bytes. Whoever changes it while it is mapped changes the weights, and whoever shortens it ends
        // the process, as for every program that maps files: only what nobody may write is mapped, and what is too large to be read.
        let file = unsafe { Mmap::map(&file) }.map_err(Error::io(path))?;
        self.add_bytes(path, Arc::new(file))
    }

    /// The tensors of the bytes of a file.
    fn add_bytes(&mut self, path: &Path, file: Bytes) -> Result<()> {
        let all = (*file).as_ref();
        let bad = |error: safetensors::SafeTensorError| {
            let why = why_not(&error, all);
            Error::Format { path: path.to_owned(), expected: "a whole safetensors file", why }
        };
        let path: Arc<Path> = path.into();
        for (name, view) in SafeTensors::deserialize(all).map_err(bad)?.iter() {
            let start = view.data().as_ptr().addr() - all.as_ptr().addr();
            let bytes = start..start + view.data().len();
            let (path, place, shape) = (path.clone(), Place::File(file.clone(), bytes), view.shape().to_vec());
            self.tensors.insert(name.to_owned(), Entry { path, dtype: view.dtype(), shape, place });
        }
        Ok(())
    }

    /// A tensor whose bytes the process has, and the file that they are from.
    #[cfg(feature = "pytorch")]
    pub(crate) fn insert(&mut self, name: &str, path: &Path, (dtype, shape): (safetensors::Dtype, &[usize]), bytes: Vec<u8>) {
        let all = 0..bytes.len();
        let place = Place::File(Arc::new(bytes), all);
        self.tensors.insert(name.to_owned(), Entry { path: path.into(), dtype, shape: shape.to_vec(), place });
    }

    /// The tensors of the files that an index lists, each of which must be where the index says.
    fn add_indexed(&mut self, index: &Path) -> Result<()> {
        self.files.push(index.to_owned());
        let format = |why: String| Error::Format { path: index.to_owned(), expected: "an index of files of weights", why };
        let text = read_text(index)?;
        let json: serde_json::Value = serde_json::from_str(&text).map_err(|error| format(error.to_string()))?;
        let map = json.get("weight_map").and_then(|map| map.as_object());
        let mut files = BTreeMap::<&str, Vec<&str>>::new();
        for (tensor, file) in map.ok_or_else(|| format("it has no `weight_map`".into()))? {
            let file = file.as_str().ok_or_else(|| format(format!("the file of `{tensor}` is no text")))?;
            files.entry(file).or_default().push(tensor);
        }
        for (file, tensors) in files {
            let mut parts = Path::new(file).components();
            if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
                return Err(format(format!("`{file}` is not the name of a file in its folder")));
            }
            let path = self.folder.join(file);
            self.add(&path)?;
            let is_there = |tensor: &str| self.tensors.get(tensor).is_some_and(|entry| *entry.path == *path);
            if let Some(tensor) = tensors.into_iter().find(|tensor| !is_there(tensor)) {
                return Err(Error::Missing { path, tensor: tensor.to_owned() });
            }
        }
        Ok(())
    }

    /// Whether there is such a tensor.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Channels of the scan, by the shape of its skips.
    pub(crate) fn channels(&self) -> Option<usize> {
        self.tensors.get("backbone.layers.0.mixer.D")?.shape.first().copied()
    }

    /// Puts tensors (rows, ..) of one shape but for rows together, if they are there, as one of another name: of their type, or where they have several of f32,
    /// which has the numbers of each.
    pub(crate) fn join(&mut self, parts: &[String], row: &[usize], to: &str) -> Result<()> {
        if !parts.iter().any(|part| self.has(part)) {
            return Ok(());
        }
        if let [one] = parts {
            self.rename(one, to);
            return Ok(());
        }
        let (path, mut all, mut rows) = (self.path(&parts[0]), Vec::new(), 0);
        for part in parts {
            let own = self.tensors.get(part).and_then(|entry| entry.shape.first().copied()).unwrap_or(1);
            all.push(self.take(part, &[&[own], row].concat())?);
            self.forget(part);
            rows += own;
        }
        let same = all.iter().all(|part| part.dtype() == all[0].dtype());
        let (shape, dtype) = ([&[rows], row].concat(), if same { all[0].dtype() } else { DType::F32 });
        let numbers: Vec<f32> = all.iter().flat_map(Weight::to_f32).collect();
        let place = Place::Memory(Weight::rounded(&numbers, dtype, &shape)?);
        let dtype = file_dtype(dtype).unwrap_or(safetensors::Dtype::F32);
        self.tensors.insert(to.to_owned(), Entry { path: path.into(), dtype, shape, place });
        Ok(())
    }

    /// Gives a tensor another name.
    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        if let Some(entry) = self.tensors.remove(from) {
            self.tensors.insert(to.to_owned(), entry);
        }
    }

    /// Gives the tensors whose names have a prefix another one.
    pub(crate) fn rename_all(&mut self, prefix: &str, to: &str) {
        let old = std::mem::take(&mut self.tensors);
        let name = |name: String| name.strip_prefix(prefix).map(|rest| format!("{to}{rest}")).unwrap_or(name);
        self.tensors = old.into_iter().map(|(old, entry)| (name(old), entry)).collect();
    }

    /// Leaves out the tensors whose names have one of some prefixes.
    pub(crate) fn leave_out(&mut self, prefixes: &[&str]) {
        self.tensors.retain(|name, _| !prefixes.iter().any(|prefix| name.starts_with(prefix)));
    }

    /// Leaves a tensor that was taken out of the model's weights.
    pub(crate) fn forget(&mut self, name: &str) {
        self.taken.remove(name);
    }

    /// Returns the file of a tensor.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.tensors.get(name).map_or(self.folder.clone(), |entry| entry.path.to_path_buf())
    }

    /// A tensor of this shape, all of whose elements are finite.
    pub(crate) fn take(&mut self, name: &str, shape: &[usize]) -> Result<Weight> {
        let tensor = name.to_owned();
        let Some(entry) = self.tensors.remove(name) else {
            return Err(Error::Missing { path: self.folder.clone(), tensor });
        };
        let path = entry.path.to_path_buf();
        if entry.shape != shape {
            return Err(Error::Shape { path, tensor, expected: shape.to_vec(), got: entry.shape });
        }
        let Some((dtype, _)) = TYPES.into_iter().find(|(_, file)| *file == entry.dtype) else {
            return Err(Error::DType { path, tensor, got: format!("{:?}", entry.dtype).to_lowercase() });
        };
        let weight = match entry.place {
            Place::File(file, bytes) => Weight::of_file(&file, bytes, dtype, shape)?,
            Place::Memory(weight) => weight,
        };
        if let Some((position, got)) = weight.first_not_finite() {
            return Err(Error::NotFinite { path, tensor, got, position });
        }
        self.taken.insert(tensor, weight.clone());
        Ok(weight)
    }

    /// All tensors; refuses those that nobody took.
    pub(crate) fn finish(self, model: &'static str) -> Result<BTreeMap<String, Weight>> {
        match self.tensors.into_iter().next() {
            None => Ok(self.taken),
            Some((tensor, entry)) => Err(Error::Surplus { path: entry.path.to_path_buf(), tensor, model }),
        }
    }
}
