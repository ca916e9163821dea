//! The operation as data.

use crate::ops::signature::*;

const STATE: &[&str] = &["BDV", "BSDV"];

/// What follows a convolution, as an option.
pub(super) const ACTIVATION: Setting = Setting::new("activation", Choice::Word(&["silu", "swish"], None));

/// A causal convolution as data.
pub static SIGNATURE: Signature = Signature {
    name: "causal_conv1d",
    about: "depthwise causal convolution over time, the short filter in front of a scan",
    sizes: &[BATCH, DIM, SEQLEN, ('W', "width"), ('V', "width - 1"), SEQUENCES, BOUNDS],
    arguments: &[
        argument!(activation "x", &["BDL"]).required(),
        argument!(parameter "weight", &["DW"]).required(),
        argument!(parameter "bias", &["D"]),
        argument!(state "initial_states", STATE).alias(&["initial_state"]),
        CU_SEQLENS,
        SEQ_IDX,
    ],
    settings: &[ACTIVATION, REVERSE],
    results: &[
        output!(like "y", "x", &["BDL"]).alias(&["out"]),
        output!(state "final_states", "x", STATE).alias(&["final_state"]).dtype(ResultType::Of("x")),
    ],
    limit: Limit {
        names: "batch x dim x max(seqlen, sequences)",
        bytes: 9,
        what: "nine sums of a channel for each group of slices, of which there are three for each step at most",
    },
    ..SCAN
}
.resolved();
