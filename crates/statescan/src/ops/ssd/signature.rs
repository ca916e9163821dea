//! The operation as data, in both of its layouts.

use crate::ops::signature::*;

const MAPS: &[&str] = &["BLN", "BLGN"];

/// The arguments, where `x`, `dt` and states have these layouts.
const fn arguments(x: &'static [&'static str], dt: &'static [&'static str], state: &'static [&'static str]) -> [Argument; 13] {
    [
        argument!(activation "x", x).alias(&["u"]).required(),
        argument!(activation "dt", dt).alias(&["delta"]).required(),
        argument!(parameter "A" as "a", &["H"]).required(),
        argument!(activation "B" as "b", MAPS).required(),
        argument!(activation "C" as "c", MAPS).required(),
        argument!(parameter "D" as "d", &["H", "HP"]),
        argument!(activation "z", x),
        argument!(parameter "dt_bias", &["H"]).alias(&["delta_bias"]),
        argument!(activation "dt_a", dt).alias(&["delta_a", "deltaA"]),
        argument!(state "initial_state", state).alias(&["initial_states"]),
        CU_SEQLENS,
        SEQ_IDX,
        argument!(hint "causal_mask", &["QQ"]),
    ]
}

const fn results(y: &'static [&'static str], state: &'static [&'static str]) -> [Output; 2] {
    [output!(like "y", "x", y).alias(&["out"]), output!(state "final_state", "x", state).alias(&["final_states", "last_state"])]
}

static ARGUMENTS: [Argument; 13] = arguments(&["BLHP"], &["BLH"], &["BHPN", "BSHPN"]);
static ARGUMENTS_HEADS_FIRST: [Argument; 13] = arguments(&["BHLP"], &["BHL"], &["BHNP", "BSHNP"]);
static RESULTS: [Output; 2] = results(&["BLHP"], &["BHPN", "BSHPN"]);
static RESULTS_HEADS_FIRST: [Output; 2] = results(&["BHLP"], &["BHNP", "BSHNP"]);

const DECAY: Output = output!(state "decay", "x", &["BH", "BSH"]);

const BOTH: Signature = Signature {
    about: "Mamba-2's scan with one decay for each head, as matrix products of chunks",
    sizes: &[BATCH, SEQLEN, ('H', "nheads"), ('P', "headdim"), NGROUPS, DSTATE, SEQUENCES, BOUNDS, ('Q', "chunk")],
    free: "G",
    settings: &[DT_SOFTPLUS, DT_LIMIT, Setting::new("chunk_size", Choice::Count(128)), REVERSE],
    saved: Saved::States { layout: "HPN", padded: None, complex: Complex::Never },
    decay: Some(&DECAY),
    cuda: true,
    limit: Limit {
        names: "batch x max(seqlen, sequences) x nheads x headdim x dstate",
        bytes: 3,
        what: "twenty tiles of 64 steps and all columns of all heads, where batch, steps and states count 2^12",
    },
    ..SCAN
};

/// SSD as data, in the layout of models: x is (batch, seqlen, nheads, headdim).
pub static SIGNATURE: Signature = Signature { name: "ssd", arguments: &ARGUMENTS, results: &RESULTS, ..BOTH }.resolved();

/// SSD as data with heads before time and states transposed, as `statescan.ssd` has it in Python.
pub static HEADS_FIRST: Signature = Signature {
    name: "ssd_heads_first",
    arguments: &ARGUMENTS_HEADS_FIRST,
    results: &RESULTS_HEADS_FIRST,
    canonical: Some(&SIGNATURE),
    ..BOTH
}
.resolved();
