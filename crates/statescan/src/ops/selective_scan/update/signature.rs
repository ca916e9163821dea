//! The operation as data.

use crate::ops::signature::*;

const CHANNELS: &[&str] = &["BD", "BHP"];
const OWN: &[&str] = &["D", "HP"];
const MAPS: &[&str] = &["BN", "BGN"];
const AS_A: Complex = Complex::As(&["A"]);

/// The state of each row.
pub(super) static STATE: Argument = Argument::state("state", &["SDN", "SHPN"]).complex(AS_A);

/// One step of a selective scan or of SSD as data.
pub static SIGNATURE: Signature = Signature {
    name: "selective_state_update",
    about: "one step of a selective scan or of SSD, with the state updated in place",
    sizes: &[BATCH, DIM, ('H', "nheads"), ('P', "headdim"), DSTATE, NGROUPS, ('S', "states")],
    free: "G",
    forms: &["BDNGS", "BHPNGS"],
    arguments: &[
        argument!(activation "x", CHANNELS).alias(&["u"]).required(),
        argument!(activation "dt", CHANNELS).alias(&["delta"]).required(),
        argument!(parameter "A" as "a", &["DN", "HPN"]).required().complex(Complex::Always),
        argument!(activation "B" as "b", MAPS).required().complex(AS_A),
        argument!(activation "C" as "c", MAPS).required().complex(AS_A),
        argument!(parameter "D" as "d", OWN),
        argument!(activation "z", CHANNELS),
        argument!(parameter "dt_bias", OWN).alias(&["delta_bias"]),
        argument!(activation "deltaA" as "dt_a", CHANNELS).alias(&["delta_a"]),
        argument!(index "state_batch_indices", &["B"]),
    ],
    settings: &[DT_SOFTPLUS, DT_LIMIT, discretization(0)],
    results: &[output!(like "y", "x", CHANNELS).alias(&["out"])],
    in_place: Some(&STATE),
    differentiable: false,
    limit: Limit {
        names: "max(batch, states) x dim (or nheads x headdim) x dstate",
        bytes: 4,
        what: "two tiles of all states of 16 channels, where rows and channels count 2^8",
    },
    ..SCAN
}
.resolved();
