//! The operation as data.

use crate::ops::causal_conv1d::signature::ACTIVATION;
use crate::ops::signature::*;

/// The last inputs.
pub(super) static STATE: Argument = Argument::state("conv_state", &["SDM"]);

/// A few steps of a causal convolution as data.
pub static SIGNATURE: Signature = Signature {
    name: "causal_conv1d_update",
    about: "one or a few steps of a causal convolution, with the last inputs kept in place",
    sizes: &[BATCH, DIM, ('T', "steps"), ('W', "width"), ('S', "states"), ('M', "state_len")],
    arguments: &[
        argument!(activation "x", &["BD", "BDT"]).required(),
        argument!(parameter "weight", &["DW"]).required(),
        argument!(parameter "bias", &["D"]),
        argument!(index "cache_seqlens", &["B"]),
        argument!(index "conv_state_indices", &["B"]),
    ],
    settings: &[ACTIVATION],
    results: &[output!(like "y", "x", &["BD", "BDT"]).alias(&["out"])],
    in_place: Some(&STATE),
    differentiable: false,
    limit: Limit {
        names: "max(batch, states) x dim x max(steps, state_len)",
        bytes: 4,
        what: "two tiles of all states of 16 channels, where rows and channels count 2^8",
    },
    ..SCAN
}
.resolved();
