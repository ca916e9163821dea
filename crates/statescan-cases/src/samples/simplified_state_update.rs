//! Calls of `simplified_state_update`.

use crate::call::Call;
use crate::error::Result;
use crate::ops;
use crate::rng::Rng;
use crate::samples::last_step::last_step;
use crate::samples::simplified_scan::{self, with_parameters};
use crate::sizes::Sizes;
use crate::tensors::real;
use num_complex::Complex64;
use statescan::DType;
use statescan::ops::Operation;
use statescan::ops::call::carried;
use statescan::tensor::Tensor;

/// The last step of the scan's call from the passage of text.
pub(super) fn embedded(op: &'static Operation) -> Result<Call> {
    last_step(op, simplified_scan::embedded(ops::find("s5_inner")?)?)
}

/// A call of these sizes.
pub(super) fn random(op: &'static Operation, sizes: &Sizes, dtype: DType) -> Result<Call> {
    let complex = carried(dtype, true);
    let mut rng = Rng::new(71);
    let u = real(dtype, &sizes.shape("BH"), || rng.normal())?;
    let delta = real(dtype, &sizes.shape("BP"), || rng.uniform(0.001, 0.1))?;
    let mut state = Tensor::host(complex, &sizes.shape("BP"))?;
    state.fill_with(|| Complex64::new(rng.normal(), rng.normal()));
    let call = Call::new(op).with("state", state).with("u", u).with("delta", delta);
    let call = with_parameters(call, sizes, complex, 72)?;
    Ok(call.set("discretization", "zoh"))
}

/// Shapes of models, the quickest one first.
pub(super) fn shapes() -> Vec<(&'static str, Sizes)> {
    let layer = |batch, dim, states| Sizes::of(&[('B', batch), ('H', dim), ('P', states)]);
    vec![("s5 listops", layer(1, 128, 128)), ("s5 text, batch 64", layer(64, 256, 192))]
}
