//! `linear_scan` by names.

use super::common::{carried, planned, setting};
use crate::call::{Call, Exact, Operation, Planned};
use crate::tensors::{Tensors, WORKSPACE, real};

use crate::error::Result;
use crate::features::Features;
use crate::rng::Rng;
use crate::sizes::Sizes;
use crate::table::{Argument, Named, Setting};
use crate::work::Work;
use statescan::ops::linear_scan::{self as op, Args, Cotangents, Gradients, Outputs, reference};
use statescan::{DType, Exec, View};

/// The adapter.
pub(crate) struct LinearScan;

const TIMED: &[&str] = &["L", "DL", "BDL", "BEDL", "BEFDL"];
const STATE: &[&str] = &["", "D", "BD", "BED", "BEFD"];

static ARGUMENTS: [Argument; 3] = [
    Argument::activation("a", TIMED).alias(&["A"]).required().or_complex(),
    Argument::activation("b", TIMED).alias(&["B"]).required().or_complex(),
    Argument::state("initial_state", STATE).or_complex(),
];

static RESULTS: [Named; 3] = [
    Named { name: "h", aliases: &["y", "out"], layouts: TIMED },
    Named { name: "final_state", aliases: &["last_state"], layouts: STATE },
    Named { name: "decay", aliases: &[], layouts: STATE },
];

static SETTINGS: [Setting; 1] = [setting("reverse")];

fn args(call: &Call) -> Result<Args<'_>> {
    let mut args = Args::new(call.need("a")?, call.need("b")?);
    args.initial_state = call.view("initial_state");
    args.reverse = call.flag("reverse")?;
    Ok(args)
}

fn cotangents(tensors: &Tensors) -> Cotangents<'_> {
    Cotangents { h: tensors.view("h"), final_state: tensors.view("final_state") }
}

/// The states of a forward pass; those that were rounded to 16 bits are better computed again.
fn saved_states(saved: &Tensors) -> Option<View<'_>> {
    saved.view("h").filter(|h| h.dtype().real().size() > 2)
}

impl Operation for LinearScan {
    fn name(&self) -> &'static str {
        "linear_scan"
    }
    fn about(&self) -> &'static str {
        "h[t] = a[t] h[t-1] + b[t]: the primitive under S5, LRU, RG-LRU and HGRN"
    }
    fn arguments(&self) -> &'static [Argument] {
        &ARGUMENTS
    }
    fn results(&self) -> &'static [Named] {
        &RESULTS
    }
    fn settings(&self) -> &'static [Setting] {
        &SETTINGS
    }
    fn independent(&self) -> &'static [(char, Option<char>)] {
        &[('B', None), ('E', None), ('F', None), ('D', None)]
    }
    fn has_cotangent(&self, result: &str) -> bool {
        result != "decay"
    }

    fn plan(&self, call: &Call, _save: bool) -> Result<Vec<Planned>> {
        let args = args(call)?;
        let complex = args.a.dtype().is_complex() || args.b.dtype().is_complex();
        let dtype = match (complex, args.a.dtype().is_double() || args.b.dtype().is_double()) {
            (true, true) => DType::Complex128,
            (true, false) => DType::Complex64,
            (false, _) => args.b.dtype(),
        };
        let carried = carried(if args.a.dtype().is_double() { args.a.dtype() } else { args.b.dtype() }, complex);
        let shape = args.b.shape();
        let state = &shape[..shape.len().saturating_sub(1)];
        Ok(vec![planned("h", dtype, &shape)?, planned("final_state", carried, state)?, planned("decay", carried, state)?])
    }

    fn workspace(&self, exec: &Exec, call: &Call) -> Result<usize> {
        Ok(op::workspace_len(exec, &args(call)?)?)
    }

    fn workspace_backward(&self, exec: &Exec, call: &Call, saved: &Tensors) -> Result<usize> {
        Ok(op::backward_workspace_len(exec, &args(call)?, saved_states(saved).is_some())?)
    }

    fn forward(&self, exec: &Exec, call: &Call, out: &mut Tensors) -> Result<()> {
        let mut out = out.writers();
        let mut outputs = Outputs {
            h: out.take("h"),
            final_state: out.take("final_state"),
            decay: out.take("decay"),
            workspace: out.take(WORKSPACE),
        };
        Ok(op::forward(exec, &args(call)?, &mut outputs)?)
    }

    fn backward(&self, exec: &Exec, call: &Call, saved: &Tensors, cotangents: &Tensors, grads: &mut Tensors) -> Result<()> {
        let mut grads = grads.writers();
        let mut gradients = Gradients {
            a: grads.take("a"),
            b: grads.take("b"),
            initial_state: grads.take("initial_state"),
            workspace: grads.take(WORKSPACE),
        };
        Ok(op::backward(exec, &args(call)?, saved_states(saved), &self::cotangents(cotangents), &mut gradients)?)
    }

    fn reference(&self, call: &Call) -> Result<Exact> {
        let exact = reference::forward(&args(call)?)?;
        Ok(vec![("h", exact.h), ("final_state", exact.final_state), ("decay", exact.decay)])
    }

    fn reference_backward(&self, call: &Call, cotangents: &Tensors) -> Result<Exact> {
        let g = reference::backward(&args(call)?, &self::cotangents(cotangents))?;
        Ok(vec![("a", g.a), ("b", g.b), ("initial_state", g.initial_state)])
    }

    fn work(&self, sizes: &Sizes) -> Work {
        Work::per_state_step(sizes.product("BEFDL"), 2.0, 0.0)
    }
    fn work_backward(&self, sizes: &Sizes) -> Work {
        Work::per_state_step(sizes.product("BEFDL"), 4.0, 0.0)
    }

    fn sample(&self) -> Result<Call> {
        let width = 128;
        let text = Features::of_text(64);
        // the gates of an RG-LRU: a decay near one, and the input scaled so that the state keeps its size
        let decay = text.linear(1, width).map(|v| (-0.1 / (1.0 + (-v).exp())).exp());
        let input = text.linear(2, width).times(&decay.clone().map(|a| (1.0 - a * a).sqrt()));
        Ok(Call::new(&LinearScan).with("a", decay.channels_first()?).with("b", input.channels_first()?))
    }

    fn random(&self, sizes: &Sizes, dtype: DType) -> Result<Call> {
        let mut rng = Rng::new(41);
        let shape = sizes.shape("BDL");
        let a = real(dtype, &shape, || rng.uniform(0.9, 1.0))?;
        let b = real(dtype, &shape, || rng.normal())?;
        Ok(Call::new(&LinearScan).with("a", a).with("b", b))
    }

    fn bench(&self) -> Vec<(&'static str, Sizes)> {
        let channels = |dim, seqlen| Sizes::of(&[('B', 1), ('D', dim), ('L', seqlen)]);
        vec![("rg-lru 2b", channels(2560, 2048)), ("few, long", channels(64, 65536)), ("rg-lru 9b", channels(4096, 4096))]
    }
}
