//! The walks of the backward pass on Hopper, for bf16 and one decay a head, in the place of what prepares chunks and walks elsewhere.

use super::{ALIGNMENT, CHUNK, COLUMNS, HEAD_UNITS, MAKER, PRELUDE, Route, STAGED_BYTES, Source, TILE, UNIT};
use crate::cuda::{
    Address, Config, Header, Launch, Numbers, Program, Queue, SEQUENCES, SLOTS, Strided, TensorMap, Tiling, header, params,
};
use crate::error::Result;
use crate::ops::gated_delta_rule::cuda::backward_pass::{self, Backward, TILES};
use crate::ops::gated_delta_rule::cuda::backward_plan::{Layout, Plan, Room};
use crate::ops::gated_delta_rule::cuda::{Call, INPUTS, Inputs};
use crate::ops::gated_delta_rule::gates::GATES;
use crate::ops::on_cuda::{States, dtype, read, type_of};
use core::ffi::c_void;

pub(in crate::ops::gated_delta_rule::cuda) static UNITS: Program<Params> =
    Program::new("gated_delta_rule_backward_units", PRELUDE, include_str!("backward_units.cu"))
        .including(&[SLOTS, SEQUENCES, GATES, INPUTS, UNIT, MAKER, HEAD_UNITS]);
pub(in crate::ops::gated_delta_rule::cuda) static CHAIN: Program<Params> =
    Program::new("gated_delta_rule_backward_chain", PRELUDE, include_str!("backward_chain.cu"))
        .including(&[SLOTS, SEQUENCES, GATES, INPUTS, UNIT, COLUMNS]);
/// Gradients of chunks after the walks.
pub(in crate::ops::gated_delta_rule::cuda) static GRADIENTS: Program<backward_pass::Params> =
    Program::new("gated_delta_rule_backward_gradients", PRELUDE, include_str!("backward_gradients.cu"))
        .including(&[SLOTS, SEQUENCES, GATES, INPUTS, TILES, ROLES, QUERIES, KEYS, VALUES]);
const ROLES: Header = header!("gradient_roles.cuh");
const QUERIES: Header = header!("gradient_queries.cuh");
const KEYS: Header = header!("gradient_keys.cuh");
const VALUES: Header = header!("gradient_values.cuh");

params! {
    /// Parameters of both kernels.
    pub(in crate::ops::gated_delta_rule::cuda) struct Params(inputs: Inputs) {
        q_map: TensorMap,
        k_map: TensorMap,
        v_map: TensorMap,
        dy_map: TensorMap,
        before: States,
        dafter: States,
        dbefore: States,
        /// Dense (batch, head, place).
        units: Address<c_void>,
        flags: Address<u32>,
        /// As the gradients read them.
        q_units: Address<c_void>,
        k_units: Address<c_void>,
        states: Address<c_void>,
        gradients: Address<c_void>,
        d: Address<c_void>,
        x: Address<c_void>,
        tokens: Address<f32>,
        norms: Address<f32>,
        key_heads: i64,
        rows: i64,
        /// Places for units in a row.
        places: i64,
        /// Places for chunks of heads of keys in all rows.
        count: i64,
    }
}

/// `UNIT_BYTES` of `unit.cuh`.
const UNIT_BYTES: usize = STAGED_BYTES + 1024;
/// Tiles that are loaded ahead, blocks of units on a multiprocessor, and threads of a walk and of gradients.
const STAGES: usize = 3;
const RESIDENT: usize = 3;
const WALKERS: usize = 192;
const THREADS: usize = 512;
/// `Shared` of `gradient_roles.cuh`.
const SUMS: usize = 3 * (2 * 4 * 5 * CHUNK + 4 * 4) + 13 * 8;

impl Route {
    /// The route of a backward pass, as far as it does not depend on cotangents.
    pub(in crate::ops::gated_delta_rule::cuda) fn backward(call: &Call<'_, '_>, plan: &Plan, numbers: Numbers) -> Option<Route> {
        let p = call.problem;
        let takes = plan.is_bf16() && plan.span == CHUNK && p.keys == 128 && !p.gates.by_channel;
        Route::new(call, None, numbers).filter(|_| takes)
    }
}

/// Room of the workspace that the route of a backward pass takes.
pub(in crate::ops::gated_delta_rule::cuda) fn room(route: Option<&Route>) -> Room {
    route.map_or(Room::default(), |route| Room { unit: UNIT_BYTES, copies: route.copies() })
}

/// The walks of a backward pass.
pub(in crate::ops::gated_delta_rule::cuda) struct Walks<'w, 'p, 'a> {
    pass: &'w Backward<'p, 'a>,
    route: Route,
    dy: Tiling,
}

impl<'w, 'p, 'a> Walks<'w, 'p, 'a> {
    /// Nothing where these kernels do not take the cotangents.
    pub(in crate::ops::gated_delta_rule::cuda) fn new(pass: &'w Backward<'p, 'a>, route: Option<Route>) -> Option<Self> {
        let dy = Source::new(pass.sources.y.as_ref()?).filter(|dy| !dy.is_copied)?.tiling;
        Some(Walks { pass, route: route?, dy })
    }

