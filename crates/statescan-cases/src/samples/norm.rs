//! Calls of `norm`.

use crate::call::Call;
use crate::error::Result;
use crate::rng::Rng;
use crate::sizes::Sizes;
use crate::tensors::real;
use statescan::DType;
use statescan::ops::Operation;
use statescan::ops::call::carried;

/// A call of these sizes: the norm in front of a block, which adds what the block before it gave.
pub(super) fn random(op: &'static Operation, sizes: &Sizes, dtype: DType) -> Result<Call> {
    let (mut rng, rows) = (Rng::new(91), sizes.shape("BLD"));
    let mut values = |dtype, shape: &[usize]| real(dtype, shape, || rng.normal());
    let call = Call::new(op)
        .with("x", values(dtype, &rows)?)
        .with("residual", values(carried(dtype, false), &rows)?)
        .with("weight", values(carried(dtype, false), &sizes.shape("D"))?);
    Ok(call)
}

/// Shapes of models, the quickest one first.
pub(super) fn shapes() -> Vec<(&'static str, Sizes)> {
    let rows = |dim, seqlen| Sizes::of(&[('B', 1), ('D', dim), ('L', seqlen)]);
    vec![("mamba-130m", rows(768, 2048)), ("mamba-2.8b", rows(2560, 2048)), ("mamba-130m, batch 8", rows(768, 512).with('B', 8))]
}
