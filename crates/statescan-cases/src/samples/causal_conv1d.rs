//! Calls of `causal_conv1d`.

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
    let mut rng = Rng::new(3);
    let call = Call::new(op)
        .with("x", x.channels_first()?)
        .with("weight", real(DType::F32, &[inner, taps], || weights.next().unwrap_or(0.0).into())?)
        .with("bias", real(DType::F32, &[inner], || rng.uniform(-0.5, 0.5))?);
    Ok(call.set("activation", "silu"))
}

/// A call of these sizes.
pub(super) fn random(op: &'static Operation, sizes: &Sizes, dtype: DType) -> Result<Call> {
    let mut rng = Rng::new(31);
    let parameter = carried(dtype, false);
    let call = Call::new(op)
        .with("x", real(dtype, &sizes.shape("BDL"), || rng.normal())?)
        .with("weight", real(parameter, &sizes.shape("DW"), || rng.uniform(-0.5, 0.5))?)
        .with("bias", real(parameter, &sizes.shape("D"), || rng.uniform(-0.5, 0.5))?);
    Ok(call.set("activation", "silu"))
}

/// Shapes of models, the quickest one first.
pub(super) fn shapes() -> Vec<(&'static str, Sizes)> {
    let filter = |dim, seqlen| Sizes::of(&[('B', 1), ('D', dim), ('L', seqlen), ('W', 4)]);
    vec![
        ("mamba-130m", filter(1536, 2048)),
        ("mamba-2.8b", filter(5120, 2048)),
        ("mamba-130m, batch 8", filter(1536, 512).with('B', 8)),
    ]
}
