//! Calls of `selective_state_update`.

use crate::call::Call;
use crate::error::Result;
use crate::ops;
use crate::rng::Rng;
use crate::samples::last_step::last_step;
use crate::samples::selective_scan;
use crate::sizes::Sizes;
use crate::tensors::real;
use statescan::DType;
use statescan::ops::Operation;
use statescan::ops::call::carried;

/// The last step of the scan's call from the passage of text.
pub(super) fn embedded(op: &'static Operation) -> Result<Call> {
    last_step(op, selective_scan::embedded(ops::find("selective_scan")?)?)
}

/// A call of these sizes.
pub(super) fn random(op: &'static Operation, sizes: &Sizes, dtype: DType) -> Result<Call> {
    let heads = sizes.has('H');
    let [x, state, a, weight, map] = if heads { ["BHP", "BHPN", "HPN", "HP", "BGN"] } else { ["BD", "BDN", "DN", "D", "BGN"] };
    let parameter = carried(dtype, false);
    let mut rng = Rng::new(61);
    let mut normal = |dtype, layout: &str| real(dtype, &sizes.shape(layout), || rng.normal());
    let call = Call::new(op)
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

/// Shapes of models, the quickest one first.
pub(super) fn shapes() -> Vec<(&'static str, Sizes)> {
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
