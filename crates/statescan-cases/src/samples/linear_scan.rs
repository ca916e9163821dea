//! Calls of `linear_scan`.

use crate::call::Call;
use crate::error::Result;
use crate::rng::Rng;
use crate::samples::features::Features;
use crate::sizes::Sizes;
use crate::tensors::real;
use statescan::DType;
use statescan::ops::Operation;

/// A call from the passage of text.
pub(super) fn embedded(op: &'static Operation) -> Result<Call> {
    let width = 128;
    let text = Features::of_text(64);
    // the gates of an RG-LRU: a decay near one, and the input scaled so that the state keeps its size
    let decay = text.linear(1, width).map(|v| (-0.1 / (1.0 + (-v).exp())).exp());
    let input = text.linear(2, width).times(&decay.clone().map(|a| (1.0 - a * a).sqrt()));
    Ok(Call::new(op).with("a", decay.channels_first()?).with("b", input.channels_first()?))
}

/// A call of these sizes.
pub(super) fn random(op: &'static Operation, sizes: &Sizes, dtype: DType) -> Result<Call> {
    let mut rng = Rng::new(41);
    let shape = sizes.shape("BDL");
    let a = real(dtype, &shape, || rng.uniform(0.9, 1.0))?;
    let b = real(dtype, &shape, || rng.normal())?;
    Ok(Call::new(op).with("a", a).with("b", b))
}

/// Shapes of models, the quickest one first.
pub(super) fn shapes() -> Vec<(&'static str, Sizes)> {
    let channels = |dim, seqlen| Sizes::of(&[('B', 1), ('D', dim), ('L', seqlen)]);
    vec![("rg-lru 2b", channels(2560, 2048)), ("few, long", channels(64, 65536)), ("rg-lru 9b", channels(4096, 4096))]
}
