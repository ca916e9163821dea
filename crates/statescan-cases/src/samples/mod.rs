//! Calls of each operation as models make them: a small one from a passage of text, and ones of chosen sizes.

mod causal_conv1d;
mod causal_conv1d_update;
mod drawn;
mod features;
mod last_step;
mod linear_scan;
mod selective_scan;
mod selective_state_update;
mod simplified_scan;
mod simplified_state_update;
mod ssd;

use crate::call::{Call, Input};
use crate::error::Result;
use crate::ops::{self, LAYOUT};
use crate::sizes::Sizes;
pub use features::PASSAGE;
use statescan::DType;
use statescan::ops::Operation;
use statescan::tensor::{Dense, Tensor};

/// A small call from a passage of text.
///
/// # Errors
/// Memory that is not there.
pub fn embedded(op: &'static Operation) -> Result<Call> {
    let call = match ops::name(op) {
        "selective_scan" => selective_scan::embedded,
        "ssd" => ssd::embedded,
        "simplified_scan" | "s5_inner" => simplified_scan::embedded,
        "linear_scan" => linear_scan::embedded,
        "causal_conv1d" => causal_conv1d::embedded,
        "selective_state_update" => selective_state_update::embedded,
        "simplified_state_update" => simplified_state_update::embedded,
        "causal_conv1d_update" => causal_conv1d_update::embedded,
        _ => drawn::embedded,
    };
    laid_out(call(ops::find(ops::name(op))?)?, op)
}

/// A call of chosen sizes with reproducible random numbers, as a model would see.
///
/// # Errors
/// Memory that is not there.
pub fn random(op: &'static Operation, sizes: &Sizes, dtype: DType) -> Result<Call> {
    let call = match ops::name(op) {
        "selective_scan" => selective_scan::random,
        "ssd" => ssd::random,
        "simplified_scan" | "s5_inner" => simplified_scan::random,
        "linear_scan" => linear_scan::random,
        "causal_conv1d" => causal_conv1d::random,
        "selective_state_update" => selective_state_update::random,
        "simplified_state_update" => simplified_state_update::random,
        "causal_conv1d_update" => causal_conv1d_update::random,
        _ => drawn::random,
    };
    laid_out(call(ops::find(ops::name(op))?, sizes, dtype)?, op)
}

/// Shapes of models: a label and the sizes. The first is the quickest.
pub fn shapes(op: &'static Operation) -> Vec<(&'static str, Sizes)> {
    match ops::name(op) {
        "selective_scan" => selective_scan::shapes(),
        "ssd" => ssd::shapes(),
        "simplified_scan" | "s5_inner" => simplified_scan::shapes(),
        "linear_scan" => linear_scan::shapes(),
        "causal_conv1d" => causal_conv1d::shapes(),
        "selective_state_update" => selective_state_update::shapes(),
        "simplified_state_update" => simplified_state_update::shapes(),
        "causal_conv1d_update" => causal_conv1d_update::shapes(),
        _ => drawn::shapes(op),
    }
}

/// The same call in another layout of its operation.
fn laid_out(call: Call, op: &'static Operation) -> Result<Call> {
    let own = |(_, of): &(_, &Operation)| of.signature.name == op.signature.name;
    let layout = op.signature.canonical.and_then(|_| ops::layouts(op).into_iter().find(own));
    let Some((word, _)) = layout else { return Ok(call) };
    let mut other = Call { options: call.options.clone(), ..Call::new(op) }.set(LAYOUT, word);
    for Input { argument, buffer, .. } in call.inputs {
        other = other.with(argument.name, rearranged(op, argument.name, argument.layout(buffer.shape().len()), buffer));
    }
    Ok(other)
}

/// A tensor with the axes of one layout in the order that an operation has them.
fn rearranged(op: &Operation, name: &str, from: Option<&str>, buffer: Tensor) -> Tensor {
    let to = ops::argument(op, name).and_then(|argument| argument.layout(buffer.shape().len()));
    let order: Option<Vec<usize>> = from.zip(to).and_then(|(from, to)| to.chars().map(|letter| from.find(letter)).collect());
    let Some(order) = order else { return buffer };
    Tensor::from_dense(&Dense::from_view(&buffer.view().permute(&order)), buffer.dtype())
}
