//! Backward: v and the gradient by x, the walk back in time, gradients of the input and the maps, then sums of terms.

use super::plan::Layout;
use super::product::{Factor, Product, To};
use super::skip::Skip;
use super::walk::{Gradients, Places, Scan};
use super::{Call, places};
use crate::cuda::{Queue, Stream, Sum, sum_terms};
use crate::error::Result;
use crate::ops::checked::needed;
use crate::ops::op::Problem as _;
use crate::ops::simplified_scan::{GradientTargets, Problem, Sources};
use crate::tensor::{RawViewMut, View};

/// Gradients that one launch sums.
const SUMS: usize = 5;

/// Elements of the workspace of a backward pass.
pub(crate) fn workspace_len(stream: &Stream, problem: &Problem<'_>, _has_saved: bool) -> Result<usize> {
    Ok(Layout::backward(&Call::new(problem, stream.numbers(), stream.allows_tf32())?.plan).len)
}

impl<'a> Call<'_, 'a> {
    fn factor(&self) -> f64 {
        self.problem.real_factor.unwrap_or(1.0)
    }

    /// `C^H by_y`, the gradient by x.
    pub(super) fn by_states(&self, by_y: View<'a>, by_numbers: u64) -> Product<'a> {
        Product {
            a: self.map(self.problem.c, true),
            b: Factor { view: by_y, conjugate: false },
            factor: self.factor(),
            terms: self.terms,
            to: To::Tensor { view: self.numbers(by_numbers), skip: None },
        }
    }

    /// `B^H dv`, and the skip's part: the gradient by u.
    pub(super) fn by_input<'u>(&self, by_y: Option<View<'u>>, by_numbers: u64, u: &'u RawViewMut) -> Product<'u>
    where
        'a: 'u,
    {
        Product {
            a: self.map(self.problem.b, true),
            b: Factor { view: self.numbers(by_numbers), conjugate: false },
            factor: 1.0,
            terms: self.terms,
            to: To::Tensor { view: u.as_read(), skip: self.problem.d.zip(by_y) },
        }
    }

    /// `sum dv u^H`, the gradient by B.
    pub(super) fn by_b(&self, by_numbers: u64, terms: u64, complex: bool) -> Product<'a> {
        Product {
            a: Factor { view: self.numbers(by_numbers), conjugate: false },
            b: Factor { view: self.problem.u, conjugate: true },
            factor: 1.0,
            terms: self.terms,
            to: To::Terms { address: terms, slices: self.plan.over_time, complex },
        }
    }

    /// `sum by_y x^H`, the gradient by C.
    pub(super) fn by_c(&self, by_y: View<'a>, numbers: u64, terms: u64, complex: bool) -> Product<'a> {
        Product {
            a: Factor { view: by_y, conjugate: false },
            b: Factor { view: self.numbers(numbers), conjugate: true },
            factor: self.factor(),
            terms: self.terms,
            to: To::Terms { address: terms, slices: self.plan.over_time, complex },
        }
    }

    /// The walk back in time.
    pub(super) fn gradients(
        &self,
        sources: &Sources<'a>,
        t: &GradientTargets,
        layout: &Layout,
        at: impl Fn(usize) -> u64,
    ) -> Gradients<'a> {
        Gradients {
            before: sources.last_state,
            after: t.initial_state,
            ddelta: t.delta,
            ddelta_a: t.delta_a,
            a_parts: t.a.as_ref().map_or(0, |a| 1 + usize::from(is_complex(a))),
            by_y: sources.y.is_some(),
            dv: t.u.is_some() || t.b.is_some(),
            states: t.c.is_some(),
            by_numbers: at(layout.by_numbers),
            terms: [layout.a, layout.delta, layout.delta_a].map(at),
        }
    }
}

fn is_complex(target: &RawViewMut) -> bool {
    target.as_read().dtype().is_complex()
}

pub(crate) fn backward(
    stream: &Queue<'_>,
    problem: &Problem<'_>,
    sources: &Sources<'_>,
    targets: &GradientTargets,
) -> Result<()> {
    let call = Call::new(problem, stream.numbers(), stream.allows_tf32())?;
    let workspace = needed(problem.op(), &targets.workspace)?;
    let (layout, at, t) = (Layout::backward(&call.plan), places(workspace), targets);
    let checkpoints = sources.checkpoints.map_or(at(layout.checkpoints), |v| v.as_ptr() as u64);
    let places = Places { numbers: at(layout.numbers), ends: at(layout.ends), checkpoints };
    let by_numbers = at(layout.by_numbers);
    let steady = |view: &&RawViewMut| view.as_read().rank() == 1;
    let term = |target: Option<&RawViewMut>, offset, count| target.map(|&to| Sum { to, terms: at(offset), count });
    let over_time = call.plan.over_time.count;
    let by_y = |count| if sources.y.is_some() { count } else { 0 };
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the workspace has the size
    // of this layout.
    unsafe {
        call.driven(places.numbers).launch(stream)?;
        if sources.checkpoints.is_none() {
            Scan { after: None, states: false, checkpoints: true }.launch(&call, stream, &places)?;
        }
        if let Some(by_y) = sources.y {
            call.by_states(by_y, by_numbers).launch(stream)?;
        }
        call.gradients(sources, t, &layout, &at).launch(&call, stream, &places)?;
        if let Some(u) = &t.u {
            call.by_input(sources.y, by_numbers, u).launch(stream)?;
        }
        if let Some(b) = &t.b {
            call.by_b(by_numbers, at(layout.b), is_complex(b)).launch(stream)?;
        }
        if let (Some(c), Some(by_y)) = (&t.c, sources.y) {
            call.by_c(by_y, places.numbers, at(layout.c), is_complex(c)).launch(stream)?;
        }
        if let (Some(_), Some(by_y)) = (&t.d, sources.y) {
            Skip { u: problem.u, by_y, slices: call.plan.skip, terms: at(layout.d) }.launch(stream)?;
        }
        let sums = [
            term(t.a.as_ref(), layout.a, call.plan.terms()),
            term(t.delta.as_ref().filter(steady), layout.delta, call.plan.terms()),
            term(t.delta_a.as_ref().filter(steady), layout.delta_a, call.plan.terms()),
            term(t.b.as_ref(), layout.b, over_time),
            term(t.c.as_ref(), layout.c, by_y(over_time)),
            term(t.d.as_ref(), layout.d, by_y(call.plan.skip.count)),
        ];
        let sums: Vec<_> = sums.into_iter().flatten().collect();
        Ok(sums.chunks(SUMS).try_for_each(|sums| sum_terms(stream, sums))?)
    }
}
