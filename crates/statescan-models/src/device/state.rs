//! [`DeviceState`]: what a model remembers of the tokens it has read, on the device.

use super::Shared;
use crate::error::{Error, Result};
use crate::kernels::hybrid::cast;
use crate::mixer::{Part, Steps};
use crate::state::{State, StateShape};
use statescan::cuda::Graph;
use statescan::tensor::Tensor;
use statescan::{DType, ViewMut};
use std::sync::Arc;

/// The memory of a [`DeviceModel`](super::DeviceModel) of the tokens of some sequences, on its device.
///
/// It records the graph of a step when the first one is made, and again when a hybrid's keys and values need more room; it keeps the model's weights alive.
pub struct DeviceState {
    /// First, for a graph uses the memory below.
    pub(super) graphs: [Option<Graph>; 2],
    pub(super) shared: Arc<Shared>,
    /// States of one size, and room for those after the next pass.
    sides: [Layers; 2],
    /// States that grow with every token, which are written behind those of the tokens before: (sequences, `room` tokens, columns).
    grown: Layers,
    room: usize,
    pub(super) current: usize,
    sequences: usize,
    pub(super) position: u64,
}

/// The states of each layer, (sequences, rows, columns), in the order in which its kind has them. States of a kind all grow, or none does.
type Layers = Vec<Vec<Tensor>>;

/// Tokens that states which grow have room for are multiples of this, and passes read as many: memory behind the last token has zeros or what was there,
/// and no share in what anything attends to.
const TOKENS: usize = 64;

/// Zeros for the states of one size, or for those that grow and have room for so many tokens.
fn zeros(shared: &Shared, sequences: usize, room: Option<usize>) -> Result<Layers> {
    let config = &shared.config;
    let state = |state: StateShape| {
        let [rows, columns] = state.after(room.unwrap_or_default());
        Ok(Tensor::zeros(&shared.exec, DType::F32, &[sequences, rows, columns])?)
    };
    let of_kind = |shapes: Vec<StateShape>| shapes.into_iter().filter(|shape| shape.grows == room.is_some()).map(state).collect();
    config.layers.iter().map(|kind| of_kind(kind.states(config))).collect()
}

impl DeviceState {
    pub(super) fn new(shared: &Arc<Shared>, sequences: usize) -> Result<Self> {
        let sides = [zeros(shared, sequences, None)?, zeros(shared, sequences, None)?];
        let (room, shared) = (TOKENS, shared.clone());
        let grown = zeros(&shared, sequences, Some(room))?;
        Ok(DeviceState { graphs: [None, None], shared, sides, grown, room, current: 0, sequences, position: 0 })
    }

    pub(super) fn upload(shared: &Arc<Shared>, state: &State) -> Result<Self> {
        let mut new = Self::new(shared, 1)?;
        new.make_room(state.position as usize)?;
        for (layer, from) in state.layers.iter().enumerate() {
            let shapes = shared.config.layers[layer].states(&shared.config);
            let tensors = new.sides[0][layer].iter_mut().chain(&mut new.grown[layer]);
            for (tensor, numbers) in tensors.zip(from.rows(&shapes, state.position as usize)) {
                tensor.write(&numbers)?;
            }
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
        let (config, position) = (&self.shared.config, self.position as usize);
        let mut state = State { position: self.position, ..State::new(config) };
        for (layer, to) in state.layers.iter_mut().enumerate() {
            let tensors = self.sides[self.current][layer].iter().chain(&self.grown[layer]);
            let shapes = config.layers[layer].states(config);
            for (at, (tensor, shape)) in tensors.zip(&shapes).enumerate() {
                let (all, len) = (tensor.to_vec::<f32>()?, shape.after(position).iter().product::<usize>());
                to.set(at, shape, &all[all.len() / self.sequences * sequence..][..len]);
            }
        }
        Ok(state)
    }

    /// A copy on the same device, to go on in another way.
    ///
    /// # Errors
    /// A device without room.
    pub fn duplicate(&self) -> Result<Self> {
        let mut copy = Self::new(&self.shared, self.sequences)?;
        let tensor = |state: &Tensor| Ok(state.to(&self.shared.exec)?);
        let copied = |layers: &Layers| layers.iter().map(|layer| layer.iter().map(tensor).collect()).collect::<Result<_>>();
        (copy.sides[0], copy.grown, copy.room) = (copied(&self.sides[self.current])?, copied(&self.grown)?, self.room);
        copy.position = self.position;
        Ok(copy)
    }

    /// Whether something is kept of every token.
    pub(super) fn grows(&self) -> bool {
        self.grown.iter().any(|layer| !layer.is_empty())
    }

    /// Makes room for so many tokens more.
    pub(super) fn reserve(&mut self, more: usize) -> Result<()> {
        let tokens = (self.position as usize).saturating_add(more);
        if !self.grows() || tokens <= self.room {
            return Ok(());
        }
        self.make_room(tokens.max(2 * self.room))
    }

    /// Room for so many tokens, and the states of those that were read. Steps are recorded anew, for other memory.
    fn make_room(&mut self, tokens: usize) -> Result<()> {
        let (Shared { exec, .. }, read) = (&*self.shared, self.position as usize);
        let room = tokens.max(1).next_multiple_of(TOKENS);
        let mut grown = zeros(&self.shared, self.sequences, Some(room))?;
        for (from, to) in self.grown.iter().flatten().zip(grown.iter_mut().flatten()).filter(|_| read > 0) {
            for sequence in 0..self.sequences {
                let from = from.view().index(0, sequence).slice(0, 0..read);
                cast(exec, from, &mut to.view_mut().index(0, sequence).slice(0, 0..read))?;
            }
        }
        self.graphs = [None, None];
        (self.grown, self.room) = (grown, room);
        Ok(())
    }

    /// The rows of a pass through a layer, with its states, and room for them on the other side.
    pub(super) fn part(&mut self, steps: Steps, layer: usize) -> Part<'_> {
        let (position, [first, second]) = (self.position as usize, &mut self.sides);
        let (from, to) = if self.current == 0 { (first, second) } else { (second, first) };
        let states = from[layer].iter().zip(&mut to[layer]).map(|(from, to)| Some((from.view(), to.view_mut())));
        let tokens = (position + steps.steps).next_multiple_of(TOKENS);
        let grown = self.grown[layer].iter_mut().map(|state| state.view_mut().slice(1, 0..tokens)).collect();
        Part { states: states.collect(), position, grown, ..Part::whole(steps) }
    }

    /// The states of a layer of one sequence, which are carried on in place.
    pub(super) fn row(&mut self, layer: usize) -> Vec<ViewMut<'_>> {
        let all = self.sides[self.current][layer].iter_mut().chain(&mut self.grown[layer]);
        all.map(|state| state.view_mut().index(0, 0)).collect()
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
