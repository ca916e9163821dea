//! A call with memory for everything it computes, ready to be checked and timed.

use crate::call::Call;
use crate::check::{self, Backward, Comparison};
use crate::compute;
use crate::error::Result;
use crate::memory::{self, CotangentKind, Limits};
use crate::pass;
use crate::tensors::Tensors;
use statescan::Exec;

/// State-steps of the check before a measurement.
const CHECK_BUDGET: f64 = 5e4;

/// The call and its memory.
pub struct Measured {
    call: Call,
    results: Tensors,
    cotangents: Tensors,
    gradients: Tensors,
}

impl Measured {
    /// Memory for the results and, where the operation has a backward pass, for the gradients of every argument.
    ///
    /// # Errors
    /// Arguments that the operation refuses; results too large for this machine.
    pub fn new(call: Call) -> Result<Self> {
        let (limits, grad) = (Limits::default(), call.op.signature.differentiable);
        let mut results = memory::results(&call, grad, limits)?;
        pass::prepare(&call, &mut results)?;
        let (mut cotangents, mut gradients) = (Tensors::default(), Tensors::default());
        if grad {
            cotangents = memory::cotangents(&call, CotangentKind::Random, limits)?;
            gradients = memory::gradients(&call, limits)?;
        }
        Ok(Measured { call, results, cotangents, gradients })
    }

    /// Runs every pass and gives what is not within the bounds of the oracle.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn check(&mut self, exec: &Exec) -> Result<Vec<Comparison>> {
        self.check_passes(exec, self.call.op.signature.differentiable)
    }

    /// Checks the forward pass and, if asked, the backward pass.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn check_passes(&mut self, exec: &Exec, gradients: bool) -> Result<Vec<Comparison>> {
        compute::forward(exec, &self.call, &mut self.results)?;
        let mut backward = None;
        if gradients {
            self.backward(exec)?;
            backward = Some(Backward { cotangents: &self.cotangents, gradients: &self.gradients });
        }
        let (_, all) = check::against_oracle(exec, &self.call, &self.results, backward, CHECK_BUDGET)?;
        Ok(all.into_iter().filter(|c| !c.ok).collect())
    }

    /// The forward pass; what is computed in place goes on from where it is.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn forward(&mut self, exec: &Exec) -> Result<()> {
        pass::forward(exec, &self.call, &mut self.results)
    }

    /// The backward pass with every gradient, from what the last forward pass saved.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn backward(&mut self, exec: &Exec) -> Result<()> {
        compute::backward(exec, &self.call, &self.results, &self.cotangents, &mut self.gradients)
    }

    /// Bytes that the forward pass reads and writes.
    pub fn forward_bytes(&self) -> usize {
        self.call.bytes() + self.results.bytes()
    }

    /// Bytes that the backward pass reads and writes.
    pub fn backward_bytes(&self) -> usize {
        self.call.bytes() + self.cotangents.bytes() + self.gradients.bytes()
    }
}
