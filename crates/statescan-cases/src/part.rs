//! Cutting a call down to a part that the oracle can do.

use crate::call::{Call, Input};
use crate::error::Result;
use crate::ops;
use crate::sizes::Sizes;
use crate::tensors::Tensors;
use crate::work;
use statescan::View;
use statescan::ops::Operation;
use statescan::tensor::{Dense, Tensor};
use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges of axes, by letter; the other axes are whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part(pub BTreeMap<char, Range<usize>>);

impl Part {
    /// Whether it is everything.
    pub fn is_whole(&self) -> bool {
        self.0.is_empty()
    }

    /// The part of a view whose axes have these letters.
    pub fn of<'a>(&self, mut view: View<'a>, layout: &str) -> View<'a> {
        for (axis, letter) in layout.chars().enumerate() {
            if let Some(range) = self.0.get(&letter) {
                let size = view.shape()[axis];
                // an axis of size 1 under a larger letter is shared by all
                view = view.slice(axis, range.start.min(size)..range.end.min(size));
            }
        }
        view
    }

    /// Whether a tensor of these axes, computed in a call cut down to this part, is that part of the whole call's tensor.
    pub fn keeps(&self, layout: &str) -> bool {
        self.0.keys().all(|letter| layout.contains(*letter))
    }

    /// How it reads: `D 0..16 of 1536`.
    pub fn describe(&self, sizes: &Sizes) -> String {
        let one = |(letter, range): (&char, &Range<usize>)| {
            format!("{letter} {}..{} of {}", range.start, range.end, sizes.get(*letter))
        };
        self.0.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

/// Chooses a part whose forward work is about `budget` state-steps.
pub fn choose(call: &Call, budget: f64) -> Part {
    let (op, whole) = (call.op, call.sizes());
    let mut sizes = whole.clone();
    let mut part = Part::default();
    for &(letter, groups) in op.signature.facts.independent {
        let cost = work::oracle_cost(op, &sizes);
        let size = sizes.get(letter);
        // rows of a batch that choose their states by index are not independent
        let indexed = letter == 'B' && ops::time(op).is_none() && call.packed();
        if cost <= budget || size <= 1 || indexed {
            continue;
        }
        let mut keep = ((size as f64 * budget / cost) as usize).clamp(1, size);
        if let Some(groups) = groups.filter(|&g| sizes.get(g) > 1 && size.is_multiple_of(sizes.get(g))) {
            // whole groups, or a part of the first one
            let each = size / sizes.get(groups);
            let count = (keep / each).max(1);
            keep = if keep >= each { count * each } else { keep };
            part.0.insert(groups, 0..count);
            sizes = sizes.with(groups, count);
        }
        part.0.insert(letter, 0..keep);
        sizes = sizes.with(letter, keep);
    }
    // a step depends only on the steps before it, so the first steps are a problem of their own
    if let Some(time) = ops::time(op).filter(|_| !call.reversed() && !call.packed()) {
        let cost = work::oracle_cost(op, &sizes);
        let size = sizes.get(time);
        if cost > budget && size > 1 {
            part.0.insert(time, 0..((size as f64 * budget / cost) as usize).clamp(1, size));
        }
    }
    part.0.retain(|&letter, range| range.len() < whole.get(letter));
    part
}

/// Returns the call on a part.
///
/// # Errors
/// None that the whole call does not have.
pub fn narrow(call: &Call, part: &Part) -> Result<Call> {
    let narrow = |input: &Input| {
        let layout = input.argument.layout(input.buffer.shape().len()).unwrap_or("");
        let buffer = copy(part.of(input.buffer.view(), layout));
        Input { argument: input.argument, given: input.given.clone(), packing: input.packing, buffer, placed: None }
    };
    Ok(Call { op: call.op, inputs: call.inputs.iter().map(narrow).collect(), options: call.options.clone() })
}

/// Returns the cotangents on a part.
pub fn narrow_results(op: &Operation, tensors: &Tensors, part: &Part) -> Tensors {
    let mut narrowed = Tensors::default();
    for (name, buffer) in tensors.iter() {
        let layout = ops::result_layout(op, name, buffer.shape().len());
        narrowed.push(name, copy(part.of(buffer.view(), layout)));
    }
    narrowed
}

fn copy(view: View<'_>) -> Tensor {
    Tensor::from_dense(&Dense::from_view(&view), view.dtype())
}
