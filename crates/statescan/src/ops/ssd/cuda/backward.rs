//! Backward: states and their gradients into slots, then gradients chunk by chunk, then sums over chunks and blocks.
//!
//! Nothing is kept from the forward pass: its states are computed again, which costs less than writing and reading them would.

use super::forward::WalkRoute;
use super::half_states;
use super::hopper::fused::{self, Parts};
use super::portable::gradients::{self, Places};
use super::portable::maps::{Maps, Of};
use super::route::{ByChunk, Fused, Layout, Route, walks};
use super::walk::{self, Walk};
use super::{Call, Hardware, refuse_double};
use crate::cuda::{Queue, Stream, Sum, sum_terms};
use crate::error::Result;
use crate::ops::checked::needed;
use crate::ops::on_cuda::Pass;
use crate::ops::ssd::problem::Problem;
use crate::ops::ssd::{GradientTargets, OP, Sources};
use crate::tensor::RawViewMut;

/// Elements of the workspace, whatever is given and asked for.
pub(crate) fn workspace_len(stream: &Stream, problem: &Problem<'_>) -> Result<usize> {
    Route::most_workspace(problem, Hardware::of(stream))
}

pub(crate) fn backward(queue: &Queue<'_>, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) -> Result<()> {
    run(queue, problem, sources, targets, None)
}

/// `ends`: what the first of two phases has left, if this is the second one.
pub(super) fn run(
    stream: &Queue<'_>,
    problem: &Problem<'_>,
    sources: &Sources<'_>,
    targets: &GradientTargets,
    ends: Option<u64>,
) -> Result<()> {
    refuse_double(problem)?;
    let workspace = needed(OP, &targets.workspace)?;
    let base = (workspace.as_mut_ptr() as u64).next_multiple_of(16);
    let call = Call::new(problem, sources.y);
    let pass = Backward { stream, sources, targets, call, base, ends };
    let route = Route::new(&call, sources, targets, Hardware::of(stream))?;
    debug_assert!(route.workspace_len(problem) <= workspace.as_read().len(), "the workspace is that of the route, or larger");
    match route {
        Route::HalfStates(routes) => pass.run_half_states(&routes),
        Route::Fused(route) => {
            let layout = Layout::new(problem, &route.demand(problem));
            pass.run_fused(&route, &layout, Parts::default())?;
            pass.sum(&layout, route.fused.plan.slices, Some(fused::chunks(problem)))
        }
        Route::ByChunk(route) => {
            let layout = Layout::new(problem, &route.demand(problem));
            pass.run_by_chunk(&route, &layout)?;
            pass.sum(&layout, route.slices, Some(route.tiles.chunks(problem.seqlen)))
        }
    }
}

/// A backward pass, and where its workspace begins.
///
/// The views of its problem, sources and targets were checked against each other, and those who made them vouch for the memory behind them; the
/// workspace has the size of the layout that its route asks for.
pub(super) struct Backward<'p, 'a> {
    pub stream: &'p Queue<'p>,
    pub sources: &'p Sources<'a>,
    pub targets: &'p GradientTargets,
    pub call: Call<'p, 'a>,
    pub base: u64,
    /// The workspace that the first of two phases has filled on its walk backwards.
    pub ends: Option<u64>,
}

impl Backward<'_, '_> {
    /// The address of a part of the workspace.
    fn at(&self, offset: usize) -> u64 {
        self.base + 4 * offset as u64
    }

    fn places(&self, layout: &Layout) -> Places {
        let [states, gradients, a, bias, skip] =
            [layout.states, layout.gradients, layout.a, layout.bias, layout.skip].map(|offset| self.at(offset));
        Places { states, gradients, a, bias, skip }
    }

    /// Walks forwards and backwards, those that are wanted.
    fn walk(&self, walks: &[Walk<'_, '_>; 2], routes: &[Option<WalkRoute>; 2], layout: &Layout) -> Result<()> {
        let slots = [layout.states, layout.gradients].map(|offset| self.at(offset));
        let workspace = (layout.ends_len > 0).then(|| self.at(layout.ends));
        for ((walk, route), slots) in walks.iter().zip(routes).zip(slots) {
            let workspace = if walk.part == Pass::Rest { self.ends } else { workspace };
            if let Some(route) = route {
                // SAFETY: what a pass is made of.
                unsafe { route.launch(self.stream, walk, walk::Addresses { workspace, slots })? };
            }
        }
        Ok(())
    }

