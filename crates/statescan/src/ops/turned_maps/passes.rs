//! A checked call runs on the CPU or on CUDA, and by the oracle.

use super::problem::Problem;
use super::{Args, Cotangents, GradientTargets, OP, Sources, Table, Targets, cpu, cuda, reference};
use crate::cuda::Stream;
use crate::error::Result;
use crate::ops::call::{Call, Given, Written};
use crate::ops::op::{self, Op, Place};
use crate::ops::states::States;
use crate::tensor::{Dense, Device, Shape};

impl Op for Table {
    fn problem<'a>(&self, call: &Call<'a>, device: Device, states: States<'a>) -> Result<Box<dyn op::Problem + Send + 'a>> {
        Ok(Box::new(Problem::new(&Args::of_call(call), device, states)?))
    }

    fn reference(&self, call: &Call<'_>) -> Result<Vec<Dense>> {
        let exact = reference::forward(&Args::of_call(call))?;
        Ok(vec![exact.turned, exact.dots])
    }

    fn reference_backward(&self, call: &Call<'_>, given: &Given<'_>) -> Result<Vec<Option<Dense>>> {
        Ok(reference::backward(&Args::of_call(call), &Cotangents::of_given(given))?.by_position())
    }
}

impl op::Problem for Problem<'_> {
    fn op(&self) -> &'static str {
        OP
    }

    /// The result that no argument has the shape of.
    fn state_shape(&self) -> Option<Shape> {
        Some(self.turned())
    }

    fn workspace_len(&self, _stream: &Stream) -> Result<usize> {
        Ok(cuda::Room::new(self, false).len)
    }

    fn backward_workspace_len(&self, _stream: &Stream, _has_saved: bool) -> Result<usize> {
        Ok(cuda::Room::new(self, true).len)
    }

    fn forward(&self, place: Place<'_>, out: &mut Written<'_>) -> Result<()> {
        let targets = Targets::new(self, out);
        place.run(|exec| cpu::forward(exec, self, &targets), |queue| cuda::forward(queue, self, &targets))
    }

    fn backward(&self, place: Place<'_>, given: &Given<'_>, grads: &mut Written<'_>) -> Result<()> {
        let (sources, targets) = (Sources::new(self, given), GradientTargets::new(self, grads));
        place.run(|exec| cpu::backward(exec, self, &sources, &targets), |queue| cuda::backward(queue, self, &sources, &targets))
    }
}
