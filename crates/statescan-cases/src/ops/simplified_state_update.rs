//! `simplified_state_update` by names.

use super::common::{no_gradients, planned, setting, start_state};
use super::simplified_scan::SimplifiedScan;
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
use num_complex::Complex64;
use statescan::ops::simplified_scan::Head;
use statescan::ops::simplified_scan::update::{Args, reference, update};
use statescan::tensor::{Dense, Tensor};
use statescan::{DType, Discretization, Exec};

/// The adapter. The output is real, as that of `s5_inner`, where `D` or `conj_sym` is given.
pub(crate) struct SimplifiedStateUpdate;

static ARGUMENTS: [Argument; 9] = [
    Argument::state("state", &["BP"]).required().or_complex(),
    Argument::activation("u", &["BH"]).alias(&["x"]).required().or_complex(),
    Argument::activation("delta", &["P", "BP"]).alias(&["dt"]).required(),
    Argument::parameter("A", &["P", "P1"]).alias(&["a"]).required().or_complex(),
    Argument::parameter("B", &["PH"]).alias(&["b"]).required().or_complex(),
    Argument::parameter("C", &["HP"]).alias(&["c"]).required().or_complex(),
    Argument::parameter("D", &["H"]).alias(&["d"]),
    Argument::activation("deltaA", &["P", "BP"]).alias(&["delta_a", "dt_a"]),
    Argument::index("state_batch_indices", &["B"]),
];

static RESULTS: [Named; 2] = [
    Named { name: "y", aliases: &["out"], layouts: &["BH"] },
    Named { name: "state", aliases: &["final_state", "last_state"], layouts: &["BP"] },
];

static SETTINGS: [Setting; 2] = [setting("discretization"), setting("conj_sym")];

fn is_real(call: &Call) -> bool {
    call.options.contains_key("conj_sym") || call.input("D").is_some()
}

fn args(call: &Call) -> Result<Args<'_>> {
    let mut args = Args::new(call.need("u")?, call.need("delta")?, call.need("A")?, call.need("B")?, call.need("C")?);
    args.delta_a = call.view("deltaA");
    args.state_batch_indices = call.view("state_batch_indices");
    args.discretization = call.parsed("discretization", "one of bilinear, zoh, dirac, mamba", Discretization::Bilinear)?;
    if is_real(call) {
        args.head = Head::Real { conj_sym: call.flag_or("conj_sym", true)?, d: call.view("D") };
    }
    Ok(args)
}

impl Operation for SimplifiedStateUpdate {
    fn name(&self) -> &'static str {
        "simplified_state_update"
    }
    fn about(&self) -> &'static str {
        "one step of the simplified scan, the state in place; a real output where D or conj_sym is given"
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
        &[('B', None)]
    }
    fn time(&self) -> Option<char> {
        None
    }
    fn differentiable(&self) -> bool {
        false
    }

    fn plan(&self, call: &Call, _save: bool) -> Result<Vec<Planned>> {
        let (u, state) = (call.need("u")?, call.need("state")?);
        let y = match (is_real(call), u.dtype().is_double()) {
            (true, _) => u.dtype().real(),
            (false, true) => DType::Complex128,
            (false, false) => DType::Complex64,
        };
        Ok(vec![planned("y", y, &u.shape())?, planned("state", state.dtype(), &state.shape())?])
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

    fn oracle_cost(&self, sizes: &Sizes) -> f64 {
        sizes.product("BP") * (1.0 + sizes.product("H") / 2.0)
    }
    fn work(&self, sizes: &Sizes) -> Work {
        let states = sizes.product("BP");
        Work { state_steps: states, flops: states * (14.0 + 8.0 * sizes.product("H")), exps: 3.0 * states }
    }
    fn work_backward(&self, _: &Sizes) -> Work {
        Work::default()
    }

    /// The last step of the scan's sample, with the state that the steps before leave.
    fn sample(&self) -> Result<Call> {
        let whole = SimplifiedScan { inner: true }.sample()?;
        let steps = whole.sizes().get('L');
        let before = narrow(&whole, &Part([('L', 0..steps - 1)].into()))?;
        let mut results = memory::results(&before, false, Limits::default())?;
        compute::forward(&Exec::cpu(1), &before, &mut results)?;
        let mut call = Call::new(&SimplifiedStateUpdate);
        if let Some(state) = results.get("last_state") {
            call = call.with("state", state.clone());
        }
        for input in &whole.inputs {
            let view = input.buffer.view();
            let timed = input.argument.layout(view.rank()).is_some_and(|l| l.ends_with('L'));
            let last = if timed { view.index(view.rank() - 1, steps - 1) } else { view };
            call = call.with(input.argument.name, Tensor::from_dense(&Dense::from_view(&last), view.dtype()));
        }
        Ok(call)
    }

    fn random(&self, sizes: &Sizes, dtype: DType) -> Result<Call> {
        let complex = if dtype.is_double() { DType::Complex128 } else { DType::Complex64 };
        let mut rng = Rng::new(71);
        let u = real(dtype, &sizes.shape("BH"), || rng.normal())?;
        let delta = real(dtype, &sizes.shape("BP"), || rng.uniform(0.001, 0.1))?;
        let mut state = Tensor::host(complex, &sizes.shape("BP"))?;
        state.fill_with(|| Complex64::new(rng.normal(), rng.normal()));
        let call = Call::new(&SimplifiedStateUpdate).with("state", state).with("u", u).with("delta", delta);
        let call = SimplifiedScan { inner: true }.with_parameters(call, sizes, complex, 72)?;
        Ok(call.set("discretization", "zoh"))
    }

    fn bench(&self) -> Vec<(&'static str, Sizes)> {
        let layer = |batch, dim, states| Sizes::of(&[('B', batch), ('H', dim), ('P', states)]);
        vec![("s5 listops", layer(1, 128, 128)), ("s5 text, batch 64", layer(64, 256, 192))]
    }
}
