//! [`State`]: all that a model remembers of the tokens it has read, as a value.

use crate::config::{Config, Kind};
use crate::error::{Error, Result};
use crate::files::{self, why_not, write_aside};
use crate::weight::first_not_finite;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use std::path::Path;

const POSITION: &str = "position";
const KIND: &str = "model_type";
const LOGITS: &str = "logits";

/// What a model remembers of the tokens it has read, of a size that does not depend on how many there were. It can be cloned, to go on in
/// several ways from one prompt, saved, loaded and dropped.
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
    /// What the model remembers.
    pub state: State,
    /// The logits after the last token, (vocab), where they were saved.
    pub logits: Option<Vec<f32>>,
}

/// The model that a state is of: its kind, and the sizes that states or what is made of them depend on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Of {
    kind: Kind,
    sizes: [(&'static str, usize); 8],
}

impl Of {
    pub(crate) fn new(config: &Config) -> Self {
        let Config { kind, vocab, dim, layers, inner, dstate, width, nheads, ngroups, .. } = *config;
        let sizes = [
            ("vocab", vocab),
            ("dim", dim),
            ("layers", layers),
            ("inner", inner),
            ("dstate", dstate),
            ("width", width),
            ("nheads", nheads),
            ("ngroups", ngroups),
        ];
        Of { kind, sizes }
    }

    /// Settings as texts, as a file has them.
    fn texts(&self) -> impl Iterator<Item = (&'static str, String)> {
        let sizes = self.sizes.into_iter().map(|(key, size)| (key, size.to_string()));
        [(KIND, self.kind.name().to_owned())].into_iter().chain(sizes)
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

/// What one layer remembers of one sequence, or of several, one behind the other.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LayerState {
    /// The latest inputs of the convolution, (channels, width - 1).
    pub conv: Vec<f32>,
    /// The states of the scan, (channels, dstate).
    pub scan: Vec<f32>,
}

impl LayerState {
    /// The state before the first token.
    pub(crate) fn new(config: &Config) -> Self {
        Self::of_sequences(config, 1)
    }

    /// The states of so many sequences before their first token, one behind the other.
    pub(crate) fn of_sequences(config: &Config, count: usize) -> Self {
        let [conv, scan] = config.state_shapes().map(|[rows, columns]| vec![0.0; count * rows * columns]);
        LayerState { conv, scan }
    }

    /// A state with as many numbers, all zero.
    pub(crate) fn zeros_like(&self) -> Self {
        LayerState { conv: vec![0.0; self.conv.len()], scan: vec![0.0; self.scan.len()] }
    }
}

impl State {
    /// The state before the first token.
    pub(crate) fn new(config: &Config) -> Self {
        State { layers: vec![LayerState::new(config); config.layers], position: 0, of: Of::new(config) }
    }

    /// Number of tokens that were read.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Number of bytes.
    pub fn size(&self) -> usize {
        self.layers.iter().map(|layer| size_of_val(&layer.conv[..]) + size_of_val(&layer.scan[..])).sum()
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
        let of_layer = |layer: &LayerState| {
            let parts = [&layer.conv, &layer.scan].into_iter();
            parts.filter_map(|part| first_not_finite(part).map(|at| part[at])).next()
        };
        self.layers.iter().enumerate().find_map(|(i, layer)| Some((i, of_layer(layer)?)))
    }

    /// Refuses a state that no text leads to.
    pub(crate) fn check_finite(&self) -> Result<()> {
        match self.first_not_finite() {
            None => Ok(()),
            Some((layer, got)) => Err(Error::Overflow { part: format!("layer {layer}"), step: self.position, got }),
        }
    }

    /// Writes a safetensors file, `layers.{i}.conv` and `layers.{i}.scan` in f32, and `logits` where they are given: aside first, so that a file of this name is always whole.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn save(&self, config: &Config, logits: Option<&[f32]>, path: &Path) -> Result<()> {
        self.check_finite()?;
        let mut tensors = Vec::new();
        for (i, layer) in self.layers.iter().enumerate() {
            let parts = [("conv", &layer.conv), ("scan", &layer.scan)];
            for ((name, data), shape) in parts.into_iter().zip(config.state_shapes()) {
                tensors.push((format!("layers.{i}.{name}"), view(data, &shape)));
            }
        }
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
        let logits = if file.names().contains(&LOGITS) { Some(vec![0.0; config.vocab]) } else { None };
        let mut snapshot = Snapshot { state, logits };
        let expected = 2 * config.layers + usize::from(snapshot.logits.is_some());
        if file.len() != expected {
            let what = path.display().to_string();
            return Err(Error::State { what, tensor: "tensors".into(), expected: vec![expected], got: vec![file.len()] });
        }
        for (i, layer) in snapshot.state.layers.iter_mut().enumerate() {
            for ((name, data), shape) in
                [("conv", &mut layer.conv), ("scan", &mut layer.scan)].into_iter().zip(config.state_shapes())
            {
                read(path, &file, &format!("layers.{i}.{name}"), &shape, data)?;
            }
        }
        if let Some(logits) = &mut snapshot.logits {
            read(path, &file, LOGITS, &[config.vocab], logits)?;
        }
        Ok(snapshot)
    }
}

/// Numbers as a tensor of a file.
fn view<'d>(data: &'d [f32], shape: &[usize]) -> TensorView<'d> {
    TensorView::new(Dtype::F32, shape.to_vec(), bytemuck::cast_slice(data)).expect("as many bytes as the shape has")
}

/// Reads a tensor of this shape, all of whose numbers are finite.
fn read(path: &Path, file: &SafeTensors<'_>, tensor: &str, shape: &[usize], data: &mut [f32]) -> Result<()> {
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
    for (to, from) in data.iter_mut().zip(view.data().chunks_exact(4)) {
        *to = f32::from_le_bytes([from[0], from[1], from[2], from[3]]);
    }
    match first_not_finite(data) {
        None => Ok(()),
        Some(position) => Err(Error::NotFinite { path, tensor: name, got: f64::from(data[position]), position }),
    }
}
