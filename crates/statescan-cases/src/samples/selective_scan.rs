//! Calls of `selective_scan`.

use crate::call::Call;
use crate::error::Result;
use crate::rng::Rng;
use crate::samples::features::Features;
use crate::sizes::Sizes;
use crate::tensors::real;
use statescan::DType;
use statescan::ops::Operation;
use statescan::ops::call::carried;
use statescan::tensor::{Dense, Tensor};

/// A call from the passage of text.
pub(super) fn embedded(op: &'static Operation) -> Result<Call> {
    let (inner, dstate, rank) = (128, 16, 8);
    let text = Features::of_text(64);
    let x = text.linear(1, inner).conv(2, 4).silu();
    let z = text.linear(3, inner);
    let dt = x.linear(4, rank).linear(5, inner);
    let mut rng = Rng::new(6);
    let call = Call::new(op)
        .with("x", x.channels_first()?)
        .with("dt", dt.channels_first()?)
        .with("A", Tensor::from_dense(&state_matrix(inner, dstate)?, DType::F32))
        .with("B", x.linear(7, dstate).channels_first()?)
        .with("C", x.linear(8, dstate).channels_first()?)
        .with("D", real(DType::F32, &[inner], || 1.0)?)
        .with("z", z.channels_first()?)
        .with("dt_bias", real(DType::F32, &[inner], || rng.step_bias())?);
    Ok(call.set("dt_softplus", true))
}

/// A call of these sizes.
pub(super) fn random(op: &'static Operation, sizes: &Sizes, dtype: DType) -> Result<Call> {
    let mut rng = Rng::new(11);
    let mut normal = |layout: &str, scale: f64| real(dtype, &sizes.shape(layout), || rng.normal() * scale);
    let (x, dt, b, c, z) =
        (normal("BDL", 1.0)?, normal("BDL", 0.5)?, normal("BGNL", 1.0)?, normal("BGNL", 1.0)?, normal("BDL", 1.0)?);
    let mut rng = Rng::new(12);
    let (dim, dstate) = (sizes.get('D'), sizes.get('N'));
    let parameter = carried(dtype, false);
    let call = Call::new(op)
        .with("x", x)
        .with("dt", dt)
        .with("A", Tensor::from_dense(&state_matrix(dim, dstate)?, parameter))
        .with("B", b)
        .with("C", c)
        .with("D", real(parameter, &[dim], || 1.0)?)
        .with("z", z)
        .with("dt_bias", real(parameter, &[dim], || rng.step_bias())?);
    Ok(call.set("dt_softplus", true))
}

/// Shapes of models, the quickest one first.
pub(super) fn shapes() -> Vec<(&'static str, Sizes)> {
    let mamba = |dim, seqlen| Sizes::of(&[('B', 1), ('D', dim), ('L', seqlen), ('N', 16), ('G', 1)]);
    vec![
        ("mamba-130m", mamba(1536, 1024)),
        ("mamba-370m", mamba(2048, 1024)),
        ("mamba-790m", mamba(3072, 1024)),
        ("mamba-1.4b", mamba(4096, 1024)),
        ("mamba-2.8b", mamba(5120, 1024)),
        ("mamba-130m, long", mamba(1536, 8192)),
        ("mamba-130m, batch 8", mamba(1536, 512).with('B', 8)),
    ]
}

/// `A[d, n] = -(n + 1)`, Mamba's first value.
fn state_matrix(dim: usize, dstate: usize) -> Result<Dense> {
    let values: Vec<f64> = (0..dim * dstate).map(|i| -((i % dstate.max(1)) as f64 + 1.0)).collect();
    Ok(Dense::from_slice(&values, &[dim, dstate])?)
}
