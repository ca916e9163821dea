//! The walk on `mma.sync`, which takes every call.

use super::TILES;
use super::plan::{Cut, Kind, Math, Tiles};
use crate::cuda::{
    Address, BLOCKS, COMMON, Config, Launch, MMA, Numbers, Program, Queue, SEQUENCES, SLOTS, STEP_SIZE, Strided, params,
};
use crate::error::Result;
use crate::ops::on_cuda::{Pass, type_of};
use crate::ops::ssd::cuda::walk::{Addresses, Direction, Output, Walk};
use crate::ops::ssd::cuda::{HAND_ON, Hardware, INPUTS, Inputs, States, TOO_LARGE, TOO_MANY, gated_width, width, width_of};
use crate::ops::ssd::problem::Problem;
use crate::tensor::DType;
use core::ffi::c_void;

pub(in crate::ops::ssd::cuda) static WALK: Program<Params> =
    Program::new("ssd_walk", &[COMMON, STEP_SIZE, MMA, BLOCKS], include_str!("walk.cu"))
        .including(&[SLOTS, SEQUENCES, INPUTS, TILES, HAND_ON]);

params! {
    /// Parameters of `ssd_walk`.
    pub(in crate::ops::ssd::cuda) struct Params(inputs: Inputs) {
        /// (batch, step, head, column): y, or the gradient by z.
        y: Strided,
        /// The states that a walk begins a sequence with, and those that it ends one with.
        before: States,
        after: States,
        /// Slots of the state at each chunk.
        slots: Address<c_void>,
        /// Dense (segment, batch, head, state, column), padded: what segments add to a state of zero.
        ends: Address<f32>,
        /// Dense (segment, batch, head, tile of columns): their decays.
        decays: Address<f32>,
        segments: i64,
        segment_steps: i64,
    }
}

/// A walk that this kernel takes: its tiles, and how it cuts time where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops::ssd::cuda) struct Route {
    pub tiles: Tiles,
    pub cut: Option<Cut>,
    numbers: Numbers,
}

fn kind(walk: &Walk<'_, '_>, pass: Pass) -> Kind {
    let output = !matches!(walk.output, Output::Nothing) && pass != Pass::Ends;
    Kind::Walk { output, state: output || (walk.slots.is_some() && pass != Pass::Ends) }
}

impl Route {
    /// The route of a walk alone, with tiles of its own.
    pub fn alone(walk: &Walk<'_, '_>, hardware: Hardware) -> Result<Route> {
        let shape = walk.call.shape(walk.call.math(hardware.tf32));
        // whichever results are asked for: the workspace does not depend on them
        let kind = Kind::Walk { output: true, state: true };
        let tiles = Tiles::new(&shape, &[kind], hardware.numbers).ok_or(TOO_LARGE)?;
        // a segment would write a slot while another one reads it
        let cut = Cut::new(&shape, &tiles, kind, hardware.numbers).filter(|_| walk.call.problem.pool.is_none());
        Ok(Route { tiles, cut, numbers: hardware.numbers })
    }

    /// With the tiles of other kernels, which read its slots.
    pub fn beside(tiles: Tiles, cut: Option<Cut>, numbers: Numbers) -> Route {
        Route { tiles, cut, numbers }
    }

    /// Returns the route in one piece, for a call without a workspace.
    pub fn whole(self) -> Route {
        Route { cut: None, ..self }
    }

    /// Elements of the workspace: ends and decays of all segments.
    pub fn workspace_len(&self, p: &Problem<'_>) -> usize {
        let tiles = &self.tiles;
        self.cut.map_or(0, |cut| cut.segments * p.batch * p.nheads * (tiles.slot() + tiles.column_tiles))
    }

