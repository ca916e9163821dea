//! What a measured call differs in from the operation's usual one.

use num_complex::Complex64;
use statescan::DType;
use statescan::tensor::Tensor;
use statescan_cases::Result;
use statescan_cases::call::Call;
use statescan_cases::ops;
use statescan_cases::rng::Rng;

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variation {
    /// As a model makes it: with gate, bias and softplus where there are any.
    Plain,
    /// Without gate, bias and softplus.
    Bare,
    /// Discretized by a zero-order hold.
    Zoh,
    /// Discretized by the bilinear rule.
    Bilinear,
    /// Complex parameters and inputs.
    Complex,
    /// Complex, discretized by a zero-order hold.
    ComplexZoh,
    /// Complex, discretized by the bilinear rule.
    ComplexBilinear,
    /// Eight sequences in each row, by their bounds.
    Packed,
    /// Eight sequences in each row, by the sequence of each step.
    Indexed,
    /// Decays as training may leave them.
    Trained,
    /// Decays that leave nothing within a few steps.
    Strong,
    /// Inputs so large that their sigmoids are zero or one.
    Large,
}

/// How tensors with an axis of steps lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// Dense, as they are drawn.
    Dense,
    /// As slices of longer rows.
    Sliced,
    /// Steps before channels, as projections leave them.
    StepsFirst,
}

impl Variation {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Variation::Plain => "plain",
            Variation::Bare => "no gate, bias, softplus",
            Variation::Zoh => "zoh",
            Variation::Bilinear => "bilinear",
            Variation::Complex => "complex",
            Variation::ComplexZoh => "complex zoh",
            Variation::ComplexBilinear => "complex bilinear",
            Variation::Packed => "8 sequences by bounds",
            Variation::Indexed => "8 sequences by index",
            Variation::Trained => "trained decays",
            Variation::Strong => "strong decays",
            Variation::Large => "large inputs",
        }
    }

    /// The usual call changed.
    pub fn apply(self, call: Call) -> Result<Call> {
        match self {
            Variation::Plain => Ok(call),
            Variation::Bare => Ok(bare(call)),
            Variation::Zoh => Ok(call.set("discretization", "zoh")),
            Variation::Bilinear => Ok(call.set("discretization", "bilinear")),
            Variation::Complex => complex(call),
            Variation::ComplexZoh => Ok(complex(call)?.set("discretization", "zoh")),
            Variation::ComplexBilinear => Ok(complex(call)?.set("discretization", "bilinear")),
            Variation::Packed => {
                let seqlen = call.steps();
                let bounds = integers(&[SEQUENCES + 1], |i| i * seqlen / SEQUENCES)?;
                Ok(call.with("cu_seqlens", bounds))
            }
            Variation::Indexed => {
                let seqlen = call.steps();
                let index = integers(&[call.sizes().get('B'), seqlen], |i| i % seqlen * SEQUENCES / seqlen)?;
                Ok(call.with("seq_idx", index))
            }
            Variation::Trained => Ok(decaying(call, 3.0, 0.0, 20.0)),
            Variation::Strong => Ok(decaying(call, 4.0, 3.0, 400.0)),
            Variation::Large => Ok(changed(call, "x", |v| v * 40.0)),
        }
    }
}

/// Sequences of a packed row.
const SEQUENCES: usize = 8;

fn integers(shape: &[usize], value: impl Fn(usize) -> usize) -> Result<Tensor> {
    let (mut tensor, mut at) = (Tensor::host(DType::I32, shape)?, 0..);
    tensor.fill_with(|| (value(at.next().unwrap_or_default()) as f64).into());
    Ok(tensor)
}

