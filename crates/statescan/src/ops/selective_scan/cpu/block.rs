//! One tile of the backward pass, stage by stage: B and C for all channels, and for each block of these its inputs, the sweep, what follows
//! from the sums over states, and the results.

use super::super::Projection;
use super::backward::{At, Job};
use super::here::{Here, double};
use super::inputs::{CopyRows, Map, TilesMut};
use super::kept::Kept;
use super::lanes::Lanes;
use super::process::{Gate, load_gate, load_tiles, loading};
use super::scratch::Scratch;
use super::sweep::{AHEAD, ByMap, Sweep, Walked, WalkedMut, WalkedTiles, work};
use super::{Context, Types, walk};
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::{self, PlaneMut, Prefetch, STEPS};
use crate::cpu::{Array, Cells};
use crate::ops::CHECKPOINT;
use crate::ops::discretization::Discretization;
use crate::ops::rules::FieldKind;
use crate::ops::sequences::Segment;
use crate::tensor::RawViewMut;

impl<E: Types> Job<'_, '_, '_, E> {
    /// One tile of time of all channels of the job; `here` is its first block.
    #[inline(always)]
    pub(super) fn tile<S: Isa>(&mut self, simd: S, here: Here<'_, '_>, at: At) {
        let problem = here.problem;
        let (map, Scratch { b, c, db, dc, .. }) = (STEPS * problem.dstate * E::K::PARTS, &mut self.scratch);
        here.load_map::<E, S>(simd, &problem.b, b.reborrow());
        here.load_map::<E, S>(simd, &problem.c, c.reborrow());
        here.double_map::<E>(c);
        Cells::clear_each(simd, [db.cells(), dc.cells()], map);
        for (i, here) in here.each_block().enumerate() {
            self.block(simd, &here, i, at);
        }
        match self.pass.context.plan.whole_groups {
            true => self.store_maps(simd, &here, at),
            false => self.leave_maps(&here, at),
        }
    }

    /// The tile of the job's `i`-th block.
    #[inline(always)]
    fn block<S: Isa>(&mut self, simd: S, here: &Here<'_, '_>, i: usize, at: At) {
        let Here { problem, lanes, steps, .. } = *here;
        let counted = self.pass.context.counted();
        let mut prefetch = Prefetch::new();
        self.restore(simd, here, at);
        self.ahead(here, at, &mut prefetch);
        let vectors = problem.dstate / lanes.per_channel;
        prefetch.spread(loading(lanes.vectors(steps), problem.z.is_some()) + work(vectors, steps));
        let bounded = self.load(simd, here, i, &mut prefetch);
        self.sweep(simd, here, i, (i * counted, bounded), &mut prefetch);
        let end = (i + 1) * counted;
        if let Some(walker) = &mut self.walker {
            walker.wait(end);
        }
        self.finish_steps(simd, here, i);
        if let Some(walker) = &self.walker {
            walker.done(end);
            if here.is_last_block() {
                walker.claim_next();
            }
        }
        self.store(simd, here);
    }

    /// Loads the states before the tile: the caller's, or saved ones.
    #[inline(always)]
    fn restore<S: Isa>(&mut self, simd: S, here: &Here<'_, '_>, at: At) {
        let (checkpoints, lanes, Scratch { h, staging, .. }) = (&self.pass.context.checkpoints, here.lanes, &mut self.scratch);
        let sizes = [here.problem.dstate, E::K::PARTS];
        let (rows, count) = (sizes[0] * sizes[1], here.block.count);
        debug_assert!(here.block.first + count <= checkpoints.padded_dim, "a row has the block's channels");
        debug_assert!(h.has(0, rows * lanes.channels), "room for the block's states");
        if at.number == 0 {
            return here.load_initial_state::<E, S>(simd, h.reborrow(), staging);
        }
        let Some(last_row) = rows.checked_sub(1) else { return };
        let from = &self.pass.saved[checkpoints.at(at.segment, at.number) + here.block.first..];
        let from = Array::of(&from[..last_row * checkpoints.padded_dim + count]);
        let mut to = if lanes.one() { h.reborrow() } else { staging.reborrow() };
        to.clear(rows * lanes.channels);
        let (from_pitch, to_pitch) = (checkpoints.padded_dim, lanes.channels);
        CopyRows { to, from_pitch, to_pitch, rows, count }.run(simd, from);
        lanes.deal(staging.read(), sizes, h);
    }

    /// Loads what the sweep reads and clears what it adds to. Whether no exponent is near the ends of the range.
    #[inline(always)]
    fn load<S: Isa>(&mut self, simd: S, here: &Here<'_, '_>, i: usize, prefetch: &mut Prefetch<AHEAD>) -> bool {
        let Here { problem, lanes, steps, .. } = *here;
        let (parameters, width) = (self.kept.parameters.of(i), E::T::lanes::<S>());
        let (vectors, rows) = (lanes.vectors(steps), lanes.vectors(steps) * lanes.per_channel);
        let Scratch { walked, own, staging, x, slope, cotangent, gate, gate_slope, longest, .. } = &mut self.scratch;
        let WalkedMut { dt, dt_a, u, y, .. } = own.as_mut().unwrap_or(&mut *walked).memory();
        let (x, slope, longest) = (x.reborrow(), Some(slope.reborrow()), longest.reborrow());
        let mut tiles = TilesMut { x, dt, dt_a, u: Some(u), slope, y, longest };
        load_tiles::<_, _, true, _>(simd, here, &parameters, &mut tiles, staging, prefetch);
        let bounded = tiles.cells().bounded(simd, &parameters);
        match &self.pass.sources.y {
            Some(dy) => lanes.load(simd, here.area(dy), cotangent.reborrow(), staging),
            None => cotangent.clear(vectors * width),
        }
        if let Some(z) = &problem.z {
            load_gate(simd, (here, z), gate, Gate::Differentiate(gate_slope.reborrow()), staging, prefetch);
        }
        let (own, walked) = both(own, walked);
        for vector in 0..vectors {
            let at = vector * width;
            let dout: V<E::T, S> = cotangent.load(simd, at);
            own.p.store(at, if problem.z.is_some() { dout * gate.load(simd, at) } else { dout });
        }
        match problem.dt_a {
            Some(_) => Cells::clear_each(simd, [walked.du, walked.ddt, walked.ddt_a], rows * width),
            None => Cells::clear_each(simd, [walked.du, walked.ddt], rows * width),
        }
        if !lanes.one() {
            lanes.repeat_inputs(simd, [own.u, own.dt, own.dt_a], steps, [walked.u, walked.dt, walked.dt_a]);
            lanes.repeat(simd, own.p, steps, walked.p);
            walked.y.clear(rows * width);
        }
        bounded
    }

    /// Walks the states forwards and back; vectors of states are counted from `counted` on.
    #[inline(always)]
    fn sweep<S: Isa>(
        &mut self,
        simd: S,
        here: &Here<'_, '_>,
        i: usize,
        (counted, bounded): (usize, bool),
        prefetch: &mut Prefetch<AHEAD>,
    ) {
        let Here { problem, lanes, steps, .. } = *here;
        let Scratch { walked, stored, h, b, c, db, dc, .. } = &mut self.scratch;
        let Kept { parameters, g, da, db: by_own_b, dc: by_own_c, .. } = self.kept.of(i);
        let mut sweep = Sweep {
            walked: walked.cells(),
            shared: problem.dt_a.is_none(),
            a: parameters.a,
            b: Map::new::<E>(&problem.b, b.read(), parameters.b, lanes, problem.dstate),
            c: Map::new::<E>(&problem.c, c.read(), parameters.c, lanes, problem.dstate),
            h: h.read(),
            g: g.into_cells(),
            da: da.into_cells(),
            by_b: ByMap::new(&problem.b, db, by_own_b),
            by_c: ByMap::new(&problem.c, dc, by_own_c),
            stored: *stored,
            steps,
            dstate: problem.dstate,
            lanes,
            prefetch,
            walker: &mut self.walker,
            counted,
        };
        walk::<E, S>(simd, problem, lanes.per_channel, bounded, &mut sweep)
    }

    /// From the sums over states to the gradients by x, dt and z, and adds to those by D and the bias.
    #[inline(always)]
    fn finish_steps<S: Isa>(&mut self, simd: S, here: &Here<'_, '_>, i: usize) {
        let Here { problem, lanes, steps, .. } = *here;
        let Scratch { x, slope, cotangent, gate_slope, own, walked, .. } = &mut self.scratch;
        let ((own, walked), mut kept) = (both(own, walked), self.kept.of(i));
        let by_gate = ByGate { lanes, cotangent: cotangent.read(), gate_slope: gate_slope.read() };
        let scaled = problem.options.discretization != Discretization::Dirac;
        let width = E::T::lanes::<S>();
        let [_, skip] = kept.parameters.bias_and_skip(simd);
        let (mut dd, mut dbias): (V<E::T, S>, V<E::T, S>) = (kept.dd.load(simd, 0), kept.dbias.load(simd, 0));
        for vector in 0..lanes.vectors(steps) {
            let at = vector * width;
            let (x, dt, dout) = (x.load(simd, at), own.dt.load(simd, at), own.p.load(simd, at));
            let (by_u, mut by_dt) = (lanes.summed(simd, walked.du, vector), lanes.summed(simd, walked.ddt, vector));
            let mut by_x = if problem.d.is_some() { dout * skip } else { V::constant(simd, 0.0) };
            if scaled {
                by_x = by_u.mul_add(dt, by_x);
                by_dt = by_u.mul_add(x, by_dt);
            } else {
                by_x = by_x + by_u;
            }
            let by_raw = by_dt * slope.load(simd, at);
            dd = dout.mul_add(x, dd);
            dbias = dbias + by_raw;
            own.du.store(at, by_x);
            own.ddt.store(at, by_raw);
            if self.pass.targets.z.is_some() {
                by_gate.vector(simd, [own.y, walked.y], vector);
            }
            if problem.dt_a.is_some() {
                own.ddt_a.store(at, lanes.summed(simd, walked.ddt_a, vector));
            }
        }
        kept.dd.store(0, dd);
        kept.dbias.store(0, dbias);
    }

    /// Stores the gradients that vary with time and channel.
    #[inline(always)]
    fn store<S: Isa>(&mut self, simd: S, here: &Here<'_, '_>) {
        let (targets, Scratch { own, walked, staging, .. }) = (self.pass.targets, &mut self.scratch);
        let WalkedMut { y, du, ddt, ddt_a, .. } = own.as_mut().unwrap_or(walked).memory();
        let results = [(&targets.x, Some(du)), (&targets.dt, Some(ddt)), (&targets.dt_a, ddt_a), (&targets.z, Some(y))];
        for (target, from) in results {
            let (Some(target), Some(from)) = (target, from) else { continue };
            here.lanes.store(simd, from.read(), here.area_mut(target), staging);
        }
    }

    /// Stores the gradients by B and C of a tile, where no other job has part of them.
    #[inline(always)]
    fn store_maps<S: Isa>(&mut self, simd: S, here: &Here<'_, '_>, at: At) {
        let (dstate, parts, Scratch { db, dc, .. }) = (here.problem.dstate, E::K::PARTS, &mut self.scratch);
        let len = STEPS * dstate * parts;
        if parts == 2 {
            double(dc.slice(0, len));
        }
        for (target, sum) in [(&self.pass.targets.b, db), (&self.pass.targets.c, dc)] {
            let Some(Projection::Varying(target)) = target else { continue };
            // steps and states exchanged
            let plane = map_target(target, here.segment, at.range, here.start).transposed();
            tile::store_parts(simd, sum.read(), parts, STEPS, plane.area(here.steps, dstate));
        }
    }

    /// Leaves the gradients by B and C of a tile, to be added to those of other ranges of channels.
    #[inline(always)]
    fn leave_maps(&self, here: &Here<'_, '_>, at: At) {
        let (partials, Scratch { db, dc, .. }) = (self.partials, &self.scratch);
        let rows = here.problem.dstate * E::K::PARTS;
        let double_c = if E::K::PARTS == 2 { 2.0 } else { 1.0 };
        for (partial, sum, factor) in [(&partials.b, db, 1.0), (&partials.c, dc, double_c)] {
            let Some(partial) = partial else { continue };
            for row in 0..rows {
                debug_assert!(sum.has(row * STEPS, here.steps), "the sums of the row are there");
                let position = partials.map_position(at.range, here.segment.batch, row, here.start);
                // SAFETY: no other job has the range of channels and the row of the batch.
                let (mut to, from) = (unsafe { partial.part(position) }, sum.shared(row * STEPS, here.steps));
                for (to, from) in to.slice(0, here.steps).iter_mut().zip(from) {
                    *to = *from * E::T::from_f64(factor);
                }
            }
        }
    }

    /// Has what a block of channels writes prefetched, and what is read after it.
    #[inline(always)]
    fn ahead(&self, here: &Here<'_, '_>, at: At, prefetch: &mut Prefetch<AHEAD>) {
        let (Context { plan, checkpoints, .. }, targets, problem) = (self.pass.context, self.pass.targets, here.problem);
        for target in [&targets.x, &targets.dt, &targets.dt_a, &targets.z].into_iter().flatten() {
            prefetch.add(here.area_mut(target).read());
        }
        let following = at.number.checked_sub(self.ahead);
        let next = here.next(following.map(|number| here.segment.start + number * CHECKPOINT));
        if here.is_last_block() {
            for target in [&targets.b, &targets.c].into_iter().filter(|_| plan.whole_groups) {
                if let Some(Projection::Varying(target)) = target {
                    let plane = map_target(target, here.segment, at.range, here.start);
                    prefetch.add(plane.read().area(problem.dstate, here.steps));
                }
            }
            let maps = next.iter().flat_map(|next| [&problem.b, &problem.c].map(|map| next.map_area(map)));
            maps.flatten().for_each(|area| prefetch.add(area));
        }
        let Some(next) = next else { return };
        if let Some(number) = if here.is_last_block() { following } else { Some(at.number) }.filter(|&number| number > 0) {
            let from = &self.pass.saved[checkpoints.at(at.segment, number)..];
            let from = from.as_ptr().wrapping_add(next.block.first);
            prefetch.add_rows(from, checkpoints.padded_dim, problem.dstate * E::K::PARTS, next.block.count);
        }
        let inputs =
            [Some(&problem.x), Some(&problem.dt), problem.dt_a.as_ref(), self.pass.sources.y.as_ref(), problem.z.as_ref()];
        inputs.into_iter().flatten().for_each(|view| prefetch.add(next.area(view)));
    }
}

