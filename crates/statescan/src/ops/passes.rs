//! What stands between a call by position and the typed functions of its operation.

use super::call::{Call, Given, Written};
use super::summary::Summary;
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::tensor::{Dense, Shape};

/// Results or gradients of an oracle, by their names.
pub type Exact = Vec<(&'static str, Dense)>;

/// What runs calls of an operation: its typed functions, behind positions.
pub(crate) trait Passes: Sync {
    fn forward(&self, exec: &Exec, call: &Call<'_>, out: &mut Written<'_>) -> Result<()>;
    fn backward(&self, _: &Exec, call: &Call<'_>, _: &Given<'_>, _: &mut Written<'_>) -> Result<()> {
        Err(no_gradients(call))
    }
    /// The shape of a state of the call.
    fn state_shape(&self, call: &Call<'_>) -> Result<Shape>;
    fn saved_len(&self, _: &Call<'_>) -> Result<usize> {
        Ok(0)
    }
    fn workspace_len(&self, _: &Exec, _: &Call<'_>) -> Result<usize> {
        Ok(0)
    }
    fn backward_workspace_len(&self, _: &Exec, _: &Call<'_>, _has_saved: bool) -> Result<usize> {
        Ok(0)
    }
    fn summary(&self, _: &Exec, call: &Call<'_>, _: &mut Summary<'_>) -> Result<()> {
        Err(Error::Unavailable { what: call.signature.name, why: "it has no summary: it is no scan" })
    }
    fn summary_workspace_len(&self, _: &Exec, _: &Call<'_>) -> Result<usize> {
        Ok(0)
    }
    fn reference(&self, call: &Call<'_>) -> Result<Exact>;
    fn reference_backward(&self, call: &Call<'_>, _: &Given<'_>) -> Result<Exact> {
        Err(no_gradients(call))
    }
}

fn no_gradients(call: &Call<'_>) -> Error {
    let expected = "do not exist: a state is changed in place";
    Error::Presence { op: call.signature.name, argument: "gradients", expected }
}
