//! `ssd` by names, in both of its layouts.

use super::common::{carried, planned, sequences, setting};
use crate::call::{Call, Exact, Operation, Options, Planned};
use crate::error::Result;
use crate::features::Features;
use crate::rng::Rng;
use crate::sizes::Sizes;
use crate::table::{Argument, Named, Setting};
use crate::tensors::{Tensors, real};
use crate::work::Work;
use statescan::ops::ssd::{self as op, Args, Cotangents, Gradients, Outputs, reference};
use statescan::tensor::{Dense, Tensor};
use statescan::{DType, Exec, View, ViewMut};

/// The adapter of one layout: (B, L, H, P) as models have it, or with heads before time and states as (B, H, N, P).
pub(crate) struct Ssd {
    pub(crate) heads_first: bool,
}

static TIME_FIRST: Ssd = Ssd { heads_first: false };
static HEADS_FIRST: Ssd = Ssd { heads_first: true };

const MAPS: &[&str] = &["BLN", "BLGN"];

const fn arguments(x: &'static [&'static str], dt: &'static [&'static str], state: &'static [&'static str]) -> [Argument; 12] {
    [
        Argument::activation("x", x).alias(&["u"]).required(),
        Argument::activation("dt", dt).alias(&["delta"]).required(),
        Argument::parameter("A", &["H"]).alias(&["a"]).required(),
        Argument::activation("B", MAPS).alias(&["b"]).required(),
        Argument::activation("C", MAPS).alias(&["c"]).required(),
        Argument::parameter("D", &["H", "HP"]).alias(&["d"]),
        Argument::activation("z", x),
        Argument::parameter("dt_bias", &["H"]).alias(&["delta_bias"]),
        Argument::state("initial_state", state).alias(&["initial_states"]),
        Argument::index("cu_seqlens", &["K"]),
        Argument::index("seq_idx", &["BL"]),
        Argument::hint("causal_mask", &["QQ"]),
    ]
}

static ARGUMENTS: [Argument; 12] = arguments(&["BLHP"], &["BLH"], &["BHPN", "BSHPN"]);
static ARGUMENTS_HEADS_FIRST: [Argument; 12] = arguments(&["BHLP"], &["BHL"], &["BHNP", "BSHNP"]);

const FINAL: &[&str] = &["final_states", "last_state"];

static RESULTS: [Named; 2] = [
    Named { name: "y", aliases: &["out"], layouts: &["BLHP"] },
    Named { name: "final_state", aliases: FINAL, layouts: &["BHPN", "BSHPN"] },
];
static RESULTS_HEADS_FIRST: [Named; 2] = [
    Named { name: "y", aliases: &["out"], layouts: &["BHLP"] },
    Named { name: "final_state", aliases: FINAL, layouts: &["BHNP", "BSHNP"] },
];

static SETTINGS: [Setting; 6] = [
    Setting { name: "dt_softplus", aliases: &["delta_softplus"] },
    setting("dt_limit"),
    setting("chunk_size"),
    setting("reverse"),
    setting("layout"),
    // every result is computed anyway
    Setting { name: "return_final_states", aliases: &["return_final_state", "return_last_state"] },
];

/// The axes of a tensor in the other layout.
const TIME: &[usize] = &[0, 2, 1, 3];
const STEPS: &[usize] = &[0, 2, 1];

/// The axes of a state in the other layout.
fn state_order(rank: usize) -> Vec<usize> {
    let mut order: Vec<_> = (0..rank).collect();
    if rank >= 2 {
        order.swap(rank - 2, rank - 1);
    }
    order
}

