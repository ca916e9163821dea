//! Calls of `simplified_scan` and `s5_inner`.

use crate::call::Call;
use crate::error::Result;
use crate::ops;
use crate::rng::Rng;
use crate::samples::features::Features;
use crate::sizes::Sizes;
use crate::tensors::real;
use num_complex::Complex64;
use statescan::DType;
use statescan::ops::Operation;
use statescan::ops::call::carried;
use statescan::tensor::Tensor;

/// A call from the passage of text.
pub(super) fn embedded(op: &'static Operation) -> Result<Call> {
    let sizes = Sizes::of(&[('P', 32), ('H', 32)]);
    let text = Features::of_text(64);
    let u = text.linear(1, sizes.get('H'));
    // steps of about a hundredth, as S5 starts with
    let delta = text.linear(2, sizes.get('P')).map(|v| (v - 4.0).exp().ln_1p());
    let call = Call::new(op).with("u", u.channels_first()?).with("delta", delta.channels_first()?);
    with_parameters(call, &sizes, DType::Complex64, 3)
}

/// A call of these sizes.
pub(super) fn random(op: &'static Operation, sizes: &Sizes, dtype: DType) -> Result<Call> {
    let mut rng = Rng::new(51);
    let u = real(dtype, &sizes.shape("BHL"), || rng.normal())?;
    let delta = real(dtype, &sizes.shape("BPL"), || rng.uniform(0.001, 0.1))?;
    let call = Call::new(op).with("u", u).with("delta", delta);
    let call = with_parameters(call, sizes, carried(dtype, true), 52)?;
    Ok(call.set("discretization", "zoh"))
}

/// Shapes of models, the quickest one first.
pub(super) fn shapes() -> Vec<(&'static str, Sizes)> {
    let layer = |batch, dim, states, seqlen| Sizes::of(&[('B', batch), ('H', dim), ('P', states), ('L', seqlen)]);
    vec![
        ("s5 listops", layer(1, 128, 128, 2048)),
        ("s5 text", layer(1, 256, 192, 4096)),
        ("s5 long", layer(1, 64, 64, 65536)),
        ("s5 batch 8", layer(8, 256, 128, 1024)),
    ]
}

/// HiPPO's diagonal, `-1/2 + i pi n`, and maps of unit gain.
pub(super) fn with_parameters(call: Call, sizes: &Sizes, complex: DType, seed: u64) -> Result<Call> {
    let mut rng = Rng::new(seed);
    let mut matrix = |layout: &str, scale: f64| -> Result<Tensor> {
        let mut buffer = Tensor::host(complex, &sizes.shape(layout))?;
        buffer.fill_with(|| Complex64::new(rng.normal(), rng.normal()) * scale);
        Ok(buffer)
    };
    let (states, dim) = (sizes.get('P') as f64, sizes.get('H') as f64);
    let (b, c) = (matrix("PH", (0.5 / dim).sqrt())?, matrix("HP", (0.5 / states).sqrt())?);
    let mut n = -1.0;
    let mut a = Tensor::host(complex, &sizes.shape("P"))?;
    a.fill_with(|| {
        n += 1.0;
        Complex64::new(-0.5, std::f64::consts::PI * n)
    });
    let call = call.with("A", a).with("B", b).with("C", c);
    if ops::argument(call.op, "D").is_some() {
        Ok(call.with("D", real(complex.real(), &sizes.shape("H"), || 1.0)?))
    } else {
        Ok(call)
    }
}
