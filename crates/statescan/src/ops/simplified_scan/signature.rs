//! The operation as data, with a complex result and with a real one.

use crate::ops::signature::*;

const STEP: &[&str] = &["P", "BPL"];
const STATE: &[&str] = &["BP", "BSP"];

const U: Argument = argument!(activation "u", &["BHL"]).alias(&["x"]).required().complex(Complex::Always);
const DELTA: Argument = argument!(activation "delta", STEP).alias(&["dt"]).required();
const A: Argument = argument!(parameter "A" as "a", &["P", "P1"]).required().complex(Complex::Always);
const B: Argument = argument!(parameter "B" as "b", &["PH"]).required().complex(Complex::Always);
const C: Argument = argument!(parameter "C" as "c", &["HP"]).required().complex(Complex::Always);
const D: Argument = argument!(parameter "D" as "d", &["H"]);
const DELTA_A: Argument = argument!(activation "deltaA" as "delta_a", STEP).alias(&["dt_a"]);
const INITIAL: Argument = argument!(state "initial_state", STATE).alias(&["initial_states"]).complex(Complex::Always);

const fn results(complex: Complex) -> [Output; 2] {
    let state = output!(state "last_state", "u", STATE);
    [
        output!(like "y", "u", &["BHL"]).alias(&["out"]).complex(complex),
        state.alias(&["final_state", "final_states"]).complex(Complex::Always),
    ]
}

static RESULTS: [Output; 2] = results(Complex::Always);
static RESULTS_INNER: [Output; 2] = results(Complex::Never);

const DECAY: Output = output!(state "decay", "u", STATE).complex(Complex::As(&["A"]));

const BOTH: Signature = Signature {
    sizes: &[BATCH, ('H', "dim"), SEQLEN, ('P', "dstate"), SEQUENCES, BOUNDS],
    leaders: &[0, 2],
    saved: Saved::States { layout: "P", padded: Some('P'), complex: Complex::Always },
    decay: Some(&DECAY),
    limit: Limit {
        names: "batch x dim x max(seqlen, sequences) x dstate",
        bytes: 7,
        what: "512 steps of inputs, states and outputs, where the other sizes count 2^12; on CUDA two rows of states for each batch x dstate",
    },
    ..SCAN
};

/// A simplified scan as data.
pub static SIGNATURE: Signature = Signature {
    name: "simplified_scan",
    about: "S5: x[t] = Abar x[t-1] + Bbar B u[t], y = C x, complex",
    arguments: &[U, DELTA, A, B, C, DELTA_A, INITIAL, CU_SEQLENS, SEQ_IDX],
    settings: &[discretization(2), REVERSE],
    results: &RESULTS,
    ..BOTH
}
.resolved();

/// The same with a real result.
pub static INNER: Signature = Signature {
    name: "s5_inner",
    about: "S5's layer: the scan with y = f Re(C x) + D Re(u), real",
    arguments: &[U, DELTA, A, B, C, D, DELTA_A, INITIAL, CU_SEQLENS, SEQ_IDX],
    settings: &[discretization(2), REVERSE, Setting::new("conj_sym", Choice::Flag(true))],
    results: &RESULTS_INNER,
    ..BOTH
}
.resolved();
