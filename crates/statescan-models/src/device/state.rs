//! [`DeviceState`]: what a model remembers of the tokens it has read, on the device.

use super::Shared;
use crate::error::{Error, Result};
use crate::state::{LayerState, Of, State};
use statescan::cuda::Graph;
use statescan::tensor::Tensor;
use statescan::{DType, View, ViewMut};
use std::sync::Arc;

/// What a [`DeviceModel`](super::DeviceModel) remembers of the tokens of some sequences, in the memory of its device.
///
/// It records the graph of a step when the first one is made, and keeps the model's weights alive.
pub struct DeviceState {
    /// First, for a graph uses the memory below.
    pub(super) graphs: [Option<Graph>; 2],
    pub(super) shared: Arc<Shared>,
    /// The state, and room for the one after the next pass.
    sides: [Side; 2],
    pub(super) current: usize,
    sequences: usize,
    pub(super) position: u64,
}

/// States of all layers.
pub(super) struct Side {
    /// (layers, sequences, channels, width - 1)
    pub(super) conv: Tensor,
    /// (layers, sequences, channels, dstate)
    pub(super) scan: Tensor,
}

impl Side {
    fn zeros(shared: &Shared, sequences: usize) -> Result<Self> {
        let shapes = shared.config.state_shapes().map(|[rows, columns]| [shared.config.layers, sequences, rows, columns]);
        let [conv, scan] = shapes.map(|shape| Tensor::zeros(&shared.exec, DType::F32, &shape));
        Ok(Side { conv: conv?, scan: scan? })
    }
}

/// What the sequences of a layer begin with, and where what they end with goes.
pub(super) struct Ends<'e> {
    pub(super) from: &'e Side,
    pub(super) to: &'e mut Side,
    pub(super) layer: usize,
}

impl<'e> Ends<'e> {
    /// The inputs of the convolution, and the states of the scan.
    pub(super) fn views(self) -> [(View<'e>, ViewMut<'e>); 2] {
        let Ends { from, to, layer } = self;
        let pair = |from: &'e Tensor, to: &'e mut Tensor| (of_layer(from, layer), to.view_mut().index(0, layer));
        [pair(&from.conv, &mut to.conv), pair(&from.scan, &mut to.scan)]
    }
}

impl DeviceState {
    pub(super) fn new(shared: &Arc<Shared>, sequences: usize) -> Result<Self> {
        let sides = [Side::zeros(shared, sequences)?, Side::zeros(shared, sequences)?];
        Ok(DeviceState { graphs: [None, None], shared: shared.clone(), sides, current: 0, sequences, position: 0 })
    }

    pub(super) fn upload(shared: &Arc<Shared>, state: &State) -> Result<Self> {
        let mut new = Self::new(shared, 1)?;
        let all = |part: fn(&LayerState) -> &Vec<f32>| state.layers.iter().flat_map(part).copied().collect::<Vec<_>>();
        let Side { conv, scan } = &mut new.sides[0];
        *conv = Tensor::from_slice(&shared.exec, &all(|layer| &layer.conv), &conv.shape())?;
        *scan = Tensor::from_slice(&shared.exec, &all(|layer| &layer.scan), &scan.shape())?;
        new.position = state.position;
        Ok(new)
    }

    /// Number of sequences that are carried on together.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// Number of tokens that each sequence has read.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The state of one of the sequences as a value on the host.
    ///
    /// # Errors
    /// Errors of the device.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn download(&self, sequence: usize) -> Result<State> {
        assert!(sequence < self.sequences, "there are {} sequences", self.sequences);
        let Side { conv, scan } = &self.sides[self.current];
        let (conv, scan) = (conv.to_vec::<f32>()?, scan.to_vec::<f32>()?);
        let layers = self.shared.config.layers;
        let part = |all: &[f32], layer: usize| {
            let len = all.len() / (layers * self.sequences);
            all[(layer * self.sequences + sequence) * len..][..len].to_vec()
        };
        let layers = (0..layers).map(|i| LayerState { conv: part(&conv, i), scan: part(&scan, i) }).collect();
        Ok(State { layers, position: self.position, of: Of::new(&self.shared.config) })
    }

    /// A copy on the same device, to go on in another way.
    ///
    /// # Errors
    /// A device without room.
    pub fn duplicate(&self) -> Result<Self> {
        let mut copy = Self::new(&self.shared, self.sequences)?;
        let Side { conv, scan } = &self.sides[self.current];
        copy.sides[0] = Side { conv: conv.to(&self.shared.exec)?, scan: scan.to(&self.shared.exec)? };
        copy.position = self.position;
        Ok(copy)
    }

    /// The state, and the other side.
    pub(super) fn split(&mut self) -> (&mut Side, &mut Side) {
        let [first, second] = &mut self.sides;
        if self.current == 0 { (first, second) } else { (second, first) }
    }

    /// Refuses states of other models.
    pub(super) fn check(&self, shared: &Shared) -> Result<()> {
        match std::ptr::eq(&*self.shared, shared) {
            true => Ok(()),
            false => Err(Error::ForeignState),
        }
    }

    /// Refuses states of several sequences too.
    pub(super) fn check_single(&self, shared: &Shared) -> Result<()> {
        self.check(shared)?;
        match self.sequences {
            1 => Ok(()),
            got => Err(Error::Sequences { got }),
        }
    }
}

/// The part of a layer.
pub(super) fn of_layer(states: &Tensor, layer: usize) -> View<'_> {
    states.view().index(0, layer)
}
