//! Calls that do not fit: every pass refuses them with words about an argument and writes nothing, or all take them and agree.

use super::{Drawn, drawn, number, operations};
use crate::common::Rng;
use statescan::ops::Operation;
use statescan::{DType, Exec, Tensor};
use statescan_cases::sizes::Sizes;
use statescan_cases::tensors::Tensors;
use statescan_cases::{Error, compute, pass};

fn refusal<T>(op: &Operation, result: statescan_cases::Result<T>) -> Option<String> {
    match result {
        Ok(_) => None,
        Err(Error::Op { error, .. }) => {
            let words = error.to_string();
            assert!(words.contains(": `"), "{op:?}: {words}");
            Some(words)
        }
        Err(other) => Some(other.to_string()),
    }
}

fn is_poisoned(tensors: &Tensors, state: Option<&str>) -> bool {
    // a state in place begins as what was given
    tensors.iter().all(|(name, tensor)| Some(name) == state || tensor.bytes().iter().all(|&byte| byte == 0xff))
}

/// A tensor of another type or shape than one has.
fn other(rng: &mut Rng, tensor: &Tensor) -> Tensor {
    let (dtype, mut shape) = (tensor.dtype(), tensor.shape().to_vec());
    let other = if dtype.is_index() { DType::F32 } else { DType::I32 };
    let kind = rng.below(4);
    match kind {
        1 => shape.insert(0, 1),
        2 => drop(shape.pop()),
        3 => {
            let axis = rng.below(shape.len().max(1));
            shape.iter_mut().skip(axis).take(1).for_each(|size| *size += 1);
        }
        _ => {}
    }
    let mut made = Tensor::host(if kind == 0 { other } else { dtype }, &shape).unwrap();
    made.fill_bytes(0xff);
    made
}

/// One tensor of some is another one.
fn spoil(rng: &mut Rng, tensors: &mut Tensors, state: Option<&str>) -> Option<String> {
    let names: Vec<_> = tensors.iter().map(|(name, _)| name).filter(|name| Some(*name) != state).collect();
    let chosen = (!names.is_empty()).then(|| rng.pick(&names))?;
    let (mut spoilt, mut what) = (Tensors::default(), None);
    for (name, tensor) in tensors.iter() {
        // with an axis more a state may be one of numbered sequences
        let made = Some(other(rng, tensor)).filter(|made| name == chosen && made.shape().len() <= tensor.shape().len());
        let made = made.unwrap_or_else(|| tensor.clone());
        if made.shape() != tensor.shape() || made.dtype() != tensor.dtype() {
            what = Some(format!("{name} as {}{}", made.dtype(), made.shape()));
        }
        spoilt.push(name, made);
    }
    *tensors = spoilt;
    what
}

fn refuses(part: usize) {
    let exec = Exec::cpu(2);
    for op in operations(part) {
        let (mut rng, mut refused) = (Rng::new(number("PROPTEST_RNG_SEED", 1)), 0);
        for mut drawn in drawn(op) {
            let state = op.signature.in_place.map(|state| state.name);
            // of a state in place there is another copy, which is the one that is written
            let at = rng.below(drawn.call.inputs.len()).max(usize::from(state.is_some()));
            let input = &mut drawn.call.inputs[at];
            input.buffer = other(&mut rng, &input.buffer);
            let what = format!("{} as {}{}", input.argument.name, input.buffer.dtype(), input.buffer.shape());
            let reference = refusal(op, pass::reference(&drawn.call));
            let mut results = drawn.results.clone();
            let forward = refusal(op, compute::forward(&exec, &drawn.call, &mut results));
            // room for results was made for the call that fits
            assert!(forward.is_some() || reference.is_none(), "{op:?}, {what}: the oracle alone refuses, {reference:?}");
            assert!(forward.is_none() || is_poisoned(&results, state), "{op:?}, {what}: written in spite of {forward:?}");
            if !drawn.gradients.is_empty() {
                let mut gradients = drawn.gradients.clone();
                let backward =
                    refusal(op, compute::backward(&exec, &drawn.call, &Tensors::default(), &drawn.cotangents, &mut gradients));
                assert!(backward.is_some() || reference.is_none(), "{op:?}, {what}: the gradient is not refused");
                assert!(backward.is_none() || is_poisoned(&gradients, None), "{op:?}, {what}: written in spite of {backward:?}");
            }
            refused += usize::from(forward.is_some());
        }
        assert!(refused > number("STATESCAN_DRAWN", 80) as usize / 2, "{op:?}: {refused} were refused");
    }
}

/// Room for a result or a gradient, or a cotangent, that does not fit.
#[test]
fn room_that_does_not_fit_is_refused() {
    let (exec, mut rng) = (Exec::cpu(2), Rng::new(number("PROPTEST_RNG_SEED", 1)));
    for op in Operation::ALL {
        let state = op.signature.in_place.map(|state| state.name);
        for mut drawn in drawn(op).take(30) {
            let mut results = drawn.results.clone();
            if let Some(what) = spoil(&mut rng, &mut results, state) {
                let refused = refusal(op, compute::forward(&exec, &drawn.call, &mut results));
                assert!(refused.is_some() && is_poisoned(&results, state), "{op:?}, {what}: {refused:?}");
            }
            let spoilt = if rng.below(2) == 0 { &mut drawn.cotangents } else { &mut drawn.gradients };
            if let Some(what) = spoil(&mut rng, spoilt, None).filter(|_| !drawn.gradients.is_empty()) {
                let none = Tensors::default();
                let backward = compute::backward(&exec, &drawn.call, &none, &drawn.cotangents, &mut drawn.gradients);
                let refused = refusal(op, backward);
                assert!(refused.is_some() && is_poisoned(&drawn.gradients, None), "{op:?}, {what}: {refused:?}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_0() {
    refuses(0);
}
#[test]
fn what_does_not_fit_is_refused_1() {
    refuses(1);
}
#[test]
fn what_does_not_fit_is_refused_2() {
    refuses(2);
}
#[test]
fn what_does_not_fit_is_refused_3() {
    refuses(3);
}

/// A call whose tensors have one element each, in shapes with a size that no memory has.
#[test]
fn sizes_that_no_memory_has_are_refused() {
    for op in Operation::ALL {
        let call = drawn(op).map(|Drawn { call, .. }| call).find(|call| call.dtype() == DType::F32).unwrap();
        for &(letter, _) in op.signature.sizes.iter().filter(|(letter, _)| call.sizes().has(*letter)) {
            let (mut call, sizes) = (call.clone(), Sizes::of(&[(letter, 1 << 62)]));
            for input in &mut call.inputs {
                let layout = input.argument.layout(input.buffer.shape().len()).unwrap();
                let shape = sizes.shape(layout);
                input.buffer = Tensor::strided(input.buffer.dtype(), &shape, &vec![0; shape.len()], 0, 1).unwrap();
            }
            assert!(refusal(op, pass::reference(&call)).is_some(), "{op:?}: {letter}");
            assert!(refusal(op, compute::forward(&Exec::cpu(2), &call, &mut Tensors::default())).is_some(), "{op:?}: {letter}");
            if op.signature.differentiable {
                let none = Tensors::default();
                let backward = compute::backward(&Exec::cpu(2), &call, &none, &none, &mut Tensors::default());
                assert!(refusal(op, backward).is_some(), "{op:?}: {letter}");
            }
        }
    }
}
