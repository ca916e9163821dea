//! Passes in two halves, for a slice of a sequence whose entering state comes from somewhere else: what does not depend on it is computed
//! while it is on its way (CUDA, long rows that are scanned in segments; everywhere else a summary and a whole pass do the same).
//!
//! A pass over such rows scans segments side by side twice: on their own, and from what enters them. The first half is the first of these scans, and
//! tells what the slice does as a whole; the second half is the other one.

use super::{Given, Summary, Written};
use crate::error::{Error, Result};
use crate::tensor::{RawViewMut, View, ViewMut};

/// Halves of the passes of a call by position.
pub(crate) trait Halves {
    fn ends_len(&self) -> [usize; 2];
    fn forward_ends(&self, ends: ViewMut<'_>, out: Summary<'_>) -> Result<()>;
    fn forward_rest(&self, ends: View<'_>, out: &mut Written<'_>) -> Result<()>;
    fn backward_ends(&self, ends: ViewMut<'_>, given: &Given<'_>, entering: ViewMut<'_>) -> Result<()>;
    fn backward_rest(&self, ends: View<'_>, given: &Given<'_>, grads: &mut Written<'_>) -> Result<()>;
}

/// What a slice does to the state that enters it, in normal form.
#[derive(Clone, Copy, Default)]
pub(crate) struct SummaryTargets {
    pub state: Option<RawViewMut>,
    pub decay: Option<RawViewMut>,
}

pub(crate) fn whole(what: &'static str) -> Error {
    Error::Unavailable { what, why: "such a pass is not in two halves" }
}

/// The halves of a prepared call, by launches of a module.
macro_rules! halves {
    ($cuda:ident) => {
        impl Prepared<'_, '_> {
            /// Numbers (`f32`) that the first halves of a forward and of a backward pass keep: 0 where a pass is not in two halves.
            pub fn ends_len(&self) -> [usize; 2] {
                self.exec.stream().map_or([0; 2], |stream| $cuda::ends_len(stream, &self.problem))
            }

            fn len(&self, backward: bool) -> $crate::Result<usize> {
                match self.ends_len()[usize::from(backward)] {
                    0 => Err($crate::ops::halves::whole(OP)),
                    len => Ok(len),
                }
            }

            fn queue(&self, key: Option<$crate::cuda::Key>) -> $crate::Result<$crate::cuda::Queue<'_>> {
                Ok($crate::cuda::Queue::new(self.exec.stream().ok_or($crate::ops::halves::whole(OP))?, key))
            }

            /// The first half of a forward pass: what segments do on their own, to `ends`; the state after the slice, from the initial state
            /// or from zero, and its decay, as far as they are asked for.
            ///
            /// # Errors
            /// Those of [`forward`] that concern what is written; [`Error::Unavailable`](crate::Error::Unavailable) where the pass is not in two
            /// halves.
            pub fn forward_ends(&self, mut ends: $crate::ViewMut<'_>, out: $crate::ops::Summary<'_>) -> $crate::Result<()> {
                let written = [
                    ("state", out.state.as_ref(), self.problem.state_shape),
                    ("decay", out.decay.as_ref(), self.problem.decay_shape()),
                ];
                let key = self.checked(|call| {
                    call.ends($crate::ops::checked::Direction::ForwardEnds, (&ends, self.len(false)?), &[], &written)
                })?;
                let targets = $crate::ops::halves::SummaryTargets {
                    state: out.state.map(|mut view| self.problem.state(view.raw())),
                    decay: out.decay.map(|mut view| self.problem.decay(view.raw())),
                };
                $cuda::forward_ends(&self.queue(key)?, &self.problem, ends.raw(), &targets)
            }

            /// The second half of a forward pass, from the initial state of this call and from what the first half of a call with the same
            /// arguments, the initial state apart, has kept.
            ///
            /// # Errors
            /// As [`Prepared::forward_ends`].
            pub fn forward_rest(&self, ends: $crate::View<'_>, out: &mut Outputs<'_>) -> $crate::Result<()> {
                let key = self.check_outputs(out, Some($crate::ops::checked::Ends { view: &ends, len: self.len(false)? }))?;
                $cuda::forward_rest(&self.queue(key)?, &self.problem, &ends, &Targets::new(&self.problem, out))
            }

            /// The first half of a backward pass: what segments do on their own, to `ends`; the gradient by the state before the slice, to
            /// `entering`.
            ///
            /// # Errors
            /// As [`Prepared::forward_ends`].
            pub fn backward_ends(
                &self,
                mut ends: $crate::ViewMut<'_>,
                cotangents: &Cotangents<'_>,
                mut entering: $crate::ViewMut<'_>,
            ) -> $crate::Result<()> {
                let read = [&cotangents.y, &cotangents.final_state];
                let written = [("grad of initial_state", Some(&entering), self.problem.state_shape)];
                let key = self.checked(|call| {
                    call.ends($crate::ops::checked::Direction::BackwardEnds, (&ends, self.len(true)?), &read, &written)
                })?;
                let (sources, entering) = (Sources::new(&self.problem, None, cotangents), self.problem.state(entering.raw()));
                $cuda::backward_ends(&self.queue(key)?, &self.problem, &sources, ends.raw(), entering)
            }

            /// The second half of a backward pass, from the cotangents of this call and from what the first half of a call with the same
            /// ones, that by the final state apart, has kept.
            ///
            /// # Errors
            /// As [`Prepared::forward_ends`].
            pub fn backward_rest(
                &self,
                ends: $crate::View<'_>,
                saved: Option<$crate::View<'_>>,
                cotangents: &Cotangents<'_>,
                grads: &mut Gradients<'_>,
            ) -> $crate::Result<()> {
                let key = self.check_gradients(
                    &saved,
                    cotangents,
                    grads,
                    Some($crate::ops::checked::Ends { view: &ends, len: self.len(true)? }),
                )?;
                let sources = Sources::new(&self.problem, saved, cotangents);
                $cuda::backward_rest(
                    &self.queue(key)?,
                    &self.problem,
                    &ends,
                    &sources,
                    &GradientTargets::new(&self.problem, grads),
                )
            }
        }

        impl $crate::ops::halves::Halves for Prepared<'_, '_> {
            fn ends_len(&self) -> [usize; 2] {
                self.ends_len()
            }

            fn forward_ends(&self, ends: $crate::ViewMut<'_>, out: $crate::ops::Summary<'_>) -> $crate::Result<()> {
                self.forward_ends(ends, out)
            }

            fn forward_rest(&self, ends: $crate::View<'_>, out: &mut $crate::ops::Written<'_>) -> $crate::Result<()> {
                self.forward_rest(ends, &mut Outputs::of_written(out))
            }

            fn backward_ends(
                &self,
                ends: $crate::ViewMut<'_>,
                given: &$crate::ops::Given<'_>,
                entering: $crate::ViewMut<'_>,
            ) -> $crate::Result<()> {
                self.backward_ends(ends, &Cotangents::of_given(given), entering)
            }

            fn backward_rest(
                &self,
                ends: $crate::View<'_>,
                given: &$crate::ops::Given<'_>,
                grads: &mut $crate::ops::Written<'_>,
            ) -> $crate::Result<()> {
                self.backward_rest(ends, given.saved, &Cotangents::of_given(given), &mut Gradients::of_written(grads))
            }
        }
    };
}
pub(crate) use halves;

/// Says of a pass that it has the halves of [`halves!`].
macro_rules! has_halves {
    ($cuda:ident) => {
        fn halves(&self) -> Option<&dyn $crate::ops::halves::Halves> {
            Some(self)
        }
    };
}
pub(crate) use has_halves;
