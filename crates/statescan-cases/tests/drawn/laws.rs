//! Oracles keep these laws, whatever the operation: gradients are central differences, a state that is carried over joins pieces, reversed is mirrored, and packed
//! sequences are calls of their own.

use super::*;
use crate::common::{assert_close, central_differences};
use draw::Packing;
use statescan::View;
use statescan_cases::call::Input;
use std::ops::Range;

const EXACT: ErrorBound = ErrorBound { absolute: 1e-11, relative: 1e-11 };

/// Calls in double precision of an operation that scans.
fn scans(packing: Packing, count: usize) -> impl Iterator<Item = Drawn> {
    let scan = |op: &&Operation| ops::time(op).is_some() && ops::arguments(op).any(|argument| argument.is_state());
    let fixed = move || Fixed { dtype: Some(DType::F64), packing: Some(packing), small: true, ..Fixed::default() };
    let fits = move |op: &Operation| packing == Packing::Whole || op.signature.argument("cu_seqlens").is_some();
    Operation::ALL.iter().filter(scan).filter(move |op| fits(op)).flat_map(move |op| drawn_as(op, fixed()).take(count))
}

fn axis(input: &Input, letter: char) -> Option<usize> {
    input.argument.layout(input.buffer.shape().len()).and_then(|layout| layout.find(letter))
}

/// A call whose arguments are parts, along an axis, of another one's.
fn part(call: &Call, letter: char, of: impl Fn(View<'_>, usize) -> Dense) -> Call {
    let mut part = call.clone();
    for input in &mut part.inputs {
        if let Some(axis) = axis(input, letter) {
            input.buffer = Tensor::from_dense(&of(input.buffer.view(), axis), input.buffer.dtype());
        }
    }
    part
}

fn slice(call: &Call, letter: char, range: &Range<usize>) -> Call {
    part(call, letter, |view, axis| Dense::from_view(&view.slice(axis, range.clone())))
}

/// The state that a call leaves, as the argument of another one; a total is none.
fn left(op: &Operation) -> (&'static str, &'static str) {
    let state = ops::arguments(op).find(|argument| argument.is_state()).expect("a state").name;
    (state, ops::results(op).find(|result| result.is_state && result.cotangent).expect("a state").name)
}

fn from(call: &Call, state: &'static str, dense: Option<&Dense>) -> Call {
    let mut call = call.clone();
    call.inputs.retain(|input| dense.is_none() || input.argument.name != state);
    let is_complex = dense.is_some_and(|dense| dense.data().iter().any(|z| z.im != 0.0));
    match dense {
        Some(dense) => call.with(state, Tensor::from_dense(dense, carried(DType::F64, is_complex))),
        None => call,
    }
}

/// The result of a name.
fn result<'e>(exact: &'e Exact, name: &str) -> &'e Dense {
    &exact.iter().find(|(own, _)| *own == name).expect("a result").1
}

#[track_caller]
fn same(what: &str, got: &Dense, expected: &Dense) {
    assert_close(what, &Tensor::from_dense(got, DType::Complex128), expected, EXACT);
}

/// Results along time of a call, in a range of its steps, are those of another one.
fn same_steps(drawn: &Drawn, range: &Range<usize>, got: &Exact) {
    for (name, whole) in &drawn.exact {
        let layout = ops::result_layout(drawn.call.op, name, whole.shape().len());
        if let Some(axis) = layout.find('L') {
            same(name, result(got, name), &Dense::from_view(&whole.view().slice(axis, range.clone())));
        }
    }
}

#[test]
fn a_carried_state_joins_pieces() {
    for drawn in scans(Packing::Whole, 12).filter(|drawn| drawn.call.steps() > 2) {
        let (call, steps, (state, last)) = (&drawn.call, drawn.call.steps(), left(drawn.call.op));
        for cut in [0, 1, 3.min(steps), steps] {
            let mut pieces = [0..cut, cut..steps];
            if call.reversed() {
                pieces.reverse();
            }
            let first = pass::reference(&slice(call, 'L', &pieces[0])).unwrap();
            let second = from(&slice(call, 'L', &pieces[1]), state, Some(result(&first, last)));
            let second = pass::reference(&second).unwrap();
            same_steps(&drawn, &pieces[0], &first);
            same_steps(&drawn, &pieces[1], &second);
            same(last, result(&second, last), result(&drawn.exact, last));
        }
    }
}

