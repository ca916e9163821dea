//! Calls by position.

use super::{Args, Cotangents, Gradients, Head, Outputs};
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::call::{Call, Given, Written};
use crate::ops::discretization::Discretization;
use crate::ops::passes::{Exact, Passes};
use crate::ops::summary::Summary;
use crate::tensor::Shape;

/// `simplified_scan`, or `s5_inner`.
pub(crate) struct SimplifiedScan {
    pub inner: bool,
}

impl SimplifiedScan {
    fn args<'a>(&self, call: &Call<'a>) -> Args<'a> {
        // the skip stands before the optional arguments of both
        let (head, next) = match self.inner {
            true => (Head::Real { conj_sym: call.flag(2), d: call.views[5] }, 6),
            false => (Head::Complex, 5),
        };
        Args {
            delta_a: call.views[next],
            initial_state: call.views[next + 1],
            sequences: call.sequences(next + 2),
            reverse: call.flag(1),
            discretization: Discretization::of_word(call.word(0)),
            head,
            ..Args::new(call.need(0), call.need(1), call.need(2), call.need(3), call.need(4))
        }
    }
}

fn cotangents<'a>(given: &Given<'a>) -> Cotangents<'a> {
    let [y, last_state] = given.cotangents;
    Cotangents { y, last_state }
}

impl Passes for SimplifiedScan {
    fn forward(&self, exec: &Exec, call: &Call<'_>, out: &mut Written<'_>) -> Result<()> {
        let [y, last_state] = out.take();
        let (checkpoints, workspace) = (out.saved.take(), out.workspace.take());
        super::forward(exec, &self.args(call), &mut Outputs { y, last_state, checkpoints, workspace })
    }

    fn backward(&self, exec: &Exec, call: &Call<'_>, given: &Given<'_>, grads: &mut Written<'_>) -> Result<()> {
        let [u, delta, a, b, c, sixth, seventh, eighth] = grads.take();
        let (d, delta_a, initial_state) = if self.inner { (sixth, seventh, eighth) } else { (None, sixth, seventh) };
        let workspace = grads.workspace.take();
        let mut grads = Gradients { u, delta, a, b, c, d, delta_a, initial_state, workspace };
        super::backward(exec, &self.args(call), given.saved, &cotangents(given), &mut grads)
    }

    fn state_shape(&self, call: &Call<'_>) -> Result<Shape> {
        super::last_state_shape(&self.args(call))
    }

    fn saved_len(&self, call: &Call<'_>) -> Result<usize> {
        super::checkpoints_len(&self.args(call))
    }

    fn summary(&self, exec: &Exec, call: &Call<'_>, out: &mut Summary<'_>) -> Result<()> {
        super::summary(exec, &self.args(call), out)
    }

    fn summary_workspace_len(&self, exec: &Exec, call: &Call<'_>) -> Result<usize> {
        super::summary_workspace_len(exec, &self.args(call))
    }

    fn workspace_len(&self, exec: &Exec, call: &Call<'_>) -> Result<usize> {
        super::workspace_len(exec, &self.args(call))
    }

    fn backward_workspace_len(&self, exec: &Exec, call: &Call<'_>, _has_saved: bool) -> Result<usize> {
        super::backward_workspace_len(exec, &self.args(call))
    }

    fn reference(&self, call: &Call<'_>) -> Result<Exact> {
        let exact = super::reference::forward(&self.args(call))?;
        Ok(vec![("y", exact.y), ("last_state", exact.last_state)])
    }

    fn reference_backward(&self, call: &Call<'_>, given: &Given<'_>) -> Result<Exact> {
        let g = super::reference::backward(&self.args(call), &cotangents(given))?;
        let mut all = vec![("u", g.u), ("delta", g.delta), ("A", g.a), ("B", g.b), ("C", g.c)];
        all.push(("initial_state", g.initial_state));
        let optional = [("D", g.d), ("deltaA", g.delta_a)];
        all.extend(optional.into_iter().filter_map(|(name, grad)| Some((name, grad?))));
        Ok(all)
    }
}