    /// All gradients in one launch after the walks.
    fn run_fused(&self, route: &Fused, layout: &Layout, parts: Parts) -> Result<()> {
        let slots = route.fused.plan.slots(self.call.problem);
        let mut walks = walks(self.call, self.sources, self.targets, slots);
        if self.ends.is_some() && route.walks[1].plan.has_two_phases() {
            walks[1].part = Pass::Rest;
        }
        // walks in segments, or of packed sequences, share what lies in the workspace
        walks[1].beside = layout.ends_len == 0;
        self.walk(&walks, &route.walks.map(|route| Some(WalkRoute::Hopper(route))), layout)?;
        let [b, c, walks, maps] = [layout.b, layout.c, layout.ends, layout.maps].map(|offset| self.at(offset));
        let addresses = fused::Addresses { places: &self.places(layout), terms: &fused::Terms { b, c, walks, maps } };
        // SAFETY: what a pass is made of; the walks have filled the slots.
        unsafe { route.fused.launch(self.stream, &self.call, self.targets, &addresses, parts) }
    }

    /// One half of the states after the other.
    fn run_half_states(&self, routes: &[Fused; 2]) -> Result<()> {
        let p = self.call.problem;
        let Some(problems) = half_states::of_states(p) else { unreachable!("states that have two routes are halved") };
        let mut base = self.base;
        let [x, z, dt, dt_a] = half_states::lens(p).map(|len| {
            let start = base;
            base += 4 * len as u64;
            start
        });
        let parts = Parts { x, z, dt, dt_a };
        let layouts = [0, 1].map(|at| Layout::new(&problems[at], &routes[at].demand(&problems[at])));
        debug_assert_eq!(layouts[0].bias, layouts[1].bias, "the second half adds to terms of the first");
        for (at, (half, sources, targets)) in half_states::of_each(p, self.sources, self.targets).iter().enumerate() {
            let (problem, route, layout) = (&problems[at], &routes[at], &layouts[at]);
            let pass = Backward { stream: self.stream, sources, targets, call: Call::new(problem, sources.y), base, ends: None };
            pass.run_fused(route, layout, parts)?;
            // terms of parameters are summed after the last half
            pass.sum(layout, route.fused.plan.slices, (*half == fused::HalfStates::Second).then(|| fused::chunks(problem)))?;
        }
        Ok(())
    }

    /// The gradients within chunks, and those of B and C, one after another.
    fn run_by_chunk(&self, route: &ByChunk, layout: &Layout) -> Result<()> {
        let (stream, t, tiles, places) = (self.stream, self.targets, &route.tiles, self.places(layout));
        let gated = route.keeps_gated.then(|| self.at(layout.gated));
        let call = &Call { gated, ..self.call };
        self.walk(&route.walks_of(*call, self.sources, t), &route.walks, layout)?;
        if t.x.is_some() || t.d.is_some() || t.need_steps() {
            // SAFETY: what a pass is made of; the walks have filled the slots.
            unsafe { gradients::launch(stream, call, self.sources, t, tiles, &places)? };
        }
        let maps = [(Of::B, &t.b, places.gradients, layout.b), (Of::C, &t.c, places.states, layout.c)];
        for (of, target, slots, terms) in maps {
            let Some(target) = target else { continue };
            let maps = Maps { of, target, slots, terms: self.at(terms), slices: route.slices };
            // SAFETY: as above.
            unsafe { maps.launch(stream, call, self.sources, tiles)? };
        }
        Ok(())
    }

    /// Sums over so many slices into the gradients by B and C, and over so many chunks of each row into those by A, D and dt_bias.
    fn sum(&self, layout: &Layout, slices: usize, chunks: Option<usize>) -> Result<()> {
        let t = self.targets;
        let chunks = chunks.map(|chunks| self.call.problem.batch * chunks);
        let slices = (slices > 1).then_some(slices);
        let sum = |target: &Option<RawViewMut>, terms, count: Option<usize>| {
            target.zip(count).map(|(to, count)| Sum { to, terms: self.at(terms), count })
        };
        let sums = [
            sum(&t.a, layout.a, chunks),
            sum(&t.d, layout.skip, chunks),
            sum(&t.dt_bias, layout.bias, chunks),
            sum(&t.b, layout.b, slices),
            sum(&t.c, layout.c, slices),
        ];
        // SAFETY: what a pass is made of; every term has been written.
        unsafe { sum_terms(self.stream, &sums.into_iter().flatten().collect::<Vec<_>>()) }.map_err(Into::into)
    }
}