/// The tiles as they are loaded and stored, and those that the sweep walks, which may be the same.
#[inline(always)]
fn both<'b, T: Real>(
    own: &'b mut Option<WalkedTiles<'_, T>>,
    walked: &'b mut WalkedTiles<'_, T>,
) -> (Walked<'b, T>, Walked<'b, T>) {
    let walked = walked.cells();
    (own.as_mut().map_or(walked, WalkedTiles::cells).get(), walked.get())
}

/// The inputs of the gradient by the gate.
struct ByGate<'g, T> {
    lanes: Lanes,
    cotangent: Array<'g, T>,
    gate_slope: Array<'g, T>,
}

impl<T: Real> ByGate<'_, T> {
    /// The gradient by a vector of z, in place of the output before the gate: `y`, and what the sweep adds to it where a channel has
    /// several lanes.
    #[inline(always)]
    fn vector<S: Isa>(&self, simd: S, [y, swept]: [Cells<'_, T>; 2], vector: usize) {
        let (lanes, at) = (self.lanes, vector * T::lanes::<S>());
        let mut out: V<T, S> = y.load(simd, at);
        if !lanes.one() {
            out = out + lanes.summed(simd, swept, vector);
        }
        y.store(at, self.cotangent.load(simd, at) * out * self.gate_slope.load(simd, at));
    }
}

/// The gradient of B or C of a group, from a step on: states x steps.
fn map_target(target: &RawViewMut, segment: &Segment, group: usize, start: usize) -> PlaneMut {
    let strides = target.strides();
    PlaneMut::of(target, 2, 3).along(segment.batch, strides[0]).along(group, strides[1]).at(0, start)
}
