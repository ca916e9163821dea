//! Calls that do not fit: every pass refuses them with words about an argument and writes nothing, or all take them and agree.

use super::{Drawn, Fixed, drawn, drawn_as, number, operations};
use crate::common::Rng;
use crate::common::device::gpu;
use statescan::ops::Operation;
use statescan::ops::signature::{Argument, Role};
use statescan::{DType, Exec, Tensor};
use statescan_cases::sizes::Sizes;
use statescan_cases::tensors::Tensors;
use statescan_cases::{Error, compute, ops, pass};

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

/// A tensor of another type or shape than one has, or, of those that are written, with elements that lie in one place.
fn other(rng: &mut Rng, tensor: &Tensor, written: bool) -> Tensor {
    let (dtype, mut shape) = (tensor.dtype(), tensor.shape().to_vec());
    let other = if dtype.is_index() { DType::F32 } else { DType::I32 };
    let kind = rng.below(if written { 5 } else { 4 });
    if kind == 4
        && let Some(axis) = shape.iter().position(|&size| size > 1).filter(|_| shape.iter().all(|&size| size > 0))
    {
        let mut strides: Vec<_> = (0..shape.len()).map(|axis| shape[axis + 1..].iter().product::<usize>() as isize).collect();
        strides[axis] = 0;
        let mut folded = Tensor::strided(dtype, &shape, &strides, 0, shape.iter().product()).unwrap();
        folded.fill_bytes(0xff);
        return folded;
    }
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
fn spoil(rng: &mut Rng, tensors: &mut Tensors, state: Option<&str>, written: bool) -> Option<String> {
    let names: Vec<_> = tensors.iter().map(|(name, _)| name).filter(|name| Some(*name) != state).collect();
    let chosen = (!names.is_empty()).then(|| rng.pick(&names))?;
    let (mut spoilt, mut what) = (Tensors::default(), None);
    for (name, tensor) in tensors.iter() {
        // with an axis more a state may be one of numbered sequences
        let made = Some(other(rng, tensor, written)).filter(|made| name == chosen && made.shape().len() <= tensor.shape().len());
        let made = made.unwrap_or_else(|| tensor.clone());
        let folded = made.view().strides()[..] != tensor.view().strides()[..] && made.view().strides().contains(&0);
        if folded || made.shape() != tensor.shape() || made.dtype() != tensor.dtype() {
            what = Some(format!("{name} as {}{} folded {folded}", made.dtype(), made.shape()));
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
            // a state in place has another copy, which is the one that is written
            let at = rng.below(drawn.call.inputs.len()).max(usize::from(state.is_some()));
            let input = &mut drawn.call.inputs[at];
            let before = input.buffer.dtype();
            input.buffer = other(&mut rng, &input.buffer, false);
            let what = format!("{} as {}{}", input.argument.name, input.buffer.dtype(), input.buffer.shape());
            let (retyped, input_name) = (input.buffer.dtype() != before, (input.argument.name, input.argument.field));
            let reference = refusal(op, pass::reference(&drawn.call));
            // another type is nobody else's fault
            let own = [input_name.0, input_name.1].map(|name| format!("`{name}`"));
            let named = |words: &String| own.iter().any(|name| words.contains(name));
            assert!(!retyped || reference.as_ref().is_none_or(named), "{op:?}, {what}: {reference:?}");
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
            if let Some(what) = spoil(&mut rng, &mut results, state, true) {
                let refused = refusal(op, compute::forward(&exec, &drawn.call, &mut results));
                assert!(refused.is_some() && is_poisoned(&results, state), "{op:?}, {what}: {refused:?}");
            }
            let written = rng.below(2) == 0;
            let spoilt = if written { &mut drawn.gradients } else { &mut drawn.cotangents };
            if let Some(what) = spoil(&mut rng, spoilt, None, written).filter(|_| !drawn.gradients.is_empty()) {
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

/// A gradient of what was not given.
#[test]
fn gradients_of_nothing_are_refused() {
    for op in Operation::ALL.iter().filter(|op| op.signature.differentiable) {
        for mut drawn in drawn(op).take(20) {
            let absent =
                |argument: &&Argument| argument.gradient && !argument.is_state() && drawn.call.input(argument.name).is_none();
            let Some(argument) = ops::arguments(op).find(absent) else { continue };
            let shape = drawn.call.sizes().shape(argument.layouts[0]);
            drawn.gradients.push(argument.name, Tensor::host(drawn.call.dtype(), &shape).unwrap());
            let none = Tensors::default();
            let words =
                refusal(op, compute::backward(&Exec::cpu(2), &drawn.call, &none, &drawn.cotangents, &mut drawn.gradients));
            assert!(words.as_ref().is_some_and(|words| words.contains(&format!("`{}`", argument.field))), "{op:?}: {words:?}");
        }
    }
}

/// Numbers of states, of sequences and of their bounds that are none, or that two rows have.
#[test]
fn wrong_indices_are_named_and_nothing_is_written() {
    for op in Operation::ALL {
        let state = op.signature.in_place.map(|state| state.name);
        for mut drawn in drawn(op) {
            let states = drawn.call.sizes().get('S') as i64;
            let indices =
                drawn.call.inputs.iter_mut().find(|input| input.argument.role == Role::Index && !input.buffer.view().is_empty());
            let Some(input) = indices else { continue };
            let (name, mut values) = (input.argument.name, input.buffer.to_dense());
            let last = values.data().len() - 1;
            let all = values.data_mut();
            match name {
                "cu_seqlens" if last > 0 => all[0] = 1.0.into(),
                "seq_idx" => continue,
                _ if !name.ends_with("_indices") => continue,
                // the state of another row, or none
                _ if last > 0 && drawn.seed.is_multiple_of(2) => (all[0], all[last]) = (0.0.into(), 0.0.into()),
                _ => all[last] = (states as f64).into(),
            }
            input.buffer = Tensor::from_dense(&values, input.buffer.dtype());
            let mut results = drawn.results.clone();
            let words = refusal(op, compute::forward(&Exec::cpu(2), &drawn.call, &mut results));
            assert!(words.as_ref().is_some_and(|words| words.contains(&format!("`{name}`["))), "{op:?}: {words:?}");
            assert!(is_poisoned(&results, state), "{op:?}: written in spite of {words:?}");
        }
    }
}

/// Only the device sees the indices: a row whose state is none there is a row without one.
#[test]
fn cuda_wrong_indices_touch_nothing() {
    let Some(exec) = gpu() else { return };
    for op in Operation::ALL.iter().filter(|op| op.signature.in_place.is_some()) {
        let fixed = Fixed { dtype: Some(DType::F32), ..Fixed::default() };
        let name = ops::arguments(op).map(|argument| argument.name).find(|name| name.ends_with("_indices")).expect("indices");
        for mut drawn in drawn_as(op, fixed).filter(|drawn| drawn.call.input(name).is_some()).take(3) {
            let [wrong, none] = [drawn.call.sizes().get('S') as f64, -1.0].map(|row| {
                let mut inputs = drawn.call.inputs.iter_mut();
                let input = inputs.find(|input| input.argument.name == name).expect("indices");
                let mut values = input.buffer.to_dense();
                values.data_mut().iter_mut().take(1).for_each(|value| *value = row.into());
                input.buffer = Tensor::from_dense(&values, input.buffer.dtype());
                drawn.run(&exec).unwrap()
            });
            let same = wrong[0].iter().zip(none[0].iter()).all(|((_, one), (_, other))| one.bytes() == other.bytes());
            assert!(same, "{op:?}");
        }
    }
}

/// A call whose tensors have one element each, in shapes with a size that no memory has.
#[test]
fn sizes_that_no_memory_has_are_refused() {
    for op in Operation::ALL {
        let call = drawn(op).map(|Drawn { call, .. }| call).find(|call| call.dtype() == DType::F32).unwrap();
        let letters = || op.signature.sizes.iter().map(|(letter, _)| *letter).filter(|letter| call.sizes().has(*letter));
        let alone = letters().map(|letter| vec![(letter, 1usize << 62)]);
        // beside none of another one, and sizes whose product alone is too large
        let beside = letters()
            .flat_map(|one| letters().filter(move |&other| other != one).map(move |other| vec![(one, 1 << 62), (other, 0)]));
        let of_states = || letters().filter(|&letter| op.signature.facts.state_steps.contains(letter) && letter != 'W');
        let pairs = of_states().flat_map(|one| {
            of_states().filter(move |&other| other > one).map(move |other| vec![(one, 1 << 31), (other, 1 << 31)])
        });
        for letter in alone.chain(beside).chain(pairs) {
            let (mut call, sizes) = (call.clone(), Sizes::of(&letter));
            for input in &mut call.inputs {
                let layout = input.argument.layout(input.buffer.shape().len()).unwrap();
                let shape = sizes.shape(layout);
                input.buffer = Tensor::strided(input.buffer.dtype(), &shape, &vec![0; shape.len()], 0, 1).unwrap();
            }
            assert!(refusal(op, pass::reference(&call)).is_some(), "{op:?}: {letter:?}");
            assert!(refusal(op, compute::forward(&Exec::cpu(2), &call, &mut Tensors::default())).is_some(), "{op:?}: {letter:?}");
            if op.signature.differentiable {
                let none = Tensors::default();
                let backward = compute::backward(&Exec::cpu(2), &call, &none, &none, &mut Tensors::default());
                assert!(refusal(op, backward).is_some(), "{op:?}: {letter:?}");
            }
        }
    }
}