    fn units_shared(&self) -> usize {
        self.route.units_shared(&self.pass.call) + 1024
    }

    fn chain_shared(&self) -> usize {
        let panels = self.pass.call.problem.keys / 64;
        let stage = (1 + 2 * panels) * TILE + UNIT_BYTES;
        STAGES * stage + (panels + 1) * TILE + 8 * (2 * STAGES + 4)
    }

    fn gradients_shared(&self) -> usize {
        let panels = self.pass.call.problem.keys / 64;
        // keys and queries of two chunks, two slices, and products of steps
        2 * 2 * panels * TILE + 2 * (2 * panels + 4) * TILE + 3 * TILE + SUMS
    }

    fn config(&self) -> Config {
        self.pass.call.config().flag("BESIDE", false).flag("BACKWARD", true)
    }

    pub(in crate::ops::gated_delta_rule::cuda) fn units_config(&self) -> Config {
        self.config()
            .flag("UNIT", self.pass.call.problem.gates.qk_l2norm)
            .int("WARPGROUPS", 1)
            .int("RESIDENT", RESIDENT)
            .int("SHARED", self.units_shared())
    }

    pub(in crate::ops::gated_delta_rule::cuda) fn chain_config(&self) -> Config {
        self.config()
            .dtype("INITIAL", dtype(&self.pass.call.problem.initial_state))
            .dtype("DFINAL", dtype(&self.pass.sources.final_state))
            .dtype("DINITIAL", type_of(&self.pass.targets.initial_state))
            .int("STAGES", STAGES)
            .int("SHARED", self.chain_shared())
    }

    pub(in crate::ops::gated_delta_rule::cuda) fn gradients_config(&self) -> Config {
        self.pass.gradients_config_of(THREADS, self.gradients_shared())
    }

    /// The parameters of gradients, with values whose columns lie side by side: a copy before the end of them all where the tensor's do not.
    fn aligned(&self, params: &backward_pass::Params, copied: u64) -> backward_pass::Params {
        let (p, source) = (self.pass.call.problem, &self.route.sources[2]);
        if !source.is_copied {
            return *params;
        }
        params.with_values(Strided::dense(copied - source.bytes() as u64, [p.seqlen, p.value_heads(), p.values]))
    }

    /// With the parameters of the other kernels, which those of gradients take.
    ///
    /// # Safety
    /// The views are valid, and at `base` there is a workspace of this layout.
    pub(in crate::ops::gated_delta_rule::cuda) unsafe fn launch(
        &self,
        queue: &Queue<'_>,
        layout: &Layout,
        base: u64,
        rest: &backward_pass::Params,
    ) -> Result<()> {
        let (call, route) = (&self.pass.call, &self.route);
        let at = |offset: usize| Address::new(base + 4 * offset as u64);
        let numbers = |offset: usize| Address::new(base + 4 * offset as u64);
        // SAFETY: the caller's contract.
        let ([q, k, v], copied) = unsafe { route.gather(queue, call, base + 4 * layout.copies as u64)? };
        let params = Params {
            inputs: call.inputs(),
            q_map: q.encode(queue)?,
            k_map: k.encode(queue)?,
            v_map: v.encode(queue)?,
            dy_map: self.dy.encode(queue)?,
            before: States::of(&call.problem.initial_state),
            dafter: States::of(&self.pass.sources.final_state),
            dbefore: States::of(&read(&self.pass.targets.initial_state)),
            units: at(layout.t),
            flags: Address::new(base),
            q_units: at(layout.q_units),
            k_units: at(layout.k_units),
            states: at(layout.states),
            gradients: at(layout.gradients),
            d: at(layout.d),
            x: at(layout.x),
            tokens: numbers(layout.tokens),
            norms: numbers(layout.norms),
            key_heads: call.problem.heads as i64,
            rows: call.problem.batch as i64,
            places: route.places as i64,
            count: route.count(call) as i64,
        };
        let blocks = route.count(call).min(RESIDENT * queue.numbers().multiprocessors);
        let units = Launch::line(blocks as u32, 128, (self.units_shared() + ALIGNMENT) as u32);
        let walks = Launch::line(2 * route.slices, WALKERS as u32, (self.chain_shared() + ALIGNMENT) as u32);
        let blocks = route.count(call).min(queue.numbers().multiprocessors);
        let gradients = Launch::line(blocks as u32, THREADS as u32, (self.gradients_shared() + ALIGNMENT) as u32);
        // SAFETY: the caller's contract; the maps describe the views, and the configurations the types of everything else.
        unsafe {
            queue.launch(&UNITS, || self.units_config(), units, &params)?;
            queue.launch_early(&CHAIN, || self.chain_config(), walks, &params)?;
            if self.pass.needs_chunks() {
                queue.launch_early(&GRADIENTS, || self.gradients_config(), gradients, &self.aligned(rest, copied))?;
            }
        }
        Ok(())
    }
}