impl Layout {
    /// In words, unless it is the usual one.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Layout::Dense => None,
            Layout::Sliced => Some("slices of longer rows"),
            Layout::StepsFirst => Some("steps before channels"),
        }
    }

    /// The call with its arguments of three axes and more in this layout; the last axis is that of steps.
    pub fn apply(self, mut call: Call) -> Result<Call> {
        for input in call.inputs.iter_mut().filter(|input| self != Layout::Dense && input.buffer.shape().len() > 2) {
            let shape = input.buffer.shape();
            let [rows, steps] = [shape[shape.len() - 2], shape[shape.len() - 1]];
            // a slice begins at an odd element of a row that is an odd number of elements longer
            let (row, step, plane, first) = match self {
                Layout::StepsFirst => (1, rows, rows * steps, 0),
                _ => (steps + 7, 1, rows * (steps + 7), 3),
            };
            let planes: usize = shape[..shape.len() - 2].iter().product();
            let mut strides: Vec<isize> = vec![row as isize, step as isize];
            shape[..shape.len() - 2].iter().rev().fold(plane, |stride, size| {
                strides.insert(0, stride as isize);
                stride * size
            });
            let mut moved = Tensor::strided(input.buffer.dtype(), &shape, &strides, first, planes * plane)?;
            moved.copy_from(&input.buffer.to_dense());
            input.buffer = moved;
        }
        Ok(call)
    }
}

/// Without gate, bias and softplus; the steps are what softplus would give, so that states stay bounded.
fn bare(mut call: Call) -> Call {
    call.inputs.retain(|input| !matches!(input.argument.name, "z" | "dt_bias"));
    for input in call.inputs.iter_mut().filter(|input| input.argument.name == "dt") {
        let raw = input.buffer.to_dense();
        let mut raw = raw.data().iter();
        // about the steps that the biases of a model give
        input.buffer.fill_with(|| raw.next().map_or(Complex64::ZERO, |v| ((v.re - 4.0).exp().ln_1p()).into()));
    }
    call.set("dt_softplus", false)
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
    use statescan_cases::measure::device::repeated;
    use statescan_cases::measure::measured::Measured;
    use statescan_cases::samples;
    use statescan_cases::sizes::Sizes;

    /// How much is left of a state after some steps is what these kinds of calls differ in.
    #[test]
    fn decays_are_as_strong_as_they_say() {
        for (name, argument) in [("selective_scan", "dt_bias"), ("ssd", "dt_bias"), ("simplified_scan", "A")] {
            let op = ops::find(name).unwrap();
            let sizes = Sizes::of(&[('B', 1), ('D', 3), ('H', 3), ('P', 2), ('L', 40), ('N', 4)]);
            let of = |variation: Variation| {
                let call = variation.apply(samples::random(op, &sizes, DType::F32).unwrap()).unwrap();
                let off = Measured::new(call.clone()).unwrap().check(&Exec::cpu(1)).unwrap();
                assert!(off.is_empty(), "{name} {}: {} is off", variation.name(), off[0].name);
                call.input(argument).unwrap().buffer.to_dense().data()[0].re.abs()
            };
            let [plain, strong] = [Variation::Plain, Variation::Strong].map(of);
            assert!((plain - strong).abs() > 1.0, "{name}: {plain}, {strong}");
        }
    }

    #[test]
    fn every_kind_of_call_agrees_with_the_oracle() {
        let op = ops::find("selective_scan").unwrap();
        let sizes = Sizes::of(&[('B', 1), ('D', 3), ('L', 40), ('N', 4)]);
        let kinds =
            [Variation::Plain, Variation::Bare, Variation::Zoh, Variation::Complex, Variation::Packed, Variation::Indexed];
        for (variation, layout) in kinds.into_iter().zip([Layout::Dense, Layout::Sliced, Layout::StepsFirst].into_iter().cycle())
        {
            let call = variation.apply(samples::random(op, &sizes, DType::F32).unwrap()).unwrap();
            let call = layout.apply(repeated(&call, if call.packed() { 1 } else { 2 }).unwrap()).unwrap();
            let off = Measured::new(call).unwrap().check(&Exec::cpu(1)).unwrap();
            assert!(off.is_empty(), "{} {layout:?}: {} is off", variation.name(), off[0].name);
        }
    }
}
