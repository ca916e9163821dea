//! Calls of `turned_maps`.

use crate::call::Call;
use crate::error::Result;
use crate::rng::Rng;
use crate::sizes::Sizes;
use crate::tensors::real;
use statescan::DType;
use statescan::ops::Operation;
use statescan::ops::call::carried;

/// A small call.
pub(super) fn embedded(op: &'static Operation) -> Result<Call> {
    random(op, &layer(4, 16, 64), DType::F32)
}

/// A call of these sizes: normed maps, biases about 1, steps as a softplus makes them.
pub(super) fn random(op: &'static Operation, sizes: &Sizes, dtype: DType) -> Result<Call> {
    let (mut rng, wide) = (Rng::new(92), carried(dtype, false));
    let maps = real(dtype, &sizes.shape("BL2GN"), || rng.normal())?;
    let bias = real(wide, &sizes.shape("2HN"), || 1.0 + 0.1 * rng.normal())?;
    let rate = real(dtype, &sizes.shape("BLHA"), || rng.normal())?;
    let dt = real(wide, &sizes.shape("BLH"), || rng.uniform(0.001, 0.1))?;
    Ok(Call::new(op).with("maps", maps).with("bias", bias).with("rate", rate).with("dt", dt))
}

/// A layer with one group, half of whose columns are turned.
fn layer(heads: usize, dstate: usize, seqlen: usize) -> Sizes {
    Sizes::of(&[('B', 1), ('L', seqlen), ('G', 1), ('H', heads), ('N', dstate), ('A', dstate / 4)])
}

/// Shapes of models, the quickest one first.
pub(super) fn shapes() -> Vec<(&'static str, Sizes)> {
    vec![("mamba3-187m", layer(24, 128, 2048)), ("mamba3-1.5b", layer(64, 128, 2048))]
}
