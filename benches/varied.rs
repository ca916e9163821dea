//! A word names how a measured call differs from the operation's usual one.

use num_complex::Complex64;
use statescan::DType;
use statescan::tensor::Tensor;
use statescan_cases::Result;
use statescan_cases::call::Call;
use statescan_cases::ops;
use statescan_cases::rng::Rng;

/// The words that change a call; those of its layout are [`laid_out`]'s.
pub(crate) const WORDS: [&str; 9] = ["bare", "zoh", "bilinear", "complex", "packed", "indexed", "trained", "strong", "large"];

/// The words of layouts: slices of longer rows, and steps before channels, as projections leave them.
pub(crate) const LAYOUTS: [&str; 2] = ["sliced", "steps-first"];

/// Sequences of a packed row.
const SEQUENCES: usize = 8;

/// The usual call, changed by one of [`WORDS`].
pub(crate) fn varied(call: Call, word: &str) -> Result<Call> {
    let steps = call.steps();
    Ok(match word {
        "bare" => bare(call),
        "zoh" | "bilinear" => call.set("discretization", word),
        "complex" => complex(call)?,
        "packed" => call.with("cu_seqlens", integers(&[SEQUENCES + 1], |i| i * steps / SEQUENCES)?),
        "indexed" => {
            let shape = [call.sizes().get('B'), steps];
            call.with("seq_idx", integers(&shape, |i| i % steps * SEQUENCES / steps)?)
        }
        // decays as training may leave them, and such that leave nothing within a few steps
        "trained" => decaying(call, 3.0, 0.0, 20.0),
        "strong" => decaying(call, 4.0, 3.0, 400.0),
        // sigmoids are zero or one
        "large" => changed(call, "x", |v| v * 40.0),
        _ => unreachable!("one of the words, which are looked at before"),
    })
}

fn integers(shape: &[usize], value: impl Fn(usize) -> usize) -> Result<Tensor> {
    let (mut tensor, mut at) = (Tensor::host(DType::I32, shape)?, 0..);
    tensor.fill_with(|| (value(at.next().unwrap_or_default()) as f64).into());
    Ok(tensor)
}

/// The call with its arguments of three axes and more in one of [`LAYOUTS`], or dense; the last axis is that of steps.
pub(crate) fn laid_out(mut call: Call, layout: Option<&str>) -> Result<Call> {
    for input in call.inputs.iter_mut().filter(|input| layout.is_some() && input.buffer.shape().len() > 2) {
        let shape = input.buffer.shape();
        let (outer, [rows, steps]) = (&shape[..shape.len() - 2], [shape[shape.len() - 2], shape[shape.len() - 1]]);
        // a slice begins at an odd element of a row that is an odd number of elements longer
        let (row, step, plane, first) = match layout {
            Some("steps-first") => (1, rows, rows * steps, 0),
            _ => (steps + 7, 1, rows * (steps + 7), 3),
        };
        let mut strides = vec![row as isize, step as isize];
        let all = outer.iter().rev().fold(plane, |stride, size| {
            strides.insert(0, stride as isize);
            stride * size
        });
        let mut moved = Tensor::strided(input.buffer.dtype(), &shape, &strides, first, all)?;
        moved.copy_from(&input.buffer.to_dense());
        input.buffer = moved;
    }
    Ok(call)
}

/// Without gate, bias and softplus; the steps are about what softplus and the biases of a model would give, so that states stay bounded.
fn bare(mut call: Call) -> Call {
    call.inputs.retain(|input| !matches!(input.argument.name, "z" | "dt_bias"));
    changed(call, "dt", |v| (v.re - 4.0).exp().ln_1p().into()).set("dt_softplus", false)
}

/// The argument of a name with other numbers, if it is there.
fn changed(mut call: Call, name: &str, number: impl Fn(Complex64) -> Complex64) -> Call {
    for input in call.inputs.iter_mut().filter(|input| input.argument.name == name) {
        let before = input.buffer.to_dense();
        let mut before = before.data().iter();
        input.buffer.fill_with(|| before.next().map_or(Complex64::ZERO, |&v| number(v)));
    }
    call
}

/// Stronger decays: of an operation whose steps have a bias its steps are so many times as far from it, and it is larger; of another one (S5) the
/// states decay so many times as fast.
fn decaying(call: Call, spread: f64, bias: f64, rate: f64) -> Call {
    if call.input("dt_bias").is_none() {
        return changed(call, "A", |v| Complex64::new(v.re * rate, v.im));
    }
    changed(changed(call, "dt", |v| v * spread), "dt_bias", |v| v + bias)
}

/// Every real argument that may be complex made so by an imaginary part of the same size.
fn complex(mut call: Call) -> Result<Call> {
    let mut rng = Rng::new(81);
    for input in call.inputs.iter_mut().filter(|input| ops::may_be_complex(input.argument) && !input.buffer.dtype().is_complex())
    {
        let real = input.buffer.to_dense();
        let mut real = real.data().iter();
        let dtype = if input.buffer.dtype().is_double() { DType::Complex128 } else { DType::Complex64 };
        input.buffer = Tensor::host(dtype, &input.buffer.shape())?;
        input.buffer.fill_with(|| real.next().map_or(Complex64::ZERO, |v| Complex64::new(v.re, v.re.abs() * rng.normal())));
    }
    Ok(call)
}

#[cfg(test)]
mod tests {
    use super::*;
    use statescan::Exec;
    use statescan_cases::measure::measured::Measured;
    use statescan_cases::samples;
    use statescan_cases::sizes::Sizes;

    /// How much is left of a state after some steps is what decays differ in.
    #[test]
    fn every_kind_of_call_agrees_with_the_oracle() {
        for (name, argument) in [("selective_scan", "dt_bias"), ("ssd", "dt_bias"), ("simplified_scan", "A")] {
            let op = ops::find(name).unwrap();
            let sizes = Sizes::of(&[('B', 1), ('D', 3), ('H', 3), ('P', 2), ('L', 40), ('N', 4)]);
            let usual = samples::random(op, &sizes, DType::F32).unwrap();
            let number = |call: &Call| call.input(argument).map(|input| input.buffer.to_dense().data()[0].re.abs());
            for word in WORDS.into_iter().filter(|word| name == "selective_scan" || ["trained", "strong"].contains(word)) {
                let call = varied(usual.clone(), word).unwrap();
                let layout = LAYOUTS.into_iter().cycle().nth(word.len()).filter(|_| word != "strong");
                let (before, after) = (number(&usual), number(&call));
                assert!(word != "strong" || (before.unwrap() - after.unwrap()).abs() > 1.0, "{name}: {before:?}, {after:?}");
                let off = Measured::new(laid_out(call, layout).unwrap()).unwrap().check(&Exec::cpu(1)).unwrap();
                assert!(off.is_empty(), "{name} {word} {layout:?}: {} is off", off[0].name);
            }
        }
    }
}
