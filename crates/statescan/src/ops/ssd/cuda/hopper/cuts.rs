//! States at positions on Hopper: the walk goes over whole sequences, and leaves the state before the chunk of each cut; a second kernel adds the steps between
//! the chunk's first one and the cut. So cuts neither divide chunks nor make segments short.

use super::walk::{Params, Route, WALK_LAYOUT, WALK_STATE};
use super::{PACKED, TOOLS};
use crate::cuda::{COMMON, Config, HOPPER, Launch, MMA, Program, Queue, SEQUENCES, SLOTS, STEP_SIZE};
use crate::error::Result;
use crate::ops::on_cuda::Pass;
use crate::ops::sequences::Sequences;
use crate::ops::ssd::cuda::walk::{Addresses, Cuts, Walk};
use crate::ops::ssd::cuda::{INPUTS, TOO_MANY};
use crate::ops::ssd::problem::Problem;
use crate::ops::states::Pool;
use crate::tensor::View;

pub(in crate::ops::ssd::cuda) static KERNEL: Program<Params> =
    Program::new("ssd_cuts", &[COMMON, STEP_SIZE, MMA, HOPPER], include_str!("cuts.cu")).including(&[
        SLOTS,
        SEQUENCES,
        INPUTS,
        PACKED,
        TOOLS,
        WALK_LAYOUT,
        WALK_STATE,
    ]);

/// Most blocks of a launch along its second axis; blocks take several cuts where there are more.
const MOST: usize = 65_535;

/// The problem of whole sequences, and their cuts, where there are some.
pub(in crate::ops::ssd::cuda) fn whole<'a>(p: &Problem<'a>) -> Option<(Problem<'a>, Cuts<'a>)> {
    let (Sequences::CuSeqlens(bounds), Some(pool)) = (p.sequences, p.pool) else { return None };
    let pieces = pool.pieces().filter(|&pieces| pieces > 1 && !pool.read.is_empty())?;
    let (shape, strides) = ([bounds.len() / pieces + 1], [bounds.strides()[0] * pieces as isize]);
    // SAFETY: these are some of the bounds, of which there is one more than pieces of all sequences.
    let every = unsafe { View::from_raw_parts(bounds.as_ptr(), bounds.dtype(), bounds.device(), &shape, &strides) }.ok()?;
    let last = Pool { write: pool.write.index(1, pieces - 1), ..pool };
    Some((Problem { sequences: Sequences::CuSeqlens(every), pool: Some(last), ..p.clone() }, Cuts { bounds, pool }))
}

pub(in crate::ops::ssd::cuda) fn config(route: &Route, walk: &Walk<'_, '_>) -> Config {
    route.plan.config(walk, Pass::Ends)
}

/// Computes the states at the cuts of a walk that was launched before.
///
/// # Safety
/// The views and the addresses are those of the walk.
pub(in crate::ops::ssd::cuda) unsafe fn launch(
    stream: &Queue<'_>,
    (route, walk): (&Route, &Walk<'_, '_>),
    addresses: Addresses,
) -> Result<()> {
    let cuts = walk.cuts.map_or(0, |cuts| cuts.pool.write.len() - cuts.pool.read.len()).min(MOST);
    let units = u32::try_from(walk.call.problem.nheads * route.plan.column_tiles).map_err(|_| TOO_MANY)?;
    let line = Launch::line(units, route.plan.threads_of_unit() as u32, 0);
    let params = route.params(stream, walk, addresses)?;
    // SAFETY: the caller's contract; the configuration has the types of everything that is read and written.
    unsafe { stream.launch(&KERNEL, || config(route, walk), Launch { grid: [units, cuts as u32, 1], ..line }, &params) }
        .map_err(Into::into)
}
