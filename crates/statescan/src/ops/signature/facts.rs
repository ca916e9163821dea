//! Facts about an operation's calls besides their arguments and results: for whoever measures them or compares them with the
//! oracle.

/// Products of sizes, each by its letters, times a number: `[(6.0, "BDLN")]` is 6 for each batch, channel, step and state.
pub type Terms = &'static [(f64, &'static str)];

/// The amount of work of a pass.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// Additions and multiplications.
    pub flops: Terms,
    /// Exponentials.
    pub exps: Terms,
}

impl Cost {
    /// Nothing: there is no such pass.
    pub(crate) const NOTHING: Cost = Cost { flops: &[], exps: &[] };
}

/// Which calls multiply matrices on tensor cores, whose factors have fewer bits than their types: what they are compared with allows for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorCores {
    /// None.
    Never,
    /// Calls that may round to tf32.
    Tf32,
    /// All on a GPU.
    Always,
}

/// The numbers of a call that cost a kernel the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hardest {
    /// Decays that leave nothing of a state within a few steps.
    StrongDecays,
    /// Inputs whose sigmoids are zero or one.
    LargeInputs,
}

/// The facts of an operation.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// The sizes that a state and the steps count: the unit that times are divided by.
    pub state_steps: &'static str,
    /// A forward pass, or a step.
    pub forward: Cost,
    /// A backward pass.
    pub backward: Cost,
    /// The work of the oracle, in state-steps.
    pub oracle: Terms,
    /// The letters along which independent parts lie, the preferred ones first, each with the letter that is divided in proportion.
    pub independent: &'static [(char, Option<char>)],
    /// The products of matrices that use fewer bits.
    pub tensor_cores: TensorCores,
    /// Sizes of a call that fits into the caches.
    pub small: &'static [(char, usize)],
    /// Sizes of another one, whose backward pass has partial sums over ranges of channels where that of the small one has none.
    pub many_channels: Option<&'static [(char, usize)]>,
    /// The numbers that cost a kernel on the CPU the most instructions, and how many times as many as usual ones they may cost.
    pub hardest: Option<(Hardest, f64)>,
    /// Whether steps are computed a chunk at a time by products of matrices, whose zeros multiply what is not finite: an infinity or a NaN then
    /// reaches other steps of its chunk.
    pub chunked: bool,
}

impl Facts {
    /// The facts of the base of signatures; the table of an operation has its own.
    pub(crate) const NONE: Facts = Facts {
        state_steps: "",
        forward: Cost::NOTHING,
        backward: Cost::NOTHING,
        oracle: &[],
        independent: &[],
        tensor_cores: TensorCores::Never,
        small: &[],
        many_channels: None,
        hardest: None,
        chunked: false,
    };
}
