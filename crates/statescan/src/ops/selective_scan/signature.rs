//! The operation as data.

use crate::ops::signature::*;

const MAPS: &[&str] = &["DN", "BNL", "BGNL"];
const STATE: &[&str] = &["BDN", "BSDN"];
const AS_A: Complex = Complex::As(&["A"]);

/// A selective scan as data.
pub static SIGNATURE: Signature = Signature {
    name: "selective_scan",
    about: "Mamba's scan: h[t] = exp(dt A) h[t-1] + dt B x, y = <C, h> + D x, gated by silu(z)",
    sizes: &[BATCH, DIM, SEQLEN, DSTATE, NGROUPS, SEQUENCES, BOUNDS],
    free: "G",
    arguments: &[
        argument!(activation "x", &["BDL"]).alias(&["u"]).required(),
        argument!(activation "dt", &["BDL"]).alias(&["delta"]).required(),
        argument!(parameter "A" as "a", &["DN"]).required().complex(Complex::Always),
        argument!(activation "B" as "b", MAPS).required().complex(AS_A),
        argument!(activation "C" as "c", MAPS).required().complex(AS_A),
        argument!(parameter "D" as "d", &["D"]),
        argument!(activation "z", &["BDL"]),
        argument!(parameter "dt_bias", &["D"]).alias(&["delta_bias"]),
        argument!(activation "deltaA" as "dt_a", &["BDL"]).alias(&["delta_a"]),
        argument!(state "initial_state", STATE).alias(&["initial_states"]).complex(AS_A),
        CU_SEQLENS,
        SEQ_IDX,
    ],
    settings: &[DT_SOFTPLUS, DT_LIMIT, DISCRETIZATION, REVERSE],
    results: &[
        output!(like "y", "x", &["BDL"]).alias(&["out"]),
        output!(state "final_state", "x", STATE).alias(&["last_state", "final_states"]).complex(AS_A),
    ],
    saved: Saved::States { layout: "DN", padded: Some('D'), complex: AS_A },
    decay: Some(&DECAY),
    limit: Limit {
        names: "batch x dim x max(seqlen, sequences) x dstate",
        bytes: 6,
        what: "partial gradients of B and C, each of two parts, by batch, channel, step and state",
    },
    ..SCAN
}
.resolved();

const DECAY: Output = output!(state "decay", "x", STATE).complex(AS_A);
const DISCRETIZATION: Setting = discretization(0);
