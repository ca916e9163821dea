//! The operation as data.

use crate::ops::signature::*;

const STEP: &[&str] = &["P", "BP"];

/// The state of each row.
pub(super) static STATE: Argument = Argument::state("state", &["SP"]).complex(Complex::Always);

/// One step of a simplified scan as data.
pub static SIGNATURE: Signature = Signature {
    name: "simplified_state_update",
    about: "one step of S5, with the state updated in place",
    sizes: &[BATCH, ('H', "dim"), ('P', "dstate"), ('S', "states")],
    leaders: &[0, 2],
    arguments: &[
        argument!(activation "u", &["BH"]).alias(&["x"]).required().complex(Complex::Always),
        argument!(activation "delta", STEP).alias(&["dt"]).required(),
        argument!(parameter "A" as "a", &["P", "P1"]).required().complex(Complex::Always),
        argument!(parameter "B" as "b", &["PH"]).required().complex(Complex::Always),
        argument!(parameter "C" as "c", &["HP"]).required().complex(Complex::Always),
        argument!(parameter "D" as "d", &["H"]),
        argument!(activation "deltaA" as "delta_a", STEP).alias(&["dt_a"]),
        argument!(index "state_batch_indices", &["B"]),
    ],
    settings: &[discretization(2), Setting::new("real", Choice::Flag(false)), Setting::new("conj_sym", Choice::Flag(true))],
    results: &[output!(like "y", "u", &["BH"]).alias(&["out"]).complex(Complex::Unless("real"))],
    in_place: Some(&STATE),
    differentiable: false,
    limit: Limit { names: "max(batch, states) x dim x dstate", bytes: 4, what: "inputs and states of all rows in two parts" },
    ..SCAN
}
.resolved();
