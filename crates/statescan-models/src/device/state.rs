//! [`DeviceState`]: what a model remembers of the tokens it has read, on the device.

use super::Shared;
use crate::error::{Error, Result};
use crate::state::{State, StateShape};
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

/// States of all layers, which are of one kind: a tensor (layers, sequences, rows, columns) for each state of a layer.
type Side = Vec<Tensor>;

fn zeros(shared: &Shared, sequences: usize) -> Result<Side> {
    let (config, layers) = (&shared.config, shared.config.layers.len());
    let state = |StateShape { shape: [rows, columns], .. }: StateShape| {
        Ok(Tensor::zeros(&shared.exec, DType::F32, &[layers, sequences, rows, columns])?)
    };
    config.family.scan().states(config).into_iter().map(state).collect()
}

/// What the sequences of a layer begin with, and where what they end with goes.
pub(super) fn ends<'e>(from: &'e [Tensor], to: &'e mut [Tensor], layer: usize) -> Vec<Option<(View<'e>, ViewMut<'e>)>> {
    let pair = |(from, to): (&'e Tensor, &'e mut Tensor)| Some((from.view().index(0, layer), to.view_mut().index(0, layer)));
    from.iter().zip(to).map(pair).collect()
}

impl DeviceState {
    pub(super) fn new(shared: &Arc<Shared>, sequences: usize) -> Result<Self> {
        let sides = [zeros(shared, sequences)?, zeros(shared, sequences)?];
        Ok(DeviceState { graphs: [None, None], shared: shared.clone(), sides, current: 0, sequences, position: 0 })
    }

    pub(super) fn upload(shared: &Arc<Shared>, state: &State) -> Result<Self> {
        let mut new = Self::new(shared, 1)?;
        for (i, tensor) in new.sides[0].iter_mut().enumerate() {
            let all: Vec<f32> = state.layers.iter().filter_map(|layer| layer.all().nth(i)).flatten().copied().collect();
            *tensor = Tensor::from_slice(&shared.exec, &all, &tensor.shape())?;
        }
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
        let mut state = State::new(&self.shared.config);
        for (i, tensor) in self.sides[self.current].iter().enumerate() {
            let all = tensor.to_vec::<f32>()?;
            for (layer, to) in state.layers.iter_mut().filter_map(|layer| layer.all_mut().nth(i)).enumerate() {
                let len = to.len();
                to.copy_from_slice(&all[(layer * self.sequences + sequence) * len..][..len]);
            }
        }
        state.position = self.position;
        Ok(state)
    }

    /// A copy on the same device, to go on in another way.
    ///
    /// # Errors
    /// A device without room.
    pub fn duplicate(&self) -> Result<Self> {
        let mut copy = Self::new(&self.shared, self.sequences)?;
        copy.sides[0] = self.sides[self.current].iter().map(|state| Ok(state.to(&self.shared.exec)?)).collect::<Result<_>>()?;
        copy.position = self.position;
        Ok(copy)
    }

    /// The state, and the other side.
    pub(super) fn split(&mut self) -> (&mut [Tensor], &mut [Tensor]) {
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
