//! Calls of `causal_conv1d_update`.

use crate::call::Call;
use crate::error::Result;
use crate::rng::Rng;
use crate::samples::features::Features;
use crate::sizes::Sizes;
use crate::tensors::real;
use statescan::DType;
use statescan::ops::Operation;
use statescan::ops::call::carried;

/// A call from the passage of text.
pub(super) fn embedded(op: &'static Operation) -> Result<Call> {
    let (inner, taps) = (128, 4);
    let x = Features::of_text(64).linear(1, inner);
    let mut weights = x.conv_weights(2, taps).into_iter();
    let before = x.clone().first(x.len() - 1).channels_first()?.to_dense();
    let mut rng = Rng::new(3);
    let mut at = (0..inner).flat_map(|d| (x.len() - taps..x.len() - 1).map(move |t| (d, t)));
    let state = real(DType::F32, &[1, inner, taps - 1], || at.next().map_or(0.0, |(d, t)| before.at(&[0, d, t]).re))?;
    let call = Call::new(op)
        .with("x", x.last(&[1, inner])?)
        .with("conv_state", state)
        .with("weight", real(DType::F32, &[inner, taps], || weights.next().unwrap_or(0.0).into())?)
        .with("bias", real(DType::F32, &[inner], || rng.uniform(-0.5, 0.5))?);
    Ok(call.set("activation", "silu"))
}

/// A call of these sizes.
pub(super) fn random(op: &'static Operation, sizes: &Sizes, dtype: DType) -> Result<Call> {
    let mut rng = Rng::new(32);
    let parameter = carried(dtype, false);
    let call = Call::new(op)
        .with("x", real(dtype, &sizes.shape("BD"), || rng.normal())?)
        .with("conv_state", real(parameter, &sizes.shape("BDM"), || rng.normal())?)
        .with("weight", real(parameter, &sizes.shape("DW"), || rng.uniform(-0.5, 0.5))?)
        .with("bias", real(parameter, &sizes.shape("D"), || rng.uniform(-0.5, 0.5))?);
    Ok(call.set("activation", "silu"))
}

/// Shapes of models, the quickest one first.
pub(super) fn shapes() -> Vec<(&'static str, Sizes)> {
    let step = |batch, dim| Sizes::of(&[('B', batch), ('D', dim), ('W', 4), ('M', 3)]);
    vec![("mamba-130m", step(1, 1536)), ("mamba-2.8b, batch 64", step(64, 5120))]
}
