//! How decays and beta come from what a call has of them: what kernels and oracles read, and the oracles' own arithmetic.

use crate::cuda::{Header, header};
use crate::error::{Error, Result};
use crate::tensor::View;

/// How kernels on CUDA make decays and beta.
pub(super) const GATES: Header = header!("gates.cuh");

/// Options of a call and of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Gates {
    /// Whether each key channel has its own decay.
    pub by_channel: bool,
    /// Whether `g` is raw.
    pub raw: bool,
    /// The lowest logarithm of a raw gate, if it has one.
    pub lower_bound: Option<f64>,
    pub beta_sigmoid: bool,
    /// The factor of beta.
    pub beta_factor: f64,
    /// The factor of the output.
    pub scale: f64,
    pub qk_l2norm: bool,
}

/// The arguments that [`Gates`] are made from.
pub(crate) struct GateArgs<'g, 'a> {
    pub op: &'static str,
    pub g: &'g Option<View<'a>>,
    pub beta: &'g Option<View<'a>>,
    pub a_log: &'g Option<View<'a>>,
    pub dt_bias: &'g Option<View<'a>>,
    pub scale: f64,
    pub qk_l2norm: bool,
    pub lower_bound: f64,
    pub beta_sigmoid: bool,
    pub allow_neg_eigval: bool,
}

impl Gates {
    /// Makes gates of arguments whose shapes were checked; `steps` are the axes of a time step before heads, `width` is that of keys.
    pub(crate) fn new(args: &GateArgs<'_, '_>, axes: usize, width: usize) -> Result<Self> {
        let GateArgs { op, g, beta, a_log, dt_bias, .. } = *args;
        let absent = |argument, expected| Err(Error::Presence { op, argument, expected });
        let by_channel = g.as_ref().is_some_and(|g| g.rank() > axes);
        if a_log.is_some() && g.is_none() {
            return absent("g", "must be there beside `A_log`");
        }
        if dt_bias.is_some() && a_log.is_none() {
            return absent("a_log", "must be there beside `dt_bias`: the gate is raw then");
        }
        if let Some(bias) = dt_bias
            && (bias.rank() == 2) != by_channel
        {
            let expected = if by_channel { "shape (value_heads, key_width), as `g`" } else { "shape (value_heads,), as `g`" };
            return Err(Error::Rank {
                op,
                argument: "dt_bias",
                expected: expected.into(),
                got: bias.shape(),
                help: String::new(),
            });
        }
        let value = |argument, expected, got| Err(Error::Value { op, argument, expected, got });
        if args.lower_bound > 0.0 || !args.lower_bound.is_finite() {
            return value("lower_bound", "finite, below 0, or 0 for none", args.lower_bound);
        }
        if args.lower_bound < 0.0 && a_log.is_none() {
            return absent("a_log", "must be there beside `lower_bound`: the gate is raw then");
        }
        if !args.scale.is_finite() {
            return value("scale", "finite", args.scale);
        }
        if args.beta_sigmoid && beta.is_none() {
            return absent("beta", "must be there beside `beta_sigmoid`");
        }
        if args.allow_neg_eigval && !args.beta_sigmoid {
            return value("allow_neg_eigval", "set beside `beta_sigmoid`, which it doubles,", 1.0);
        }
        Ok(Gates {
            by_channel,
            raw: a_log.is_some(),
            lower_bound: (args.lower_bound < 0.0).then_some(args.lower_bound),
            beta_sigmoid: args.beta_sigmoid,
            beta_factor: if args.allow_neg_eigval { 2.0 } else { 1.0 },
            scale: if args.scale == 0.0 { 1.0 / (width.max(1) as f64).sqrt() } else { args.scale },
            qk_l2norm: args.qk_l2norm,
        })
    }

    /// The logarithm of a decay from a gate with its bias and A_log, and its derivatives by both.
    pub(crate) fn exact_decay(&self, gate: f64, a_log: f64) -> Decay {
        if !self.raw {
            return Decay { log: gate, by_gate: 1.0, by_a_log: 0.0 };
        }
        let rate = a_log.exp();
        if let Some(bound) = self.lower_bound {
            let s = sigmoid(rate * gate);
            let slope = bound * s * (1.0 - s) * rate;
            return Decay { log: bound * s, by_gate: slope, by_a_log: slope * gate };
        }
        let (soft, slope) = if gate > 20.0 { (gate, 1.0) } else { (gate.exp().ln_1p(), sigmoid(gate)) };
        Decay { log: -rate * soft, by_gate: -rate * slope, by_a_log: -rate * soft }
    }

    /// Beta from what a call has, and its derivative.
    pub(crate) fn exact_beta(&self, raw: f64) -> (f64, f64) {
        if !self.beta_sigmoid {
            return (raw, 1.0);
        }
        let s = sigmoid(raw);
        (self.beta_factor * s, self.beta_factor * s * (1.0 - s))
    }
}

/// The logarithm of a decay, and its derivatives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decay {
    pub log: f64,
    pub by_gate: f64,
    pub by_a_log: f64,
}

fn sigmoid(v: f64) -> f64 {
    1.0 / (1.0 + (-v).exp())
}
