//! One sequence over several ranks, each of which has a slice of its time.
//!
//! A scan is affine in its state, so a slice is to the others what its [`Summary`] says: it turns the state `h` that enters it into
//! `state + decay h`. Ranks exchange these, [`combine`] those of the ranks before them in the direction of the scan, and scan their slices from
//! the state that comes out. How they exchange is the caller's business.
//!
//! **Backward.** Gradients flow the other way, by the conjugate decays. `backward` without a cotangent of the final state gives, as the gradient of
//! the initial state, what a slice sends to the ranks before it; combined in reverse order these are the cotangent of each slice's final state, with
//! which `backward` gives every gradient of the slice. So nothing differentiates a summary: `docs/maths/sequence_parallel.md` has why.
//!
//! **Packed sequences.** States have one row for each sequence with [`crate::Sequences::CuSeqlens`], a sequence without steps in a slice hands its
//! state on, and its decay is one. Where states have none ([`crate::Sequences::SeqIdx`] and one state for each row), the decay is zero if a
//! sequence starts inside of the slice; whether one starts between two slices only the caller can see.

use super::linear_scan::{self, Args, Outputs};
pub use super::summary::Summary;
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::tensor::{MAX_RANK, View, ViewMut};

const OP: &str = "combine";

/// The state that slices, one after the other, leave behind: `h[r] = decays[r] h[r-1] + states[r]`, a linear scan over ranks.
///
/// `states` and `decays` are (ranks, ..) with the summaries of the ranks in the order of the scan; a decay of fewer axes is expanded along the
/// last ones. `initial_state` is the state before the first slice, zero if there is none. For gradients the ranks are those after the slice, the
/// last one first, and decays are conjugate.
///
/// # Errors
/// Arguments of wrong shapes, types or devices, an output that overlaps them.
pub fn combine(
    exec: &Exec,
    states: View<'_>,
    decays: View<'_>,
    initial_state: Option<View<'_>>,
    mut out: ViewMut<'_>,
) -> Result<()> {
    let (rank, shape) = (states.rank(), states.shape());
    let fewer = decays.rank() <= rank && decays.shape()[..] == shape[..decays.rank()];
    if rank == 0 || decays.rank() == 0 || !fewer {
        let expected = "the first axes of `states`, ranks among them".into();
        return Err(Error::Rank { op: OP, argument: "decays", expected, got: decays.shape(), help: String::new() });
    }
    for (argument, got) in [("initial_state", initial_state.map(|view| view.shape())), ("out", Some(out.shape()))] {
        if let Some(got) = got.filter(|got| got[..] != shape[1..]) {
            return Err(Error::Shape {
                op: OP,
                argument,
                expected: crate::tensor::Shape::of(&shape[1..]),
                got,
                help: String::new(),
            });
        }
    }
    let decays = (decays.rank()..rank).fold(decays, |view, axis| view.expand(axis, shape[axis]));
    // a linear scan has four axes besides time
    if rank == MAX_RANK {
        return (0..shape[1]).try_for_each(|row| {
            let initial = initial_state.map(|view| view.index(0, row));
            combine(exec, states.index(1, row), decays.index(1, row), initial, out.reborrow().index(0, row))
        });
    }
    // ranks are time
    let order: Vec<usize> = (1..rank).chain([0]).collect();
    let args = Args { initial_state, ..Args::new(decays.permute(&order), states.permute(&order)) };
    linear_scan::forward(exec, &args, &mut Outputs::default().final_state(out))
}
