//! Calls of `gated_delta_rule_update`.

use crate::call::Call;
use crate::error::Result;
use crate::ops;
use crate::rng::Rng;
use crate::samples::{gated_delta_rule, last_step::last_step};
use crate::sizes::Sizes;
use crate::tensors::real;
use statescan::DType;
use statescan::ops::Operation;
use statescan::ops::call::carried;

/// The last step of the operation's call from the passage of text.
pub(super) fn embedded(op: &'static Operation) -> Result<Call> {
    last_step(op, gated_delta_rule::embedded(ops::find("gated_delta_rule")?)?)
}

/// A call of these sizes, with a decay for each head.
pub(super) fn random(op: &'static Operation, sizes: &Sizes, dtype: DType) -> Result<Call> {
    let (mut rng, wide) = (Rng::new(95), carried(dtype, false));
    let mut normal = |dtype, layout: &str| real(dtype, &sizes.shape(layout), || rng.normal());
    let call = Call::new(op)
        .with("state", normal(wide, "BJNP")?)
        .with("q", normal(dtype, "BHN")?)
        .with("k", normal(dtype, "BHN")?)
        .with("v", normal(dtype, "BJP")?)
        .with("beta", normal(dtype, "BJ")?);
    let mut rng = Rng::new(96);
    let call = call.with("g", real(wide, &sizes.shape("BJ"), || -rng.uniform(0.001, 0.2))?);
    Ok(call.set("qk_l2norm", true).set("beta_sigmoid", true))
}

/// Shapes of models, the quickest one first.
pub(super) fn shapes() -> Vec<(&'static str, Sizes)> {
    let layer = |batch, value_heads| Sizes::of(&[('B', batch), ('H', 16), ('J', value_heads), ('N', 128), ('P', 128)]);
    vec![("qwen3.5-0.8b", layer(1, 16)), ("qwen3-next", layer(1, 32)), ("qwen3-next, batch 16", layer(16, 32))]
}
