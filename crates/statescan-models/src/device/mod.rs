//! [`DeviceModel`]: a language model on an NVIDIA GPU.
//!
//! Many rows go through the blocks as on the CPU, by products of cuBLASLt and the operations of statescan (`pass.rs`), which are recorded where each of several
//! sequences has one row (`beside.rs`); one row is a recorded graph of a few kernels for each block (`step.rs`). Activations of many rows have the type of the weights,
//! those of one row are f32, as the stream between blocks, convolutions, states and sums always are.

mod backward;
mod beside;
mod gpu;
mod pass;
mod state;
mod step;
mod training;
mod weights;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::mixer::Run;
use crate::model::whole::{PassRooms, Whole};
use crate::model::{Logits, Model};
use crate::state::State;
use beside::Beside;
pub(crate) use gpu::Gpu;
pub use state::DeviceState;
use statescan::tensor::Tensor;
use statescan::{DType, Exec};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use step::Step;
pub use training::DeviceTraining;
pub(crate) use training::{Downloaded, decays};
pub(crate) use weights::Upload;
use weights::{Block, Weights};

/// A language model whose weights are on a GPU.
///
/// Its calls are in the order of the executor's stream, and wait for their results. Logits are those of [`Model`] but for the order of sums, and for
/// rounded activations where weights have 16 bits.
pub struct DeviceModel {
    shared: Arc<Shared>,
}

/// The part of a model that states keep alive too, for the graphs that they record.
struct Shared {
    exec: Exec,
    config: Config,
    weights: Weights,
    gpu: Gpu,
    rooms: Mutex<PassRooms>,
    step: Mutex<Step>,
}

impl Shared {
    fn new(exec: &Exec, model: &Model, dtype: DType) -> Result<Self> {
        let config = model.config().clone();
        let gpu = Gpu::new(exec)?;
        let weights = Weights::new(exec, model, dtype)?;
        let step = Mutex::new(Step::new(exec, &config)?);
        Ok(Shared { exec: exec.clone(), config, weights, gpu, rooms: Mutex::default(), step })
    }
}

impl Shared {
    /// The model on the device.
    fn whole<'m>(&'m self) -> Whole<'m> {
        let Weights { dtype, embedding, blocks, norm, .. } = &self.weights;
        let mixer = |(&kind, block): (_, &'m Block)| {
            let [weights, derived] = [&block.mixer, &block.derived].map(|all| all.iter().map(Tensor::view).collect());
            Run { device: &self.gpu, config: &self.config, kind, weights, derived }
        };
        Whole {
            device: &self.gpu,
            config: &self.config,
            dtype: *dtype,
            embedding: embedding.view(),
            head: self.weights.head().view(),
            norms: blocks.iter().map(|block| &block.norm).chain([norm]).map(Tensor::view).collect(),
            mixers: self.config.layers.iter().zip(blocks).map(mixer).collect(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeviceModel {
    /// Copies the weights to the executor's device: those of projections, embedding and head in the type that the embedding has or in another one, f32,
    /// bf16 or f16, the others in f32.
    ///
    /// # Errors
    /// An executor that is not a CUDA one, a device without cuBLASLt or without room, a type that is none of these three.
    pub fn new(exec: &Exec, model: &Model, dtype: Option<DType>) -> Result<Self> {
        let shared = Shared::new(exec, model, dtype.unwrap_or(model.embedding.dtype()))?;
        Ok(DeviceModel { shared: Arc::new(shared) })
    }

    /// Sizes and options.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The type of projections, embedding and head.
    pub fn dtype(&self) -> DType {
        self.shared.weights.dtype
    }

    /// Bytes that a step has to read, the floor of decoding: the weights of projections and head, and the state.
    pub fn bytes_per_step(&self) -> usize {
        self.shared.weights.bytes_per_step(&self.shared.config) + State::new(&self.shared.config).size()
    }

    /// The state before the first token of so many sequences, which are carried on together.
    ///
    /// # Errors
    /// A device without room.
    pub fn state(&self, sequences: usize) -> Result<DeviceState> {
        DeviceState::new(&self.shared, sequences)
    }

    /// A state on the device with the same content.
    ///
    /// # Errors
    /// A state of another model; a device without room.
    pub fn upload(&self, state: &State) -> Result<DeviceState> {
        state.check(&self.shared.config)?;
        DeviceState::upload(&self.shared, state)
    }

    /// A state of several sequences, which are carried on together from then on: copies of states of one sequence each, whose positions may
    /// differ. [`DeviceState::part_of`] is the way back.
    ///
    /// # Errors
    /// States of another model, or of several sequences; a model that keeps something of every token; a device without room.
    pub fn join(&self, states: &[&DeviceState]) -> Result<DeviceState> {
        states.iter().try_for_each(|state| state.check_single(&self.shared))?;
        DeviceState::join(&self.shared, states)
    }

    /// The logits after the last token of each sequence, (sequences, vocab). Tokens are (sequences, steps), as many for each sequence. One token of each of
    /// several sequences is one launch of a graph, unless a model keeps something of every token.
    ///
    /// # Errors
    /// Tokens beyond the vocabulary, none, or not as many for each sequence; a state of another model: no state has changed then. Results that are NaN
    /// or infinite, and errors of the device.
    pub fn prefill(&self, tokens: &[u32], state: &mut DeviceState) -> Result<Vec<f32>> {
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        self.shared.advance(tokens, state, Logits::Last)
    }

    /// The logits after every token, (steps, vocab), of a state of one sequence.
    ///
    /// # Errors
    /// As [`DeviceModel::prefill`], but without tokens there are no logits; a state of several sequences.
    pub fn forward_from(&self, tokens: &[u32], state: &mut DeviceState) -> Result<Vec<f32>> {
        state.check_single(&self.shared)?;
        self.shared.advance(tokens, state, Logits::All)
    }

    /// The logits after one more token, (vocab), of a state of one sequence: one launch of a graph, and a copy.
    ///
    /// # Errors
    /// As [`DeviceModel::prefill`]; a state of several sequences.
    pub fn step(&self, token: u32, state: &mut DeviceState) -> Result<Vec<f32>> {
        let logits = self.shared.step(token, state)?.logits(&self.shared.exec)?;
        self.shared.finite(self.shared.scaled(logits), state)
    }

    /// The most likely token after one more token, the first one of equals: as [`DeviceModel::step`], but the logits stay on the device.
    ///
    /// # Errors
    /// As [`DeviceModel::step`].
    pub fn step_greedy(&self, token: u32, state: &mut DeviceState) -> Result<u32> {
        let token = self.shared.step(token, state)?.most_likely()?;
        // the device answers none where logits are not finite
        token.ok_or_else(|| self.shared.overflow(state, f32::NAN))
    }

    /// The most likely token after one more token of each sequence of a state, the first one of equals: one launch of a graph, and the logits stay on the device.
    ///
    /// # Errors
    /// As [`DeviceModel::prefill`]; more or fewer tokens than sequences; several sequences of a model that keeps something of every token.
    pub fn steps_greedy(&self, tokens: &[u32], state: &mut DeviceState) -> Result<Vec<u32>> {
        if let ([token], 1) = (tokens, state.sequences()) {
            return Ok(vec![self.step_greedy(*token, state)?]);
        }
        state.check_size()?;
        if self.shared.check_tokens(tokens, state)? != 1 {
            return Err(Error::Uneven { tokens: tokens.len(), sequences: state.sequences() });
        }
        let tokens = self.shared.beside(tokens, state, Beside::most_likely)?;
        tokens.ok_or_else(|| self.shared.overflow(state, f32::NAN))
    }
}
