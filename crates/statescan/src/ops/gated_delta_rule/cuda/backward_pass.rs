//! A backward pass as its kernels see it: their parameters, and the constants that several of them share.

use super::backward_plan::{Layout, Plan};
use super::{Call, Inputs, by_time};
use crate::cuda::{Address, Config, Header, Strided, header, params};
use crate::ops::gated_delta_rule::{GradientTargets, Sources};
use crate::ops::on_cuda::{States, dtype, read, type_of, width};
use crate::tensor::{RawViewMut, View};
use core::ffi::c_void;

pub(super) const TILES: Header = header!("backward_tiles.cuh");
pub(super) const WORK: Header = header!("backward_work.cuh");
pub(super) const FINISH: Header = header!("backward_finish.cuh");

params! {
    /// Parameters of the kernels of the backward pass.
    pub(super) struct Params(inputs: Inputs) {
        dy: Strided,
        before: States,
        /// The gradients of the states after and before sequences.
        dafter: States,
        dbefore: States,
        dq: Strided,
        dk: Strided,
        dv: Strided,
        dg: Strided,
        dbeta: Strided,
        /// Dense, of what products are made of: (chunk, head of keys, step, key), and (chunk, head, ..) of the others.
        q_units: Address<c_void>,
        k_units: Address<c_void>,
        read_k: Address<c_void>,
        written_k: Address<c_void>,
        read_q: Address<c_void>,
        t: Address<c_void>,
        a: Address<c_void>,
        states: Address<c_void>,
        gradients: Address<c_void>,
        d: Address<c_void>,
        x: Address<c_void>,
        /// Dense (chunk, head, step, key), (chunk, head, row, step), (chunk, head of keys, k and q, step).
        sums: Address<f32>,
        tokens: Address<f32>,
        norms: Address<f32>,
        /// Dense (chunk, head), and (chunk, head) or (chunk, head, key).
        da_terms: Address<f32>,
        dbias_terms: Address<f32>,
        chunks_per_row: i64,
        key_heads: i64,
        /// Chunks of heads of keys in all rows.
        count: i64,
    }
}

impl Params {
    /// These parameters with values that lie elsewhere.
    pub(super) fn with_values(self, v: Strided) -> Params {
        Params { inputs: Inputs { v, ..self.inputs }, ..self }
    }
}

/// A backward pass: the call, cotangents, the gradients that are asked for, and the plan.
pub(super) struct Backward<'p, 'a> {
    pub call: Call<'p, 'a>,
    pub sources: &'p Sources<'a>,
    pub targets: &'p GradientTargets,
    pub plan: Plan,
}

impl Backward<'_, '_> {
    /// Whether sums of the gate's gradients are asked for.
    fn has_sums(&self) -> bool {
        self.targets.a_log.is_some() || self.targets.dt_bias.is_some()
    }

    /// Whether a gradient is asked for that takes products with keys.
    fn needs_keys(&self) -> bool {
        let t = self.targets;
        [&t.q, &t.k, &t.g, &t.beta].into_iter().any(Option::is_some) || self.has_sums()
    }

    pub(super) fn needs_chunks(&self) -> bool {
        self.needs_keys() || self.targets.v.is_some()
    }

    /// Parameters for a workspace of this layout at an address.
    pub(super) fn params(&self, layout: &Layout, base: u64) -> Params {
        let (p, t) = (self.call.problem, self.targets);
        let at = |offset: usize| Address::new(base + 4 * offset as u64);
        let numbers = |offset: usize| Address::new(base + 4 * offset as u64);
        let target = |target: &Option<RawViewMut>| Strided::of_option(&read(target));
        Params {
            inputs: self.call.inputs(),
            dy: Strided::of_option(&self.sources.y),
            before: States::of(&p.initial_state),
            dafter: States::of(&self.sources.final_state),
            dbefore: States::of(&read(&t.initial_state)),
            dq: target(&t.q),
            dk: target(&t.k),
            dv: target(&t.v),
            dg: target(&t.g),
            dbeta: target(&t.beta),
            q_units: at(layout.q_units),
            k_units: at(layout.k_units),
            read_k: at(layout.read_k),
            written_k: at(layout.written_k),
            read_q: at(layout.read_q),
            t: at(layout.t),
            a: at(layout.a),
            states: at(layout.states),
            gradients: at(layout.gradients),
            d: at(layout.d),
            x: at(layout.x),
            sums: numbers(layout.sums),
            tokens: numbers(layout.tokens),
            norms: numbers(layout.norms),
            da_terms: numbers(layout.da_terms),
            dbias_terms: numbers(layout.dbias_terms),
            chunks_per_row: self.plan.chunks_per_row(&self.call) as i64,
            key_heads: p.heads as i64,
            count: (p.batch * self.plan.chunks_per_row(&self.call) * p.heads) as i64,
        }
    }

    /// The parts that the three kernels have in common.
    pub(super) fn config(&self, threads: usize, loaders: usize) -> Config {
        self.call
            .config()
            .set("MATH", self.plan.math())
            .int("SPAN", self.plan.span)
            .int("THREADS", threads)
            .int("LOADERS", loaders)
    }

    /// The constants of a tensor over steps that is read in pieces.
    pub(super) fn dy_config(&self, config: Config) -> Config {
        let dy = &self.sources.y;
        config
            .dtype("DY", dtype(dy))
            .flag("HAS_DY", dy.is_some())
            .flag("DY_BY_TIME", dy.as_ref().is_some_and(by_time))
            .int("DY_STEP_WIDTH", dy.as_ref().map_or(1, width))
    }

    /// The configuration of so many threads, with so much shared memory.
    pub(super) fn gradients_config_of(&self, threads: usize, shared: usize) -> Config {
        let (p, t) = (self.call.problem, self.targets);
        let widest = |target: &Option<RawViewMut>| read(target).as_ref().map_or(1, |view: &View<'_>| width(view));
        self.dy_config(self.config(threads, threads))
            .dtype("DQ", type_of(&t.q))
            .dtype("DK", type_of(&t.k))
            .dtype("DV", type_of(&t.v))
            .dtype("DGATE", type_of(&t.g))
            .dtype("DBETA", type_of(&t.beta))
            .flag("UNIT", p.gates.qk_l2norm)
            .flag("HAS_DQ", t.q.is_some())
            .flag("HAS_DK", t.k.is_some())
            .flag("HAS_DV", t.v.is_some())
            .flag("HAS_DGATE", t.g.is_some())
            .flag("HAS_DBETA", t.beta.is_some())
            .flag("HAS_SUMS", self.has_sums())
            .flag("NEEDS_KEYS", self.needs_keys())
            .int("STEP_WIDTH", width(&p.v))
            .int("DQ_WIDTH", widest(&t.q).min(2))
            .int("DK_WIDTH", widest(&t.k).min(2))
            .int("DV_WIDTH", widest(&t.v))
            .int("SHARED", shared)
    }
}
