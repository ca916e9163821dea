//! The simplified scan on CUDA: products on tensor cores, and walks over time between them.
//!
//! Forward: `v = B u` into the workspace, a scan that puts x in its place, `y = C x`. Backward: v and the gradient by x, a walk back in time that
//! puts x and the gradient by v in their places, then the products of both with u and by_y; what rows, segments and slices add to a gradient are
//! terms in the workspace, which are summed in order.

mod backward;
mod hopper;
mod launch;
mod plan;
mod planned;
mod product;
mod skip;
#[cfg(all(test, feature = "cuda"))]
mod tests;
mod walk;

pub(super) use backward::{backward, workspace_len as backward_workspace_len};
pub(super) use planned::plan;

use super::{Problem, SIGNATURE, Targets};
use crate::cuda::{Numbers, Queue, Stream};
use crate::error::Result;
use crate::ops::checked::needed;
use crate::ops::on_cuda::single_only;
use crate::ops::op::Problem as _;
use crate::tensor::{DType, RawViewMut, View};
use plan::{Layout, Plan, Shape};
use product::{Factor, Product, To};
use walk::{Places, Scan};

const OP: &str = SIGNATURE.name;
/// Terms of bf16 that have all bits of an f32, and those that have more than tf32 has.
const PRECISE: usize = 3;
const SHORT: usize = 2;

fn shape(problem: &Problem<'_>) -> Shape {
    let &Problem { batch, dim, dstate, seqlen, .. } = problem;
    Shape { batch, dim, dstate, seqlen, pooled: problem.pool.is_some() }
}

/// Elements of the saved states.
pub(super) fn checkpoints_len(problem: &Problem<'_>) -> usize {
    plan::checkpoints_len(&shape(problem))
}

/// A problem as kernels see it.
#[derive(Clone, Copy)]
struct Call<'p, 'a> {
    problem: &'p Problem<'a>,
    plan: Plan,
    /// Terms that an f32 is split into in products.
    terms: usize,
    /// Bounds, or the sequence of each step, in the direction of the scan.
    sequences: Option<View<'a>>,
    /// Sequences of bounds, or of the axis that states have for them.
    sequence_count: usize,
}

impl<'p, 'a> Call<'p, 'a> {
    fn new(problem: &'p Problem<'a>, numbers: Numbers, tf32: bool) -> Result<Self> {
        single_only(problem.double, "a simplified scan in f64")?;
        let (sequences, sequence_count) = (problem.sequences.along(problem.reverse), problem.sequences.count(&problem.segments));
        let (plan, terms) = (Plan::new(shape(problem), numbers), if tf32 { SHORT } else { PRECISE });
        Ok(Call { problem, plan, terms, sequences, sequence_count })
    }

    /// Whether states have an axis of sequences within a row.
    fn numbered(&self) -> bool {
        self.problem.sequences.are_numbered(&self.problem.segments)
    }

    /// Numbers along time in a workspace, (batch, state, step).
    fn numbers(&self, address: u64) -> View<'static> {
        let &Problem { batch, dstate, seqlen, .. } = self.problem;
        let strides = [(dstate * self.plan.pitch) as isize, self.plan.pitch as isize, 1];
        let (at, shape) = (core::ptr::without_provenance(address as usize), [batch, dstate, seqlen]);
        // SAFETY: kernels alone read through the view; the workspace has as many elements.
        let view = unsafe { View::from_raw_parts(at, DType::Complex64, self.problem.u.device(), &shape, &strides) };
        view.expect("a problem's sizes are within limits")
    }

    /// A map (row, depth) for every row of the batch.
    fn map(&self, view: View<'a>, transposed: bool) -> Factor<'a> {
        let view = if transposed { view.permute(&[1, 0]) } else { view };
        Factor { view: view.expand(0, self.problem.batch), conjugate: transposed }
    }

    /// `v = B u`
    fn driven(&self, numbers: u64) -> Product<'a> {
        let p = self.problem;
        Product {
            a: self.map(p.b, false),
            b: Factor { view: p.u, conjugate: false },
            factor: 1.0,
            terms: self.terms,
            to: To::Tensor { view: self.numbers(numbers), skip: None },
        }
    }

    /// `y = C x`, or what becomes of its real part.
    fn output<'y>(&self, numbers: u64, y: &'y RawViewMut) -> Product<'y>
    where
        'a: 'y,
    {
        let p = self.problem;
        Product {
            a: self.map(p.c, false),
            b: Factor { view: self.numbers(numbers), conjugate: false },
            factor: p.real_factor.unwrap_or(1.0),
            terms: self.terms,
            to: To::Tensor { view: y.as_read(), skip: p.d.map(|d| (d, p.u)) },
        }
    }
}

/// Addresses of the parts of a workspace.
fn places(workspace: &RawViewMut) -> impl Fn(usize) -> u64 {
    let base = (workspace.as_mut_ptr() as u64).next_multiple_of(16);
    move |offset| base + 4 * offset as u64
}

pub(super) fn forward(stream: &Queue<'_>, problem: &Problem<'_>, targets: &Targets) -> Result<()> {
    let call = Call::new(problem, stream.numbers(), stream.allows_tf32())?;
    let workspace = needed(problem.op(), &targets.workspace)?;
    let (layout, at) = (Layout::forward(&call.plan), places(workspace));
    let checkpoints = targets.checkpoints.as_ref().map(|v| v.as_mut_ptr() as u64);
    let places = Places { numbers: at(layout.numbers), ends: at(layout.ends), checkpoints: checkpoints.unwrap_or(0) };
    let scan = Scan { after: targets.last_state, states: targets.y.is_some(), checkpoints: checkpoints.is_some() };
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the workspace has the size
    // of this layout.
    unsafe {
        call.driven(places.numbers).launch(stream)?;
        scan.launch(&call, stream, &places)?;
        targets.y.as_ref().map_or(Ok(()), |y| call.output(places.numbers, y).launch(stream))
    }
}

/// Elements of the workspace of a forward pass.
pub(super) fn workspace_len(stream: &Stream, problem: &Problem<'_>) -> Result<usize> {
    Ok(Layout::forward(&Call::new(problem, stream.numbers(), stream.allows_tf32())?.plan).len)
}
