//! Forward: `y` and the final states.

use super::super::Problem;
use super::super::plan::Plan;
use super::*;
use crate::cpu::Kernel;
use crate::exec::Exec;

pub(crate) fn forward(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    if targets.y.is_none() && targets.final_states.is_none() {
        return;
    }
    match problem.double {
        true => run::<f64>(exec, problem, targets),
        false => run::<f32>(exec, problem, targets),
    }
}

fn run<T: Real>(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    let plan = Plan::new(problem);
    let tiling = Tiling::of(&plan);
    let scratch = || Scratch::<T>::new(tiling, plan.tile_channels, 2);
    exec.for_each(plan.groups.len() * plan.blocks, scratch, |scratch, job| {
        let (group, block) = (job / plan.blocks, job % plan.blocks);
        exec.level().dispatch(Job { problem, targets, plan: &plan, tiling, scratch, group, block });
    });
}

struct Job<'j, 'a, T> {
    problem: &'j Problem<'a>,
    targets: &'j Targets,
    plan: &'j Plan,
    tiling: Tiling,
    scratch: &'j mut Scratch<T>,
    group: usize,
    block: usize,
}

impl<T: Real> Kernel for Job<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Job { problem, targets, plan, tiling, scratch, group, block } = self;
        let (window, sums) = scratch.tiles.split_at_mut(tiling.len);
        let (window, sums) = (window.as_mut_ptr(), sums.as_mut_ptr());
        let mut filters = Filters { weight: &mut scratch.weight, bias: &mut scratch.bias, width: problem.width };
        for (first, channels) in tiles(plan, problem.dim, block) {
            filters.load(simd, tiling, &problem.weight, problem.bias.as_ref(), first, channels);
            for piece in plan.group(group) {
                let steps = piece.end - piece.start;
                // SAFETY: pieces and channels are within the checked views; the tiles hold a piece with its surroundings.
                unsafe {
                    let y = targets.y.as_ref().map(|v| plane_mut(v, piece.batch).at(first, piece.start));
                    let Some(segment) = piece.segment else {
                        if let Some(y) = y {
                            tiling.zero(sums, channels, 0, steps);
                            tiling.store(simd, sums, y, channels, steps);
                        }
                        continue;
                    };
                    load_window(simd, tiling, problem, segment, (piece.start, steps), (first, channels), window);
                    if let Some(y) = y {
                        convolve(simd, tiling, &filters, (channels, steps), window, sums, problem.silu, false);
                        tiling.store(simd, sums, y, channels, steps);
                    }
                    let segment = &problem.segments.list[segment];
                    if let (Some(target), Some(at), true) = (&targets.final_states, segment.last, piece.end == segment.end) {
                        let target = state_plane_mut(target, at).at(first, 0);
                        tiling.store(simd, window.add(tiling.at(steps)), target, channels, problem.width - 1);
                    }
                }
            }
        }
    }
}
