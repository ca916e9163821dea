//! What a measured call differs in from the operation's usual one.

use num_complex::Complex64;
use statescan::DType;
use statescan::tensor::Tensor;
use statescan_cases::Result;
use statescan_cases::call::Call;
use statescan_cases::rng::Rng;

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Variation {
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
        }
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

/// Every real argument that may be complex made so by an imaginary part of the same size.
fn complex(mut call: Call) -> Result<Call> {
    let mut rng = Rng::new(81);
    for input in call.inputs.iter_mut().filter(|input| input.argument.complex && !input.buffer.dtype().is_complex()) {
        let real = input.buffer.to_dense();
        let mut real = real.data().iter();
        let dtype = if input.buffer.dtype().is_double() { DType::Complex128 } else { DType::Complex64 };
        input.buffer = Tensor::host(dtype, &input.buffer.shape())?;
        input.buffer.fill_with(|| real.next().map_or(Complex64::ZERO, |v| Complex64::new(v.re, v.re.abs() * rng.normal())));
    }
    Ok(call)
}
