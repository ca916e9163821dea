//! [`State`]: all that a model remembers of the tokens it has read, as a value.

use crate::config::{Config, Family};
use crate::error::{Error, Result};
use crate::files::{self, why_not, write_aside};
use crate::weight::first_not_finite;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use statescan::{View, ViewMut};
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

const POSITION: &str = "position";
const KIND: &str = "model_type";
const LOGITS: &str = "logits";

/// The memory of a model of the tokens it has read, of a size that does not depend on how many there were, but in layers of
/// attention, which keep something of each. It can be cloned, to go on in several ways from one prompt, saved, loaded and
/// dropped.
///
/// A state is what its tokens make it, bit by bit, however they were divided among calls.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    pub(crate) layers: Vec<LayerState>,
    pub(crate) position: u64,
    pub(crate) of: Of,
}

/// A state, and with it the logits after its last token, from which a text goes on without another one.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The model's state.
    pub state: State,
    /// The logits after the last token, (vocab), where they were saved.
    pub logits: Option<Vec<f32>>,
}

/// The model that a state is of: its kind, and the sizes that states or what is made of them depend on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Of {
    family: Family,
    sizes: [(&'static str, usize); 8],
}

impl Of {
    pub(crate) fn new(config: &Config) -> Self {
        let Config { family, vocab, dim, inner, dstate, width, nheads, ngroups, .. } = *config;
        let sizes = [
            ("vocab", vocab),
            ("dim", dim),
            ("layers", config.layers.len()),
            ("inner", inner),
            ("dstate", dstate),
            ("width", width),
            ("nheads", nheads),
            ("ngroups", ngroups),
        ];
        Of { family, sizes }
    }

    /// Settings as texts, as a file has them.
    fn texts(&self) -> impl Iterator<Item = (&'static str, String)> {
        let sizes = self.sizes.into_iter().map(|(key, size)| (key, size.to_string()));
        [(KIND, self.family.name().to_owned())].into_iter().chain(sizes)
    }

    /// Whether a state with these settings, as far as they are known, is one of this model.
    fn check(&self, what: &str, got: impl Fn(&'static str) -> Option<String>) -> Result<()> {
        for (key, expected) in self.texts() {
            if let Some(got) = got(key).filter(|got| *got != expected) {
                return Err(Error::OtherModel { what: what.to_owned(), key, expected, got });
            }
        }
        Ok(())
    }
}

/// A state of a kind of layers: its name, and its shape for one sequence.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StateShape {
    pub(crate) name: &'static str,
    pub(crate) shape: [usize; 2],
    /// Whether that is its shape for each token that was read.
    pub(crate) grows: bool,
}

impl StateShape {
    /// The shape after so many tokens.
    pub(crate) fn after(&self, tokens: usize) -> [usize; 2] {
        let [rows, columns] = self.shape;
        [if self.grows { rows.saturating_mul(tokens) } else { rows }, columns]
    }

    /// A part that does not grow as views, (1, rows, columns), of what is there before a pass and of what it leaves.
    pub(crate) fn ends<'e>(&self, before: &'e [f32], after: &'e mut [f32]) -> Result<(View<'e>, ViewMut<'e>)> {
        let [rows, columns] = self.shape;
        let (before, after) = (View::new(before, &[1, columns, rows])?, ViewMut::new(after, &[1, columns, rows])?);
        Ok((before.permute(&[0, 2, 1]), after.permute(&[0, 2, 1])))
    }
}

/// The state of one layer for one sequence: numbers by name, `conv` and `scan` in a layer that scans, `keys` and `values` of every token in one of attention.
/// Parts that do not grow have their rows, which are channels, side by side: passes on the CPU read them without transposing them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LayerState {
    parts: Vec<(&'static str, Vec<f32>)>,
}

impl LayerState {
    /// The state of a sequence before its first token.
    pub(crate) fn new(shapes: &[StateShape]) -> Self {
        let zeros = |shape: &StateShape| (shape.name, vec![0.0; shape.after(0).iter().product()]);
        LayerState { parts: shapes.iter().map(zeros).collect() }
    }

