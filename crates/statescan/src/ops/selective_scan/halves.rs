//! Passes in two halves, for a slice of a sequence whose entering state comes from somewhere else: what does not depend on it is computed
//! while it is on its way (CUDA, long rows of few channels; everywhere else a [`summary`](super::summary()) and a whole pass do the same).
//!
//! A pass over long rows scans segments side by side twice: on their own, and from what enters them. The first half is the first of these scans, and
//! tells what the slice does as a whole; the second half is the other one.

use super::cuda::{self, SummaryTargets};
use super::{Cotangents, GradientTargets, Gradients, OP, Outputs, Prepared, Sources, Targets};
use crate::cuda::{Key, Queue};
use crate::error::{Error, Result};
use crate::ops::checked::{Direction, Ends};
use crate::ops::passes::Halves;
use crate::ops::{Given, Summary, Written};
use crate::tensor::{View, ViewMut};

pub(crate) fn of<'h>(call: &'h Prepared<'_, '_>) -> Option<&'h dyn Halves> {
    Some(call)
}

const WHOLE: Error = Error::Unavailable { what: OP, why: "such a pass is not in two halves" };

impl Prepared<'_, '_> {
    /// Numbers (`f32`) that the first halves of a forward and of a backward pass keep: 0 where a pass is not in two halves.
    pub fn ends_len(&self) -> [usize; 2] {
        self.exec.stream().map_or([0; 2], |stream| cuda::ends_len(stream.numbers(), &self.problem))
    }

    fn len(&self, backward: bool) -> Result<usize> {
        match self.ends_len()[usize::from(backward)] {
            0 => Err(WHOLE),
            len => Ok(len),
        }
    }

    fn queue(&self, key: Option<Key>) -> Result<Queue<'_>> {
        Ok(Queue::new(self.exec.stream().ok_or(WHOLE)?, key))
    }

    /// The first half of a forward pass: what segments do on their own, to `ends`; the state after the slice, from the initial state or from zero, and its
    /// decay, as far as they are asked for.
    ///
    /// # Errors
    /// Those of [`forward`](super::forward) that concern what is written; [`Error::Unavailable`] where the pass is not in two halves.
    pub fn forward_ends(&self, mut ends: ViewMut<'_>, out: Summary<'_>) -> Result<()> {
        let written = [("state", out.state.as_ref()), ("decay", out.decay.as_ref())];
        let key = self.checked(|call| call.ends(Direction::ForwardEnds, (&ends, self.len(false)?), &[], &written))?;
        let normal = |view: Option<ViewMut<'_>>| view.map(|mut view| self.problem.state(view.raw()));
        let targets = SummaryTargets { state: normal(out.state), decay: normal(out.decay) };
        cuda::forward_ends(&self.queue(key)?, &self.problem, ends.raw(), &targets)
    }

    /// The second half of a forward pass, from the initial state of this call and from what the first half of a call with the same arguments, the initial
    /// state apart, has kept.
    ///
    /// # Errors
    /// As [`Prepared::forward_ends`].
    pub fn forward_rest(&self, ends: View<'_>, out: &mut Outputs<'_>) -> Result<()> {
        let key = self.check_outputs(out, Some(Ends { view: &ends, len: self.len(false)? }))?;
        cuda::forward_rest(&self.queue(key)?, &self.problem, &ends, &Targets::new(&self.problem, out))
    }

    /// The first half of a backward pass: what segments do on their own, to `ends`; the gradient by the state before the slice, to `entering`.
    ///
    /// # Errors
    /// As [`Prepared::forward_ends`].
    pub fn backward_ends(&self, mut ends: ViewMut<'_>, cotangents: &Cotangents<'_>, mut entering: ViewMut<'_>) -> Result<()> {
        let read = [&cotangents.y, &cotangents.final_state];
        let written = [("grad of initial_state", Some(&entering))];
        let key = self.checked(|call| call.ends(Direction::BackwardEnds, (&ends, self.len(true)?), &read, &written))?;
        let (sources, entering) = (Sources::new(&self.problem, None, cotangents), self.problem.state(entering.raw()));
        cuda::backward_ends(&self.queue(key)?, &self.problem, &sources, ends.raw(), entering)
    }

    /// The second half of a backward pass, from the cotangents of this call and from what the first half of a call with the same ones, that by the final
    /// state apart, has kept.
    ///
    /// # Errors
    /// As [`Prepared::forward_ends`].
    pub fn backward_rest(
        &self,
        ends: View<'_>,
        saved: Option<View<'_>>,
        cotangents: &Cotangents<'_>,
        grads: &mut Gradients<'_>,
    ) -> Result<()> {
        let key = self.check_gradients(&saved, cotangents, grads, Some(Ends { view: &ends, len: self.len(true)? }))?;
        let sources = Sources::new(&self.problem, saved, cotangents);
        cuda::backward_rest(&self.queue(key)?, &self.problem, &ends, &sources, &GradientTargets::new(&self.problem, grads))
    }
}

impl Halves for Prepared<'_, '_> {
    fn ends_len(&self) -> [usize; 2] {
        self.ends_len()
    }

    fn forward_ends(&self, ends: ViewMut<'_>, out: Summary<'_>) -> Result<()> {
        self.forward_ends(ends, out)
    }

    fn forward_rest(&self, ends: View<'_>, out: &mut Written<'_>) -> Result<()> {
        self.forward_rest(ends, &mut Outputs::of_written(out))
    }

    fn backward_ends(&self, ends: ViewMut<'_>, given: &Given<'_>, entering: ViewMut<'_>) -> Result<()> {
        self.backward_ends(ends, &Cotangents::of_given(given), entering)
    }

    fn backward_rest(&self, ends: View<'_>, given: &Given<'_>, grads: &mut Written<'_>) -> Result<()> {
        self.backward_rest(ends, given.saved, &Cotangents::of_given(given), &mut Gradients::of_written(grads))
    }
}
