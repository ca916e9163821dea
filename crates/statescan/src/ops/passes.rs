//! What stands between a call by position and the typed functions of its operation: [`operation!`](super::table::operation) writes it.

use super::call::{Call, Given, Written};
use super::halves::Halves;
use super::signature::{Argument, Output, Role};
use super::summary::Summary;
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::tensor::{Dense, Shape, View, ViewMut};

/// Results or gradients of an oracle, by their names.
pub type Exact = Vec<(&'static str, Dense)>;

/// What runs calls of a differentiable operation.
pub(crate) trait Passes: Sync {
    /// The call, checked.
    fn prepare<'p>(&self, exec: &'p Exec, call: &Call<'p>) -> Result<Box<dyn Pass + Send + 'p>>;
    /// The shape of a state, and the numbers in saved states.
    fn states(&self, call: &Call<'_>) -> Result<(Shape, usize)>;
    fn summary(&self, _: &Exec, call: &Call<'_>, _: &mut Summary<'_>) -> Result<()> {
        Err(Error::Unavailable { what: call.signature.name, why: "it has no summary: it is no scan" })
    }
    fn summary_workspace_len(&self, _: &Exec, _: &Call<'_>) -> Result<usize> {
        Ok(0)
    }
    fn reference(&self, call: &Call<'_>) -> Result<Exact>;
    fn reference_backward(&self, call: &Call<'_>, given: &Given<'_>) -> Result<Exact>;
}

/// A checked call.
pub(crate) trait Pass {
    fn state_shape(&self) -> Shape;
    fn saved_len(&self) -> usize;
    fn workspace_len(&self) -> Result<usize>;
    fn backward_workspace_len(&self, has_saved: bool) -> Result<usize>;
    fn forward(&self, out: &mut Written<'_>) -> Result<()>;
    fn backward(&self, given: &Given<'_>, grads: &mut Written<'_>) -> Result<()>;
    /// The passes in two halves, where the operation has them.
    fn halves(&self) -> Option<&dyn Halves> {
        None
    }
}

/// What runs a step that changes a state in place.
pub(crate) trait Step: Sync {
    fn update(&self, exec: &Exec, call: &Call<'_>, state: &mut ViewMut<'_>, y: &mut ViewMut<'_>) -> Result<()>;
    /// The errors of such a step, before it. On CUDA no tensor is read.
    fn check(&self, call: &Call<'_>, state: &ViewMut<'_>, y: &ViewMut<'_>) -> Result<()>;
    /// `y` and the state after the step.
    fn reference(&self, call: &Call<'_>, state: &View<'_>) -> Result<(Dense, Dense)>;
}

/// The results of an oracle with their names.
pub(crate) fn named_results<const N: usize>(results: &[Output], exact: [Dense; N]) -> Exact {
    results.iter().map(|output| output.name).zip(exact).collect()
}

/// The gradients of an oracle with the names of their arguments: of those that were given, and of states.
pub(crate) fn named_gradients<const N: usize>(
    arguments: &[Argument],
    views: &[Option<&View<'_>>],
    exact: [Option<Dense>; N],
) -> Exact {
    let differentiable = arguments.iter().zip(views).filter(|(argument, _)| argument.gradient);
    let named = differentiable.zip(exact).filter(|((argument, view), _)| argument.role == Role::State || view.is_some());
    named.filter_map(|((argument, _), exact)| Some((argument.name, exact?))).collect()
}