impl Ssd {
    fn view<'a>(&self, view: View<'a>, order: &[usize]) -> View<'a> {
        if self.heads_first && view.rank() == order.len() { view.permute(order) } else { view }
    }

    fn view_mut<'a>(&self, view: ViewMut<'a>, order: &[usize]) -> ViewMut<'a> {
        if self.heads_first && view.shape().len() == order.len() { view.permute(order) } else { view }
    }

    fn state<'a>(&self, view: View<'a>) -> View<'a> {
        self.view(view, &state_order(view.rank()))
    }

    fn state_mut<'a>(&self, view: ViewMut<'a>) -> ViewMut<'a> {
        let order = state_order(view.shape().len());
        self.view_mut(view, &order)
    }

    fn dense(&self, dense: Dense, order: &[usize]) -> Dense {
        if self.heads_first { Dense::from_view(&self.view(dense.view(), order)) } else { dense }
    }

    fn args<'a>(&self, call: &'a Call) -> Result<Args<'a>> {
        let (x, dt) = (self.view(call.need("x")?, TIME), self.view(call.need("dt")?, STEPS));
        let mut args = Args::new(x, dt, call.need("A")?, call.need("B")?, call.need("C")?);
        args.d = call.view("D");
        args.z = call.view("z").map(|z| self.view(z, TIME));
        args.dt_bias = call.view("dt_bias");
        args.initial_state = call.view("initial_state").map(|s| self.state(s));
        args.sequences = sequences(call)?;
        args.causal_mask = call.view("causal_mask");
        args.dt_softplus = call.flag("dt_softplus")?;
        args.reverse = call.flag("reverse")?;
        args.dt_limit = call.interval("dt_limit")?.unwrap_or(args.dt_limit);
        args.chunk_size = call.count("chunk_size")?.unwrap_or(args.chunk_size);
        call.parsed("layout", "time-first or heads-first", Layout)?;
        Ok(args)
    }

    fn cotangents<'a>(&self, tensors: &'a Tensors) -> Cotangents<'a> {
        Cotangents {
            y: tensors.view("y").map(|v| self.view(v, TIME)),
            final_state: tensors.view("final_state").map(|v| self.state(v)),
        }
    }

    /// The same case with heads before time.
    fn turned(&self, mut call: Call) -> Call {
        if !self.heads_first {
            return call;
        }
        call.op = &HEADS_FIRST;
        for input in &mut call.inputs {
            let dense = input.buffer.to_dense();
            let dense = match input.argument.name {
                "x" | "z" => self.dense(dense, TIME),
                "dt" => self.dense(dense, STEPS),
                _ => dense,
            };
            input.buffer = Tensor::from_dense(&dense, input.buffer.dtype());
            let argument = ARGUMENTS_HEADS_FIRST.iter().find(|a| a.name == input.argument.name);
            input.argument = argument.unwrap_or(input.argument);
        }
        call.set("layout", "heads-first")
    }
}

/// Parses the two layouts' names.
struct Layout;

impl std::str::FromStr for Layout {
    type Err = ();
    fn from_str(name: &str) -> std::result::Result<Self, ()> {
        matches!(name, "time-first" | "heads-first").then_some(Layout).ok_or(())
    }
}

