//! `selective_state_update` by names.

use super::common::{no_gradients, planned, setting, start_state};
use super::selective_scan::SelectiveScan;
use crate::call::{Call, Exact, Operation, Planned};
use crate::compute;
use crate::error::Result;
use crate::memory::{self, Limits};
use crate::part::{Part, narrow};
use crate::rng::Rng;
use crate::sizes::Sizes;
use crate::table::{Argument, Named, Setting};
use crate::tensors::{Tensors, real};
use crate::work::Work;
use statescan::ops::selective_scan::update::{Args, reference, update};
use statescan::tensor::{Dense, Tensor};
use statescan::{DType, Discretization, Exec};

/// The adapter.
pub(crate) struct SelectiveStateUpdate;

const X: &[&str] = &["BD", "BHP"];
const WEIGHT: &[&str] = &["D", "HP"];
const MAPS: &[&str] = &["BN", "BGN"];

static ARGUMENTS: [Argument; 11] = [
    Argument::state("state", &["BDN", "BHPN"]).required().or_complex(),
    Argument::activation("x", X).alias(&["u"]).required(),
    Argument::activation("dt", X).alias(&["delta"]).required(),
    Argument::parameter("A", &["DN", "HPN"]).alias(&["a"]).required().or_complex(),
    Argument::activation("B", MAPS).alias(&["b"]).required().or_complex(),
    Argument::activation("C", MAPS).alias(&["c"]).required().or_complex(),
    Argument::parameter("D", WEIGHT).alias(&["d"]),
    Argument::activation("z", X),
    Argument::parameter("dt_bias", WEIGHT).alias(&["delta_bias"]),
    Argument::activation("deltaA", X).alias(&["dt_a", "delta_a"]),
    Argument::index("state_batch_indices", &["B"]),
];

static RESULTS: [Named; 2] = [
    Named { name: "y", aliases: &["out"], layouts: X },
    Named { name: "state", aliases: &["final_state", "last_state"], layouts: &["BDN", "BHPN"] },
];

static SETTINGS: [Setting; 3] =
    [Setting { name: "dt_softplus", aliases: &["delta_softplus"] }, setting("dt_limit"), setting("discretization")];

fn args(call: &Call) -> Result<Args<'_>> {
    let mut args = Args::new(call.need("x")?, call.need("dt")?, call.need("A")?, call.need("B")?, call.need("C")?);
    args.d = call.view("D");
    args.z = call.view("z");
    args.dt_bias = call.view("dt_bias");
    args.dt_a = call.view("deltaA");
    args.state_batch_indices = call.view("state_batch_indices");
    args.dt_softplus = call.flag("dt_softplus")?;
    args.dt_limit = call.interval("dt_limit")?.unwrap_or(args.dt_limit);
    args.discretization = call.parsed("discretization", "one of mamba, zoh, bilinear, dirac", Discretization::Mamba)?;
    Ok(args)
}