    /// The numbers of each part of a sequence after so many tokens, row by row.
    pub(crate) fn rows<'s>(&'s self, shapes: &'s [StateShape], tokens: usize) -> impl Iterator<Item = Cow<'s, [f32]>> {
        self.all().zip(shapes).map(move |(numbers, shape)| {
            // a pass that failed may have left more
            let numbers = &numbers[..numbers.len().min(shape.after(tokens).iter().product())];
            if shape.grows { Cow::Borrowed(numbers) } else { Cow::Owned(transposed(numbers, shape.shape[0])) }
        })
    }

    /// Sets a part of a sequence from its numbers row by row.
    pub(crate) fn set(&mut self, at: usize, shape: &StateShape, numbers: &[f32]) {
        self.parts[at].1 = if shape.grows { numbers.to_vec() } else { transposed(numbers, shape.shape[1]) };
    }

    /// A state with as many numbers, all zero.
    pub(crate) fn zeros_like(&self) -> Self {
        let zeros = |(name, numbers): &(&'static str, Vec<f32>)| (*name, vec![0.0; numbers.len()]);
        LayerState { parts: self.parts.iter().map(zeros).collect() }
    }

    /// Whether another one has as many numbers in each part.
    pub(crate) fn is_like(&self, other: &LayerState) -> bool {
        let lens = |state: &'_ LayerState| state.parts.iter().map(|(name, numbers)| (*name, numbers.len())).collect::<Vec<_>>();
        lens(self) == lens(other)
    }

    /// The numbers of all parts.
    pub(crate) fn all(&self) -> impl Iterator<Item = &[f32]> {
        self.parts.iter().map(|(_, numbers)| &numbers[..])
    }

    /// The numbers of all parts, to be written.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Vec<f32>> {
        self.parts.iter_mut().map(|(_, numbers)| numbers)
    }
}

impl State {
    /// The state before the first token.
    pub(crate) fn new(config: &Config) -> Self {
        let layers = config.layers.iter().map(|kind| LayerState::new(&kind.states(config))).collect();
        State { layers, position: 0, of: Of::new(config) }
    }

    /// Number of tokens that were read.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Number of bytes.
    pub fn size(&self) -> usize {
        self.layers.iter().flat_map(LayerState::all).map(size_of_val).sum()
    }

    /// Whether it is a state of a model with this configuration.
    pub(crate) fn check(&self, config: &Config) -> Result<()> {
        match Of::new(config) {
            of if of == self.of => Ok(()),
            of => of.check("this call", |key| self.of.texts().find(|(name, _)| *name == key).map(|(_, text)| text)),
        }
    }

    /// The first layer with a number that is NaN or infinite, and the number.
    pub(crate) fn first_not_finite(&self) -> Option<(usize, f32)> {
        let of_layer = |layer: &LayerState| layer.all().find_map(|part| first_not_finite(part).map(|at| part[at]));
        self.layers.iter().enumerate().find_map(|(i, layer)| Some((i, of_layer(layer)?)))
    }

    /// Refuses a state that no text leads to.
    pub(crate) fn check_finite(&self) -> Result<()> {
        match self.first_not_finite() {
            None => Ok(()),
            Some((layer, got)) => Err(Error::Overflow { part: format!("layer {layer}"), step: self.position, got }),
        }
    }

