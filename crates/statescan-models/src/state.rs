//! [`State`]: all that a model remembers of the tokens it has read, as a value.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::files::{self, write_aside};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use std::path::Path;

const POSITION: &str = "position";

/// What a model remembers of the tokens it has read, of a size that does not depend on how many there were. It can be cloned, to go on in
/// several ways from one prompt, saved, loaded and dropped.
///
/// A state is what its tokens make it, bit by bit, however they were divided among calls.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    pub(crate) layers: Vec<LayerState>,
    pub(crate) position: u64,
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
        let [conv, scan] = shapes(config).map(|[rows, columns]| vec![0.0; rows * columns]);
        LayerState { conv, scan }
    }

    /// The part of one of several sequences.
    pub(crate) fn of_row(&self, row: usize, rows: usize) -> Self {
        let part = |all: &[f32]| all[all.len() / rows * row..all.len() / rows * (row + 1)].to_vec();
        LayerState { conv: part(&self.conv), scan: part(&self.scan) }
    }

    /// Those of several sequences together.
    pub(crate) fn of_rows(rows: &[LayerState]) -> Self {
        let all = |part: fn(&LayerState) -> &Vec<f32>| rows.iter().flat_map(|row| part(row).iter().copied()).collect();
        LayerState { conv: all(|row| &row.conv), scan: all(|row| &row.scan) }
    }
}

/// The shapes of a block's states: the convolution's, the scan's.
pub(crate) fn shapes(config: &Config) -> [[usize; 2]; 2] {
    [[config.conv_channels(), config.width - 1], [config.inner, config.dstate]]
}

impl State {
    /// The state before the first token.
    pub(crate) fn new(config: &Config) -> Self {
        State { layers: vec![LayerState::new(config); config.layers], position: 0 }
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
        let lens = shapes(config).map(|[rows, columns]| rows * columns);
        let own = |layer: &LayerState| [layer.conv.len(), layer.scan.len()];
        let expected = [&[config.layers][..], &lens].concat();
        match self.layers.len() == config.layers && self.layers.iter().all(|layer| own(layer) == lens) {
            true => Ok(()),
            false => {
                let got = [&[self.layers.len()][..], &self.layers.first().map_or([0, 0], own)].concat();
                Err(Error::State { what: "this call".into(), tensor: "layers".into(), expected, got })
            }
        }
    }

    /// Writes a safetensors file, `layers.{i}.conv` and `layers.{i}.scan` in f32: aside first, so that a file of this name is always whole.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn save(&self, config: &Config, path: &Path) -> Result<()> {
        let mut tensors = Vec::new();
        for (i, layer) in self.layers.iter().enumerate() {
            let parts = [("conv", &layer.conv), ("scan", &layer.scan)];
            for ((name, data), shape) in parts.into_iter().zip(shapes(config)) {
                let view = TensorView::new(Dtype::F32, shape.to_vec(), bytemuck::cast_slice(data));
                tensors.push((format!("layers.{i}.{name}"), view.expect("as many bytes as the shape has")));
            }
        }
        let metadata = HashMap::from([
            (POSITION.to_owned(), self.position.to_string()),
            ("model_type".to_owned(), config.kind.name().to_owned()),
        ]);
        let bytes = safetensors::serialize(tensors, Some(metadata)).expect("names and shapes that the format has");
        write_aside(path, &bytes)
    }

    /// Reads what [`State::save`] wrote.
    pub(crate) fn load(config: &Config, path: &Path) -> Result<Self> {
        let bytes = files::read(path)?;
        let format = |why: String| Error::Format { path: path.to_owned(), expected: "a saved state", why };
        let file = SafeTensors::deserialize(&bytes).map_err(|error| format(error.to_string()))?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| format(error.to_string()))?;
        let position = header.metadata().as_ref().and_then(|map| map.get(POSITION)?.parse().ok());
        let position = position.ok_or_else(|| format("it does not say its position".into()))?;
        let mut state = State::new(config);
        if file.len() != 2 * config.layers {
            let what = path.display().to_string();
            let (expected, got) = (vec![2 * config.layers], vec![file.len()]);
            return Err(Error::State { what, tensor: "layers".into(), expected, got });
        }
        for (i, layer) in state.layers.iter_mut().enumerate() {
            for ((name, data), shape) in [("conv", &mut layer.conv), ("scan", &mut layer.scan)].into_iter().zip(shapes(config)) {
                let tensor = format!("layers.{i}.{name}");
                let view = file.tensor(&tensor).map_err(|error| format(error.to_string()))?;
                if view.shape() != shape {
                    let (what, got) = (path.display().to_string(), view.shape().to_vec());
                    return Err(Error::State { what, tensor, expected: shape.to_vec(), got });
                }
                if view.dtype() != Dtype::F32 {
                    return Err(format(format!("`{tensor}` is not f32")));
                }
                for (to, from) in data.iter_mut().zip(view.data().chunks_exact(4)) {
                    *to = f32::from_le_bytes([from[0], from[1], from[2], from[3]]);
                }
            }
        }
        state.position = position;
        Ok(state)
    }
}
