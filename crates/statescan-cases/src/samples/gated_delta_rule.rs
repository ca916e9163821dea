//! Calls of `gated_delta_rule`.

use crate::call::Call;
use crate::error::Result;
use crate::rng::Rng;
use crate::samples::features::Features;
use crate::sizes::Sizes;
use crate::tensors::real;
use statescan::DType;
use statescan::ops::Operation;
use statescan::ops::call::carried;

/// A call from the passage of text: raw gates, as a layer makes them.
pub(super) fn embedded(op: &'static Operation) -> Result<Call> {
    let (heads, value_heads, keys, values) = (2, 4, 32, 32);
    let text = Features::of_text(64);
    let rows = |seed: u64, heads: usize, width: usize| text.linear(seed, heads * width).conv(seed + 1, 4).silu();
    let mut rng = Rng::new(81);
    let call = Call::new(op)
        .with("q", rows(82, heads, keys).time_first(&[heads, keys])?)
        .with("k", rows(84, heads, keys).time_first(&[heads, keys])?)
        .with("v", rows(86, value_heads, values).time_first(&[value_heads, values])?)
        .with("g", text.linear(88, value_heads).time_first(&[value_heads])?)
        .with("beta", text.linear(89, value_heads).time_first(&[value_heads])?)
        .with("A_log", real(DType::F32, &[value_heads], || rng.uniform(0.0, 16.0f64.ln()))?)
        .with("dt_bias", real(DType::F32, &[value_heads], || rng.step_bias())?);
    Ok(call.set("qk_l2norm", true).set("beta_sigmoid", true))
}

/// A call of these sizes, with a decay for each head.
pub(super) fn random(op: &'static Operation, sizes: &Sizes, dtype: DType) -> Result<Call> {
    let mut rng = Rng::new(91);
    let mut normal = |layout: &str| real(dtype, &sizes.shape(layout), || rng.normal());
    let (q, k, v, beta) = (normal("BLHN")?, normal("BLHN")?, normal("BLJP")?, normal("BLJ")?);
    let mut rng = Rng::new(92);
    let decays = real(carried(dtype, false), &sizes.shape("BLJ"), || -rng.uniform(0.001, 0.2))?;
    let call = Call::new(op).with("q", q).with("k", k).with("v", v).with("g", decays).with("beta", beta);
    Ok(call.set("qk_l2norm", true).set("beta_sigmoid", true))
}

/// Shapes of models, the quickest one first.
pub(super) fn shapes() -> Vec<(&'static str, Sizes)> {
    let layer = |heads, value_heads, seqlen| {
        Sizes::of(&[('B', 1), ('L', seqlen), ('H', heads), ('J', value_heads), ('N', 128), ('P', 128)])
    };
    vec![
        ("qwen3.5-0.8b", layer(16, 16, 512)),
        ("qwen3-next, 512 steps", layer(16, 32, 512)),
        ("qwen3.5-0.8b, 2048 steps", layer(16, 16, 2048)),
    ]
}