    /// Writes a safetensors file, `layers.{i}.{name}` in f32, and `logits` where they are given: aside first, so that a file of this name is always whole.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn save(&self, config: &Config, logits: Option<&[f32]>, path: &Path) -> Result<()> {
        self.check_finite()?;
        let mut parts = Vec::new();
        for (i, (layer, kind)) in self.layers.iter().zip(&config.layers).enumerate() {
            let shapes = kind.states(config);
            for (data, state) in layer.rows(&shapes, self.position as usize).zip(&shapes) {
                parts.push((format!("layers.{i}.{}", state.name), data.into_owned(), state.after(self.position as usize)));
            }
        }
        let mut tensors: Vec<_> = parts.iter().map(|(name, data, shape)| (name.clone(), view(data, shape))).collect();
        if let Some(logits) = logits {
            tensors.push((LOGITS.to_owned(), view(logits, &[config.vocab])));
        }
        let mut metadata: HashMap<_, _> = self.of.texts().map(|(key, text)| (key.to_owned(), text)).collect();
        metadata.insert(POSITION.to_owned(), self.position.to_string());
        let bytes = safetensors::serialize(tensors, Some(metadata)).expect("names and shapes that the format has");
        write_aside(path, &bytes)
    }

    /// Reads what [`State::save`] wrote.
    pub(crate) fn load(config: &Config, path: &Path) -> Result<Snapshot> {
        let bytes = files::read(path)?;
        let format = |why: String| Error::Format { path: path.to_owned(), expected: "a saved state", why };
        let file = SafeTensors::deserialize(&bytes).map_err(|error| format(why_not(&error, &bytes)))?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| format(error.to_string()))?;
        let metadata = |key: &'static str| header.metadata().as_ref().and_then(|map| map.get(key).cloned());
        let position = metadata(POSITION).and_then(|text| text.parse().ok());
        let position = position.ok_or_else(|| format(format!("it does not say its {POSITION}")))?;
        metadata(KIND).ok_or_else(|| format(format!("it does not say its {KIND}")))?;
        Of::new(config).check(&path.display().to_string(), metadata)?;
        let state = State { position, ..State::new(config) };
        let logits = file.names().contains(&LOGITS).then(Vec::new);
        let mut snapshot = Snapshot { state, logits };
        let parts = snapshot.state.layers.iter().map(|layer| layer.parts.len()).sum::<usize>();
        let expected = parts + usize::from(snapshot.logits.is_some());
        if file.len() != expected {
            let what = path.display().to_string();
            return Err(Error::State { what, tensor: "tensors".into(), expected: vec![expected], got: vec![file.len()] });
        }
        for (i, (layer, kind)) in snapshot.state.layers.iter_mut().zip(&config.layers).enumerate() {
            for (at, state) in kind.states(config).iter().enumerate() {
                let shape = state.after(snapshot.state.position as usize);
                layer.set(at, state, &read(path, &file, &format!("layers.{i}.{}", state.name), &shape)?);
            }
        }
        if let Some(logits) = &mut snapshot.logits {
            *logits = read(path, &file, LOGITS, &[config.vocab])?;
        }
        Ok(snapshot)
    }
}

/// Numbers of rows of so many columns, column by column.
fn transposed(numbers: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| numbers.iter().skip(column).step_by(columns)).copied().collect()
}

/// Numbers as a tensor of a file.
fn view<'d>(data: &'d [f32], shape: &[usize]) -> TensorView<'d> {
    TensorView::new(Dtype::F32, shape.to_vec(), bytemuck::cast_slice(data)).expect("as many bytes as the shape has")
}

/// Reads a tensor of this shape, all of whose numbers are finite.
fn read(path: &Path, file: &SafeTensors<'_>, tensor: &str, shape: &[usize]) -> Result<Vec<f32>> {
    let format = |why: String| Error::Format { path: path.to_owned(), expected: "a saved state", why };
    let (path, name) = (path.to_owned(), tensor.to_owned());
    let view = file.tensor(tensor).map_err(|error| format(error.to_string()))?;
    if view.shape() != shape {
        let what = path.display().to_string();
        return Err(Error::State { what, tensor: name, expected: shape.to_vec(), got: view.shape().to_vec() });
    }
    if view.dtype() != Dtype::F32 {
        return Err(format(format!("`{tensor}` is not f32")));
    }
    let data: Vec<f32> = view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    match first_not_finite(&data) {
        None => Ok(data),
        Some(position) => Err(Error::NotFinite { path, tensor: name, got: f64::from(data[position]), position }),
    }
}
