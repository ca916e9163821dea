//! Calls of `ssd`.

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
    let (heads, headdim, dstate) = (4, 32, 64);
    let text = Features::of_text(64);
    let x = text.linear(1, heads * headdim).conv(2, 4).silu();
    let z = text.linear(3, heads * headdim);
    let mut rng = Rng::new(6);
    let call = Call::new(op)
        .with("x", x.time_first(&[heads, headdim])?)
        .with("dt", text.linear(4, heads).time_first(&[heads])?)
        .with("A", real(DType::F32, &[heads], || -rng.uniform(1.0, 16.0))?)
        .with("B", text.linear(7, dstate).conv(8, 4).silu().time_first(&[1, dstate])?)
        .with("C", text.linear(9, dstate).conv(10, 4).silu().time_first(&[1, dstate])?)
        .with("D", real(DType::F32, &[heads], || 1.0)?)
        .with("z", z.time_first(&[heads, headdim])?)
        .with("dt_bias", real(DType::F32, &[heads], || rng.step_bias())?);
    Ok(call.set("dt_softplus", true))
}

/// A call of these sizes.
pub(super) fn random(op: &'static Operation, sizes: &Sizes, dtype: DType) -> Result<Call> {
    let mut rng = Rng::new(21);
    let mut normal = |layout: &str, scale: f64| real(dtype, &sizes.shape(layout), || rng.normal() * scale);
    let (x, dt, b, c, z) =
        (normal("BLHP", 1.0)?, normal("BLH", 0.5)?, normal("BLGN", 1.0)?, normal("BLGN", 1.0)?, normal("BLHP", 1.0)?);
    let mut rng = Rng::new(22);
    let parameter = carried(dtype, false);
    let heads = [sizes.get('H')];
    let call = Call::new(op)
        .with("x", x)
        .with("dt", dt)
        .with("A", real(parameter, &heads, || -rng.uniform(1.0, 16.0))?)
        .with("B", b)
        .with("C", c)
        .with("D", real(parameter, &heads, || 1.0)?)
        .with("z", z)
        .with("dt_bias", real(parameter, &heads, || rng.step_bias())?);
    Ok(call.set("dt_softplus", true))
}

/// Shapes of models, the quickest one first.
pub(super) fn shapes() -> Vec<(&'static str, Sizes)> {
    let mamba = |heads, seqlen| Sizes::of(&[('B', 1), ('L', seqlen), ('H', heads), ('P', 64), ('G', 1), ('N', 128)]);
    vec![
        ("mamba2-130m", mamba(24, 1024)),
        ("mamba2-370m", mamba(32, 1024)),
        ("mamba2-780m", mamba(48, 1024)),
        ("mamba2-1.3b", mamba(64, 1024)),
        ("mamba2-2.7b", mamba(80, 1024)),
        ("mamba2-130m, long", mamba(24, 8192)),
        ("8 groups", mamba(32, 1024).with('G', 8)),
    ]
}
