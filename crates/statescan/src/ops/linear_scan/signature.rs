//! The operation as data.

use crate::ops::signature::*;

const TIMED: &[&str] = &["L", "DL", "BDL", "BEDL", "BEFDL"];
const STATE: &[&str] = &["", "D", "BD", "BED", "BEFD"];

/// A linear scan as data.
pub static SIGNATURE: Signature = Signature {
    name: "linear_scan",
    about: "h[t] = a[t] h[t-1] + b[t]: the primitive under S5, LRU, RG-LRU and HGRN",
    sizes: &[BATCH, DIM, SEQLEN, ('E', "axis 2"), ('F', "axis 3")],
    leaders: &[1],
    arguments: &[
        argument!(activation "a", TIMED).alias(&["A"]).required().complex(Complex::Always),
        argument!(activation "b", TIMED).alias(&["B"]).required().complex(Complex::Always),
        argument!(state "initial_state", STATE).complex(EITHER),
    ],
    settings: &[REVERSE],
    results: &[
        output!(like "h", "b", TIMED).alias(&["y", "out"]).dtype(ResultType::Promoted("a", "b")).complex(EITHER),
        STATES.alias(&["last_state"]),
        DECAY,
    ],
    saved: Saved::Result(0),
    decay: Some(&DECAY),
    limit: Limit { names: "rows x seqlen", bytes: 5, what: "states of all steps, or of 128 channels before each tile" },
    ..SCAN
}
.resolved();

const EITHER: Complex = Complex::As(&["a", "b"]);
const STATES: Output = output!(state "final_state", "b", STATE).dtype(ResultType::CarriedByBoth("a", "b")).complex(EITHER);
const DECAY: Output = output!(state "decay", "b", STATE).dtype(ResultType::CarriedByBoth("a", "b")).complex(EITHER).constant();
