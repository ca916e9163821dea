//! How a scan's step comes from `dt`, as kernels are made for it.

use crate::step_size::StepSize;
use crate::tensor::{DType, View};
use statescan_cuda::{Config, Constants};

/// The options of `step_size.cuh`, and the types of what it reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepTypes {
    pub dt: DType,
    pub bias: Option<DType>,
    /// Steps of the decay alone.
    pub dt_a: Option<DType>,
    pub how: StepSize,
}

impl StepTypes {
    pub(crate) fn of(dt: &View<'_>, bias: &Option<View<'_>>, dt_a: &Option<View<'_>>, how: StepSize) -> Self {
        StepTypes { dt: dt.dtype(), bias: bias.map(|v| v.dtype()), dt_a: dt_a.map(|v| v.dtype()), how }
    }
}

/// Whether limits of steps limit anything.
fn has_limit(limit: (f64, f64)) -> bool {
    limit != (f64::NEG_INFINITY, f64::INFINITY)
}

impl Constants for StepTypes {
    fn add_to(&self, config: Config) -> Config {
        let StepTypes { dt, bias, dt_a, how: StepSize { softplus, limit } } = *self;
        config
            .dtype("DT", dt)
            .dtype("BIAS", bias.unwrap_or(DType::F32))
            .dtype("DT_A", dt_a.unwrap_or(DType::F32))
            .flag("HAS_BIAS", bias.is_some())
            .flag("SOFTPLUS", softplus)
            .flag("HAS_LIMIT", has_limit(limit))
            .flag("HAS_DT_A", dt_a.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_a_constant() {
        let how = StepSize { softplus: false, limit: (f64::NEG_INFINITY, f64::INFINITY) };
        let plain = StepTypes { dt: DType::BF16, bias: None, dt_a: None, how };
        let config = |step_size| Config::default().with(&step_size).to_string();
        let text = config(plain);
        assert!(text.contains("typedef bf16 DT;") && !text.contains("true"), "{text}");
        let options = [
            (StepTypes { bias: Some(DType::F16), ..plain }, "constexpr bool HAS_BIAS = true;"),
            (StepTypes { how: StepSize { softplus: true, ..how }, ..plain }, "constexpr bool SOFTPLUS = true;"),
            (StepTypes { how: StepSize { limit: (0.0, f64::INFINITY), ..how }, ..plain }, "constexpr bool HAS_LIMIT = true;"),
            (StepTypes { dt_a: Some(DType::F64), ..plain }, "constexpr bool HAS_DT_A = true;"),
        ];
        for (step_size, line) in options {
            let text = config(step_size);
            assert!(text.contains(line) && text.matches("true").count() == 1, "{text}");
        }
    }
}
