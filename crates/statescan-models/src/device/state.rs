//! [`DeviceState`]: what a model remembers of the tokens it has read, on the device.

use super::Shared;
use super::beside::Beside;
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
    pub(super) beside: Option<Beside>,
    pub(super) shared: Arc<Shared>,
    /// States of one size, and room for those after the next pass.
    sides: [Layers; 2],
    /// States that grow with every token, which are written behind those of the tokens before: (sequences, `room` tokens, columns).
    grown: Layers,
    room: usize,
    pub(super) current: usize,
    /// Tokens that each sequence has read.
    pub(super) positions: Vec<u64>,
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
        Ok(DeviceState {
            graphs: [None, None],
            beside: None,
            shared,
            sides,
            grown,
            room,
            current: 0,
            positions: vec![0; sequences],
        })
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
        new.positions = vec![state.position];
        Ok(new)
    }

    /// States of one sequence each as one of all.
    pub(super) fn join(shared: &Arc<Shared>, states: &[&DeviceState]) -> Result<Self> {
        let mut all = Self::new(shared, states.len())?;
        all.check_size()?;
        for (sequence, state) in states.iter().enumerate() {
            for (from, to) in state.sides[state.current].iter().flatten().zip(all.sides[0].iter_mut().flatten()) {
                cast(&shared.exec, from.view().index(0, 0), &mut to.view_mut().index(0, sequence))?;
            }
            all.positions[sequence] = state.positions[0];
        }
        Ok(all)
    }

    /// A copy of the state of one of the sequences, to go on with by itself.
    ///
    /// # Errors
    /// A model that keeps something of every token; a device without room.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn part_of(&self, sequence: usize) -> Result<Self> {
        self.check_size()?;
        let mut part = Self::new(&self.shared, 1)?;
        for (from, to) in self.sides[self.current].iter().flatten().zip(part.sides[0].iter_mut().flatten()) {
            cast(&self.shared.exec, from.view().index(0, sequence), &mut to.view_mut().index(0, 0))?;
        }
        part.positions = vec![self.positions[sequence]];
        Ok(part)
    }

    /// Number of sequences that are carried on together.
    pub fn sequences(&self) -> usize {
        self.positions.len()
    }

    /// Number of tokens that the sequences have read: those of the furthest, where [`DeviceModel::join`](super::DeviceModel::join) put some beside each other.
    pub fn position(&self) -> u64 {
        self.positions.iter().copied().max().unwrap_or_default()
    }

    /// Number of tokens that each sequence has read.
    pub fn positions(&self) -> &[u64] {
        &self.positions
    }

    /// The state of one of the sequences as a value on the host.
    ///
    /// # Errors
    /// Errors of the device.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn download(&self, sequence: usize) -> Result<State> {
        let sequences = self.sequences();
        assert!(sequence < sequences, "there are {sequences} sequences");
        let (config, position) = (&self.shared.config, self.positions[sequence]);
        let mut state = State { position, ..State::new(config) };
        for (layer, to) in state.layers.iter_mut().enumerate() {
            let tensors = self.sides[self.current][layer].iter().chain(&self.grown[layer]);
            let shapes = config.layers[layer].states(config);
            for (at, (tensor, shape)) in tensors.zip(&shapes).enumerate() {
                let (all, len) = (tensor.to_vec::<f32>()?, shape.after(position as usize).iter().product::<usize>());
                to.set(at, shape, &all[all.len() / sequences * sequence..][..len]);
            }
        }
        Ok(state)
    }

    /// A copy on the same device, to go on in another way.
    ///
    /// # Errors
    /// A device without room.
    pub fn duplicate(&self) -> Result<Self> {
        let mut copy = Self::new(&self.shared, self.sequences())?;
        let tensor = |state: &Tensor| Ok(state.to(&self.shared.exec)?);
        let copied = |layers: &Layers| layers.iter().map(|layer| layer.iter().map(tensor).collect()).collect::<Result<_>>();
        (copy.sides[0], copy.grown, copy.room) = (copied(&self.sides[self.current])?, copied(&self.grown)?, self.room);
        copy.positions = self.positions.clone();
        Ok(copy)
    }

    /// Whether something is kept of every token.
    pub(super) fn grows(&self) -> bool {
        self.grown.iter().any(|layer| !layer.is_empty())
    }

    /// Refuses states that grow, of which those of different lengths are not one tensor.
    pub(super) fn check_size(&self) -> Result<()> {
        let why = "the model keeps something of every token, and states of different lengths are not one tensor";
        let refused = statescan::Error::Unavailable { what: "a state of several texts", why };
        if self.grows() { Err(refused.into()) } else { Ok(()) }
    }

    /// Makes room for so many tokens more.
    pub(super) fn reserve(&mut self, more: usize) -> Result<()> {
        let tokens = (self.position() as usize).saturating_add(more);
        if !self.grows() || tokens <= self.room {
            return Ok(());
        }
        self.make_room(tokens.max(2 * self.room))
    }

    /// Room for so many tokens, and the states of those that were read. Steps are recorded anew, for other memory.
    fn make_room(&mut self, tokens: usize) -> Result<()> {
        let (Shared { exec, .. }, read) = (&*self.shared, self.position() as usize);
        let room = tokens.max(1).next_multiple_of(TOKENS);
        let mut grown = zeros(&self.shared, self.sequences(), Some(room))?;
        for (from, to) in self.grown.iter().flatten().zip(grown.iter_mut().flatten()).filter(|_| read > 0) {
            for sequence in 0..self.sequences() {
                let from = from.view().index(0, sequence).slice(0, 0..read);
                cast(exec, from, &mut to.view_mut().index(0, sequence).slice(0, 0..read))?;
            }
        }
        self.graphs = [None, None];
        (self.grown, self.room) = (grown, room);
        Ok(())
    }

    /// Counts tokens that every sequence has read.
    pub(super) fn count(&mut self, tokens: usize) {
        self.positions.iter_mut().for_each(|position| *position += tokens as u64);
    }

    /// The rows of a pass through a layer, with its states, and room for them on the other side.
    pub(super) fn part(&mut self, steps: Steps, layer: usize) -> Part<'_> {
        let (position, [first, second]) = (self.position() as usize, &mut self.sides);
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
        match self.sequences() {
            1 => Ok(()),
            got => Err(Error::Sequences { got }),
        }
    }
}