    pub fn config(&self, walk: &Walk<'_, '_>, pass: Pass) -> Config {
        let (tiles, numbers, kind) = (&self.tiles, self.numbers, kind(walk, pass));
        let target = match walk.output {
            Output::Nothing => None,
            Output::Y(to) | Output::Gate(to) => Some(*to),
        };
        let widths = [width_of(&target)].into_iter();
        let widths = widths.chain(walk.call.problem.z.map(|v| width(&v)));
        let widths = widths.chain(walk.call.dy.map(|v| width(&v)));
        let widths = widths.chain(walk.call.gated.map(|_| gated_width(walk.call.problem.headdim, tiles.math)));
        let (output, state) = match kind {
            Kind::Walk { output, state } => (output, state),
            _ => (false, false),
        };
        walk.call
            .config(tiles, None)
            .dtype("Y", type_of(&target))
            .dtype("BEFORE", walk.before.map_or(DType::F32, |v| v.dtype()))
            .dtype("AFTER", type_of(&walk.after))
            .int("OUT_WIDTH", widths.min().unwrap_or(1))
            .set("PASS", pass.value())
            .flag("FORWARDS", walk.direction == Direction::Forward)
            .flag("HAS_OUTPUT", output)
            .flag("TURNS_ROWS", output && tiles.math == Math::Tf32)
            .flag("GATE_GRADIENT", matches!(walk.output, Output::Gate(_)))
            .flag("HAS_SLOTS", walk.slots.is_some() && pass != Pass::Ends)
            .flag("NEEDS_STATE_TILE", state)
            .int("STAGES", tiles.stages(kind, numbers))
            .int("RESIDENT", tiles.resident(kind, numbers))
            .shared(&tiles.memory(kind, numbers))
    }

    fn params(&self, walk: &Walk<'_, '_>, addresses: Addresses) -> Params {
        let (p, tiles) = (walk.call.problem, &self.tiles);
        let y = match walk.output {
            Output::Nothing => Strided::default(),
            Output::Y(to) | Output::Gate(to) => Strided::of(&to.as_read()),
        };
        let rows = self.cut.map_or(0, |cut| cut.segments * p.batch * p.nheads);
        let ends = self.cut.and(addresses.workspace).unwrap_or(0);
        Params {
            inputs: walk.call.inputs(tiles.span, tiles.column_tiles),
            y,
            before: States::of(&walk.before),
            after: States::of(&walk.after.as_ref().map(|v| v.as_read())),
            slots: Address::new(if walk.slots.is_some() { addresses.slots } else { 0 }),
            ends: Address::new(ends),
            decays: Address::new(ends + 4 * (rows * tiles.slot()) as u64),
            segments: self.cut.map_or(1, |cut| cut.segments as i64),
            segment_steps: self.cut.map_or(p.seqlen, |cut| cut.steps) as i64,
        }
    }

    /// The launches: two where time is cut, none where there is nothing to walk.
    pub fn launches(&self, walk: &Walk<'_, '_>) -> Result<Vec<(Pass, Launch)>> {
        let (p, tiles) = (walk.call.problem, &self.tiles);
        let passes: &[_] = match self.cut {
            // the last segment of a row leaves nothing
            Some(cut) => &[(Pass::Ends, cut.segments - 1), (Pass::Rest, cut.segments)],
            None => &[(Pass::Whole, 1)],
        };
        let mut launches = Vec::new();
        for &(pass, segments) in passes {
            let blocks = [p.batch, p.nheads, tiles.column_tiles].into_iter().try_fold(segments, usize::checked_mul);
            let blocks = blocks.and_then(|n| u32::try_from(n).ok()).ok_or(TOO_MANY)?;
            if blocks > 0 && p.headdim > 0 {
                let shared = tiles.shared(kind(walk, pass), self.numbers);
                launches.push((pass, Launch::line(blocks, tiles.threads() as u32, shared as u32)));
            }
        }
        Ok(launches)
    }

    /// # Safety
    /// The views are valid, and so are the addresses for what the route says.
    pub unsafe fn launch(&self, stream: &Queue<'_>, walk: &Walk<'_, '_>, addresses: Addresses) -> Result<()> {
        let params = self.params(walk, addresses);
        for (pass, launch) in self.launches(walk)? {
            // SAFETY: the caller's contract; the configuration describes types and layouts of the views.
            unsafe { stream.launch(&WALK, || self.config(walk, pass), launch, &params)? };
        }
        Ok(())
    }
}