impl Operation for SelectiveStateUpdate {
    fn name(&self) -> &'static str {
        "selective_state_update"
    }
    fn about(&self) -> &'static str {
        "one step of the selective scan or of SSD, the state in place: what decoding needs"
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
        &[('B', None), ('D', Some('G')), ('H', Some('G')), ('P', None)]
    }
    fn time(&self) -> Option<char> {
        None
    }
    fn differentiable(&self) -> bool {
        false
    }

    fn plan(&self, call: &Call, _save: bool) -> Result<Vec<Planned>> {
        let (x, state) = (call.need("x")?, call.need("state")?);
        Ok(vec![planned("y", x.dtype(), &x.shape())?, planned("state", state.dtype(), &state.shape())?])
    }

    fn prepare(&self, call: &Call, out: &mut Tensors) -> Result<()> {
        start_state("state", call, out)
    }

    fn forward(&self, exec: &Exec, call: &Call, out: &mut Tensors) -> Result<()> {
        let mut out = out.writers();
        if let (Some(mut state), Some(mut y)) = (out.take("state"), out.take("y")) {
            update(exec, &args(call)?, &mut state, &mut y)?;
        }
        Ok(())
    }

    fn backward(&self, _: &Exec, _: &Call, _: &Tensors, _: &Tensors, _: &mut Tensors) -> Result<()> {
        no_gradients(self)
    }

    fn reference(&self, call: &Call) -> Result<Exact> {
        let (y, state) = reference::update(&args(call)?, &call.need("state")?)?;
        Ok(vec![("y", y), ("state", state)])
    }

    fn reference_backward(&self, _: &Call, _: &Tensors) -> Result<Exact> {
        no_gradients(self)
    }

    fn work(&self, sizes: &Sizes) -> Work {
        Work::per_state_step(sizes.product("BDHPN"), 6.0, 1.0)
    }
    fn work_backward(&self, _: &Sizes) -> Work {
        Work::default()
    }

    /// The last step of the scan's sample, with the state that the steps before leave.
    fn sample(&self) -> Result<Call> {
        let whole = SelectiveScan.sample()?;
        let steps = whole.sizes().get('L');
        let before = narrow(&whole, &Part([('L', 0..steps - 1)].into()))?;
        let mut results = memory::results(&before, false, Limits::default())?;
        compute::forward(&Exec::cpu(1), &before, &mut results)?;
        let mut call = Call::new(&SelectiveStateUpdate);
        if let Some(state) = results.get("final_state") {
            call = call.with("state", state.clone());
        }
        for input in &whole.inputs {
            let view = input.buffer.view();
            let timed = input.argument.layout(view.rank()).is_some_and(|l| l.ends_with('L'));
            let last = if timed { view.index(view.rank() - 1, steps - 1) } else { view };
            call = call.with(input.argument.name, Tensor::from_dense(&Dense::from_view(&last), view.dtype()));
        }
        Ok(call.set("dt_softplus", true))
    }

    fn random(&self, sizes: &Sizes, dtype: DType) -> Result<Call> {
        let heads = sizes.has('H');
        let [x, state, a, weight, map] =
            if heads { ["BHP", "BHPN", "HPN", "HP", "BGN"] } else { ["BD", "BDN", "DN", "D", "BGN"] };
        let parameter = if dtype.is_double() { DType::F64 } else { DType::F32 };
        let mut rng = Rng::new(61);
        let mut normal = |dtype, layout: &str| real(dtype, &sizes.shape(layout), || rng.normal());
        let call = Call::new(&SelectiveStateUpdate)
            .with("state", normal(parameter, state)?)
            .with("x", normal(dtype, x)?)
            .with("dt", normal(dtype, x)?)
            .with("B", normal(dtype, map)?)
            .with("C", normal(dtype, map)?)
            .with("z", normal(dtype, x)?);
        let mut rng = Rng::new(62);
        let call = call
            .with("A", real(parameter, &sizes.shape(a), || -rng.uniform(1.0, 16.0))?)
            .with("D", real(parameter, &sizes.shape(weight), || 1.0)?)
            .with("dt_bias", real(parameter, &sizes.shape(weight), || rng.step_bias())?);
        Ok(call.set("dt_softplus", true))
    }

    fn bench(&self) -> Vec<(&'static str, Sizes)> {
        let mamba = |batch, dim| Sizes::of(&[('B', batch), ('D', dim), ('N', 16), ('G', 1)]);
        let mamba2 = |batch, heads| Sizes::of(&[('B', batch), ('H', heads), ('P', 64), ('N', 128), ('G', 1)]);
        vec![
            ("mamba-130m", mamba(1, 1536)),
            ("mamba-2.8b", mamba(1, 5120)),
            ("mamba-2.8b, batch 64", mamba(64, 5120)),
            ("mamba2-130m", mamba2(1, 24)),
            ("mamba2-2.7b", mamba2(1, 80)),
        ]
    }
}