#[test]
fn reversed_is_mirrored() {
    for drawn in scans(Packing::Whole, 12) {
        let (call, (_, last)) = (&drawn.call, left(drawn.call.op));
        let mirrored = part(call, 'L', |view, axis| Dense::from_view(&view.flip(axis)));
        let mirrored = pass::reference(&mirrored.set("reverse", !call.reversed())).unwrap();
        for (name, whole) in &drawn.exact {
            match ops::result_layout(call.op, name, whole.shape().len()).find('L') {
                Some(axis) => same(name, &Dense::from_view(&result(&mirrored, name).view().flip(axis)), whole),
                None if *name == last => same(name, result(&mirrored, name), whole),
                None => {}
            }
        }
    }
}

#[test]
fn packed_sequences_are_calls_of_their_own() {
    for drawn in scans(Packing::Bounds, 12) {
        let (call, (state, last)) = (&drawn.call, left(drawn.call.op));
        let bounds = call.input("cu_seqlens").unwrap().buffer.to_dense().to_real();
        for (sequence, bound) in bounds.windows(2).enumerate() {
            let range = bound[0] as usize..bound[1] as usize;
            let own = |dense: Dense| Dense::from_view(&dense.view().slice(0, sequence..sequence + 1));
            let first = call.input(state).map(|input| own(input.buffer.to_dense()));
            let mut alone = from(&slice(call, 'L', &range), state, first.as_ref());
            alone.inputs.retain(|input| input.argument.name != "cu_seqlens");
            let alone = pass::reference(&alone).unwrap();
            same_steps(&drawn, &range, &alone);
            same(last, result(&alone, last), &own(result(&drawn.exact, last).clone()));
        }
    }
}

/// The sum of results times their cotangents.
fn loss(call: &Call, cotangents: &Tensors) -> f64 {
    let product = |a: &Dense, b: &Tensor| a.data().iter().zip(b.to_dense().data()).map(|(a, b)| (a.conj() * b).re).sum::<f64>();
    let exact = pass::reference(call).unwrap();
    exact.iter().filter_map(|(name, dense)| Some(product(dense, cotangents.get(name)?))).sum()
}

#[test]
fn gradients_of_oracles_are_central_differences() {
    let fixed = || Fixed { dtype: Some(DType::F64), small: true, ..Fixed::default() };
    for op in Operation::ALL.iter().filter(|op| op.signature.differentiable) {
        for drawn in drawn_as(op, fixed()).take(10) {
            let (call, cotangents) = (&drawn.call, &drawn.cotangents);
            let states_are_complex = drawn.exact.iter().any(|(_, dense)| dense.data().iter().any(|z| z.im != 0.0));
            for (name, got) in pass::reference_backward(call, cotangents).unwrap() {
                let Some(at) = call.inputs.iter().position(|input| input.argument.name == name) else { continue };
                let (input, mut moved) = (&call.inputs[at], call.clone());
                let is_complex = input.buffer.dtype().is_complex() || input.argument.carried_gradient && states_are_complex;
                let mut differences = |step| {
                    central_differences(&input.buffer.to_dense(), step, is_complex, |view| {
                        moved.inputs[at].buffer = Tensor::from_dense(&Dense::from_view(&view), carried(DType::F64, is_complex));
                        loss(&moved, cotangents)
                    })
                };
                // of the fourth order in the step: a key that is divided by its length turns within 1e-3 of zero
                let (mut expected, wide) = (differences(1e-5), differences(2e-5));
                let both = expected.data_mut().iter_mut().zip(wide.data());
                both.for_each(|(narrow, wide)| *narrow = (4.0 * *narrow - wide) / 3.0);
                let bound = ErrorBound { absolute: 1e-6, relative: 1e-6 };
                let got = &Tensor::from_dense(&got, DType::Complex128);
                crate::common::assert_close_in_scale(&format!("{name} of {call:?}"), got, &expected, bound, 1.0);
            }
        }
    }
}
