//! How a scan's step comes from `dt` and its bias: what kernels, configurations and oracles read, and the oracles' own arithmetic.

/// Softplus, then limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepSize {
    pub softplus: bool,
    /// Lowest and highest.
    pub limit: (f64, f64),
}

impl StepSize {
    /// The step is `dt` with its bias.
    pub(crate) const PLAIN: StepSize = StepSize { softplus: false, limit: (f64::NEG_INFINITY, f64::INFINITY) };

    /// A raw step size after softplus and clamp, and its derivative by the raw one.
    pub(crate) fn exact(self, raw: f64) -> (f64, f64) {
        let (low, high) = self.limit;
        let (dt, slope) = if self.softplus { softplus(raw) } else { (raw, 1.0) };
        // NaN is neither below nor above, and stays
        if dt < low || dt > high { (dt.clamp(low, high), 0.0) } else { (dt, slope) }
    }
}

/// softplus with PyTorch's threshold, and its derivative.
fn softplus(v: f64) -> (f64, f64) {
    if v > 20.0 { (v, 1.0) } else { (v.exp().ln_1p(), 1.0 / (1.0 + (-v).exp())) }
}
