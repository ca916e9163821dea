//! A model that reads a text, on the CPU or on a GPU.

use crate::error::Result;
use statescan::tensor::Device;
use statescan::{DType, Exec};
use statescan_models::{DeviceModel, DeviceState, Model, Sampler, State};

/// A model and what it remembers of the text.
pub(crate) struct Reader<'m> {
    model: &'m Model,
    place: Place,
}

#[allow(clippy::large_enum_variant)] // there is one
enum Place {
    Host(Exec, State),
    Device(DeviceModel, DeviceState),
}

impl<'m> Reader<'m> {
    /// A model on the executor's device, with weights of projections, embedding and head rounded to a type there.
    pub(crate) fn new(exec: &Exec, model: &'m Model, state: State, dtype: Option<DType>) -> Result<Self> {
        let place = match exec.device() {
            Device::Cpu => Place::Host(exec.clone(), state),
            _ => {
                let model = DeviceModel::new(exec, model, dtype)?;
                let state = model.upload(&state)?;
                Place::Device(model, state)
            }
        };
        Ok(Reader { model, place })
    }

    /// Reads a prompt, and draws what follows.
    pub(crate) fn prefill(&mut self, tokens: &[u32], sampler: &mut Sampler) -> Result<u32> {
        let logits = match &mut self.place {
            Place::Host(exec, state) => self.model.prefill(exec, tokens, state)?,
            Place::Device(model, state) => model.prefill(tokens, state)?,
        };
        Ok(sampler.draw(&logits))
    }

    /// Reads one more token, and draws what follows.
    pub(crate) fn step(&mut self, token: u32, sampler: &mut Sampler) -> Result<u32> {
        let logits = match &mut self.place {
            Place::Host(exec, state) => self.model.step(exec, token, state)?,
            Place::Device(model, state) if sampler.is_greedy() => return Ok(model.step_greedy(token, state)?),
            Place::Device(model, state) => model.step(token, state)?,
        };
        Ok(sampler.draw(&logits))
    }

    /// What the model remembers.
    pub(crate) fn state(&self) -> Result<State> {
        match &self.place {
            Place::Host(_, state) => Ok(state.clone()),
            Place::Device(_, state) => Ok(state.download(0)?),
        }
    }

    /// Bytes that a step has to read.
    pub(crate) fn bytes_per_step(&self) -> usize {
        match &self.place {
            Place::Host(..) => self.model.bytes_per_step(),
            Place::Device(model, _) => model.bytes_per_step(),
        }
    }
}
