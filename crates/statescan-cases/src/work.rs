//! How much there is to do in a call.

use crate::ops;
use crate::sizes::Sizes;
use statescan::ops::Operation;

/// The amount of work in a pass, for throughputs and floors.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    /// Elements of the state times steps: the unit that times are divided by.
    pub state_steps: f64,
    /// Additions and multiplications.
    pub flops: f64,
    /// Exponentials.
    pub exps: f64,
}

/// Work of a forward pass of an operation.
pub fn forward(op: &Operation, sizes: &Sizes) -> Work {
    match ops::name(op) {
        // dt A, the decayed state plus the input, the output's sum
        "selective_scan" | "selective_state_update" => each(sizes.product("BDHPLN"), 6.0, 1.0),
        "ssd" => chunked(sizes, 4.0, 3.0),
        "simplified_scan" => layer(sizes, 14.0, 12.0),
        "s5_inner" | "simplified_state_update" => layer(sizes, 14.0, 8.0),
        "causal_conv1d" | "causal_conv1d_update" => filter(sizes, 2.0),
        _ => each(sizes.product(STATE), 2.0, 0.0),
    }
}

/// Work of a backward pass of an operation.
pub fn backward(op: &Operation, sizes: &Sizes) -> Work {
    match ops::name(op) {
        _ if !op.signature.differentiable => Work::default(),
        // the states again, then the gradient of the state, of B, C, A, and the two sums over states
        "selective_scan" => each(sizes.product("BDLN"), 22.0, 1.0),
        "ssd" => chunked(sizes, 14.0, 9.0),
        "simplified_scan" => layer(sizes, 50.0, 28.0),
        "s5_inner" => layer(sizes, 50.0, 20.0),
        "causal_conv1d" => filter(sizes, 6.0),
        _ => each(sizes.product(STATE), 4.0, 0.0),
    }
}

/// What the oracle has to do, in state-steps.
pub fn oracle_cost(op: &Operation, sizes: &Sizes) -> f64 {
    match ops::name(op) {
        // two dense products for each step
        "simplified_scan" | "s5_inner" | "simplified_state_update" => sizes.product("BPL") * (1.0 + sizes.product("H") / 2.0),
        _ => forward(op, sizes).state_steps,
    }
}

/// The letters along which independent parts lie, the preferred ones first, each with the letter that is divided in proportion.
pub fn independent(op: &Operation) -> &'static [(char, Option<char>)] {
    match ops::name(op) {
        "selective_scan" => &[('B', None), ('D', Some('G'))],
        "ssd" => &[('B', None), ('H', Some('G')), ('P', None)],
        "linear_scan" => &[('B', None), ('E', None), ('F', None), ('D', None)],
        "causal_conv1d" => &[('B', None), ('D', None)],
        // each row has a state of its own
        "selective_state_update" => &[('B', Some('S')), ('D', Some('G')), ('H', Some('G')), ('P', None)],
        "causal_conv1d_update" => &[('B', Some('S')), ('D', None)],
        "simplified_state_update" => &[('B', Some('S'))],
        _ => &[('B', None)],
    }
}

/// The letters of sizes that make up rows, channels, steps and states.
const STATE: &str = "BDEFHPLN";

/// So many operations and exponentials for each state and step.
fn each(state_steps: f64, flops: f64, exps: f64) -> Work {
    Work { state_steps, flops: flops * state_steps, exps: exps * state_steps }
}

/// So many operations for each output and tap, and a sigmoid for each output.
fn filter(sizes: &Sizes, per_tap: f64) -> Work {
    let outputs = sizes.product("BDLT");
    let taps = outputs * sizes.product("W");
    Work { state_steps: taps, flops: per_tap * taps, exps: outputs }
}

/// A scan between two dense products: so many operations for each state and step, and for each of their channels.
fn layer(sizes: &Sizes, per_state: f64, per_channel: f64) -> Work {
    let states = sizes.product("BPL");
    Work { state_steps: states, flops: states * (per_state + per_channel * sizes.product("H")), exps: 3.0 * states }
}

/// Matrix products over chunks: so many operations for each state and step, and for each pair of steps in a chunk and head (a triangle of 64).
fn chunked(sizes: &Sizes, per_state: f64, per_pair: f64) -> Work {
    let (steps, pairs) = (sizes.product("BLHPN"), 32.0);
    let flops = per_state * steps + per_pair / 3.0 * 2.0 * pairs * (sizes.product("BLHP") + sizes.product("BLGN"));
    Work { state_steps: steps, flops, exps: pairs * sizes.product("BLH") }
}