impl Operation for Ssd {
    fn name(&self) -> &'static str {
        "ssd"
    }
    fn about(&self) -> &'static str {
        "Mamba-2's scan: one decay for each head, computed chunk by chunk with matrix products"
    }
    fn arguments(&self) -> &'static [Argument] {
        if self.heads_first { &ARGUMENTS_HEADS_FIRST } else { &ARGUMENTS }
    }
    fn results(&self) -> &'static [Named] {
        if self.heads_first { &RESULTS_HEADS_FIRST } else { &RESULTS }
    }
    fn settings(&self) -> &'static [Setting] {
        &SETTINGS
    }
    fn independent(&self) -> &'static [(char, Option<char>)] {
        &[('B', None), ('H', Some('G')), ('P', None)]
    }
    fn variant(&self, options: &Options) -> Option<&'static dyn Operation> {
        let heads_first = options.get("layout").and_then(|v| v.as_str()) == Some("heads-first");
        Some(if heads_first { &HEADS_FIRST } else { &TIME_FIRST })
    }

    fn plan(&self, call: &Call, save: bool) -> Result<Vec<Planned>> {
        let args = self.args(call)?;
        let dtype = args.x.dtype();
        let mut state = op::final_state_shape(&args)?.to_vec();
        if self.heads_first {
            let rank = state.len();
            state.swap(rank - 2, rank - 1);
        }
        let mut results =
            vec![planned("y", dtype, &call.need("x")?.shape())?, planned("final_state", carried(dtype, false), &state)?];
        if save {
            results.push(planned("checkpoints", carried(dtype, false), &[op::checkpoints_len(&args)?])?);
        }
        Ok(results)
    }

    fn forward(&self, exec: &Exec, call: &Call, out: &mut Tensors) -> Result<()> {
        let mut out = out.writers();
        let mut outputs = Outputs {
            y: out.take("y").map(|v| self.view_mut(v, TIME)),
            final_state: out.take("final_state").map(|v| self.state_mut(v)),
            checkpoints: out.take("checkpoints"),
        };
        Ok(op::forward(exec, &self.args(call)?, &mut outputs)?)
    }

    fn backward(&self, exec: &Exec, call: &Call, saved: &Tensors, cotangents: &Tensors, grads: &mut Tensors) -> Result<()> {
        let mut grads = grads.writers();
        let mut gradients = Gradients {
            x: grads.take("x").map(|v| self.view_mut(v, TIME)),
            dt: grads.take("dt").map(|v| self.view_mut(v, STEPS)),
            a: grads.take("A"),
            b: grads.take("B"),
            c: grads.take("C"),
            d: grads.take("D"),
            z: grads.take("z").map(|v| self.view_mut(v, TIME)),
            dt_bias: grads.take("dt_bias"),
            initial_state: grads.take("initial_state").map(|v| self.state_mut(v)),
        };
        let cotangents = self.cotangents(cotangents);
        Ok(op::backward(exec, &self.args(call)?, saved.view("checkpoints"), &cotangents, &mut gradients)?)
    }

    fn reference(&self, call: &Call) -> Result<Exact> {
        let exact = reference::forward(&self.args(call)?)?;
        let order = state_order(exact.final_state.shape().len());
        Ok(vec![("y", self.dense(exact.y, TIME)), ("final_state", self.dense(exact.final_state, &order))])
    }

    fn reference_backward(&self, call: &Call, cotangents: &Tensors) -> Result<Exact> {
        let g = reference::backward(&self.args(call)?, &self.cotangents(cotangents))?;
        let order = state_order(g.initial_state.shape().len());
        let mut all = vec![
            ("x", self.dense(g.x, TIME)),
            ("dt", self.dense(g.dt, STEPS)),
            ("A", g.a),
            ("B", g.b),
            ("C", g.c),
            ("initial_state", self.dense(g.initial_state, &order)),
        ];
        let optional = [("D", g.d), ("z", g.z.map(|z| self.dense(z, TIME))), ("dt_bias", g.dt_bias)];
        all.extend(optional.into_iter().filter_map(|(name, grad)| Some((name, grad?))));
        Ok(all)
    }

    fn work(&self, sizes: &Sizes) -> Work {
        chunked(sizes, 4.0, 3.0)
    }
    fn work_backward(&self, sizes: &Sizes) -> Work {
        chunked(sizes, 14.0, 9.0)
    }

    fn sample(&self) -> Result<Call> {
        let (heads, headdim, dstate) = (4, 32, 64);
        let text = Features::of_text(64);
        let x = text.linear(1, heads * headdim).conv(2, 4).silu();
        let z = text.linear(3, heads * headdim);
        let mut rng = Rng::new(6);
        let call = Call::new(&TIME_FIRST)
            .with("x", x.time_first(&[heads, headdim])?)
            .with("dt", text.linear(4, heads).time_first(&[heads])?)
            .with("A", real(DType::F32, &[heads], || -rng.uniform(1.0, 16.0))?)
            .with("B", text.linear(7, dstate).conv(8, 4).silu().time_first(&[1, dstate])?)
            .with("C", text.linear(9, dstate).conv(10, 4).silu().time_first(&[1, dstate])?)
            .with("D", real(DType::F32, &[heads], || 1.0)?)
            .with("z", z.time_first(&[heads, headdim])?)
            .with("dt_bias", real(DType::F32, &[heads], || rng.step_bias())?);
        Ok(self.turned(call.set("dt_softplus", true)))
    }

    fn random(&self, sizes: &Sizes, dtype: DType) -> Result<Call> {
        let mut rng = Rng::new(21);
        let mut normal = |layout: &str, scale: f64| real(dtype, &sizes.shape(layout), || rng.normal() * scale);
        let (x, dt, b, c, z) =
            (normal("BLHP", 1.0)?, normal("BLH", 0.5)?, normal("BLGN", 1.0)?, normal("BLGN", 1.0)?, normal("BLHP", 1.0)?);
        let mut rng = Rng::new(22);
        let parameter = if dtype.is_double() { DType::F64 } else { DType::F32 };
        let heads = [sizes.get('H')];
        let call = Call::new(&TIME_FIRST)
            .with("x", x)
            .with("dt", dt)
            .with("A", real(parameter, &heads, || -rng.uniform(1.0, 16.0))?)
            .with("B", b)
            .with("C", c)
            .with("D", real(parameter, &heads, || 1.0)?)
            .with("z", z)
            .with("dt_bias", real(parameter, &heads, || rng.step_bias())?);
        Ok(self.turned(call.set("dt_softplus", true)))
    }

    fn bench(&self) -> Vec<(&'static str, Sizes)> {
        let mamba = |heads, seqlen| Sizes::of(&[('B', 1), ('L', seqlen), ('H', heads), ('P', 64), ('G', 1), ('N', 128)]);
        vec![
            ("mamba2-130m", mamba(24, 1024)),
            ("mamba2-370m", mamba(32, 1024)),
            ("mamba2-780m", mamba(48, 1024)),
            ("mamba2-1.3b", mamba(64, 1024)),
            ("mamba2-2.7b", mamba(80, 1024)),
            ("mamba2-130m, long", mamba(24, 8192)),
            ("8 groups", mamba(32, 1024).with('G', 8)),
        ]
    }
}

/// Matrix products over chunks: so many flops for each state-step, and for each pair of steps in a chunk and head (a triangle of 64).
fn chunked(sizes: &Sizes, per_state: f64, per_pair: f64) -> Work {
    let (steps, pairs) = (sizes.product("BLHPN"), 32.0);
    let flops = per_state * steps + per_pair / 3.0 * 2.0 * pairs * (sizes.product("BLHP") + sizes.product("BLGN"));
    Work { state_steps: steps, flops, exps: pairs * sizes.product("BLH") }
}
