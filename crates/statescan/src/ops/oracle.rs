//! What the oracles of several operations share, in `f64`.

/// softplus with PyTorch's threshold, and its derivative.
pub(crate) fn softplus(v: f64) -> (f64, f64) {
    if v > 20.0 { (v, 1.0) } else { (v.exp().ln_1p(), 1.0 / (1.0 + (-v).exp())) }
}

/// silu and its derivative.
pub(crate) fn silu(v: f64) -> (f64, f64) {
    let s = 1.0 / (1.0 + (-v).exp());
    (v * s, s * (1.0 + v * (1.0 - s)))
}
