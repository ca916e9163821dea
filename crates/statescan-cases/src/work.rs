//! How much there is to do in a call.

/// The amount of work in a call, for throughputs and floors.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    /// Elements of the state times steps: the unit that times are divided by.
    pub state_steps: f64,
    /// Additions and multiplications.
    pub flops: f64,
    /// Exponentials.
    pub exps: f64,
}

impl Work {
    /// So many operations and exponentials for each state and step.
    pub fn per_state_step(state_steps: f64, flops: f64, exps: f64) -> Self {
        Work { state_steps, flops: flops * state_steps, exps: exps * state_steps }
    }
}
