//! Verdicts on calls whose arguments are not finite, and an infinity that stays one.

use crate::call::Call;
use crate::measure::measured::Measured;
use crate::memory::{self, Limits};
use crate::sizes::Sizes;
use crate::tensors::Tensors;
use crate::{compute, ops, samples};
use statescan::tensor::Tensor;
use statescan::{DType, Exec, Level};

/// Two rows of a few channels and steps: some tiles, and a rest.
fn sizes() -> Sizes {
    Sizes::of(&[('B', 2), ('D', 5), ('H', 4), ('J', 8), ('P', 6), ('E', 3), ('L', 40), ('N', 4), ('W', 4), ('M', 3)])
}

/// A tensor with a number in its middle.
fn with(tensor: &Tensor, number: f64) -> Tensor {
    let mut dense = tensor.to_dense();
    let middle = dense.data().len() / 2;
    dense.data_mut()[middle] = number.into();
    Tensor::from_dense(&dense, tensor.dtype())
}

/// With every argument and without the optional ones.
fn calls(sizes: &Sizes) -> impl Iterator<Item = Call> {
    ops::all().flat_map(|op| {
        let whole = samples::random(op, sizes, DType::F32).unwrap();
        let mut bare = whole.clone();
        bare.inputs.retain(|input| ops::is_required(op, input.argument));
        // some go with an argument that is gone
        bare.options.clear();
        [whole, bare]
    })
}

#[test]
fn what_is_not_finite_passes_in_every_argument() {
    let mut spread = 0;
    for call in calls(&sizes()) {
        for at in (0..call.inputs.len()).filter(|&at| !call.inputs[at].buffer.dtype().is_index()) {
            for number in [f64::INFINITY, f64::NAN] {
                let mut call = call.clone();
                call.inputs[at].buffer = with(&call.inputs[at].buffer, number);
                let what = format!("{} with {number} in {}", call.op.signature.name, call.inputs[at].argument.name);
                let (chunked, mut measured) = (call.op.signature.facts.chunked, Measured::new(call).unwrap());
                let off = measured.check(&Exec::cpu(1)).unwrap();
                assert!(off.is_empty(), "{what}: {}: {:?}", off[0].name, off[0].mismatch);
                spread += usize::from(chunked);
            }
        }
    }
    assert!(spread > 0, "an operation computes chunks at once");
}

/// An absent skip multiplies nothing: a scan without one has the infinity of its input and of its cotangent, and not zero times
/// it.
#[test]
fn an_infinity_stays_one_without_a_skip() {
    let sizes = sizes().with('N', 1);
    for mut call in calls(&sizes).filter(|call| call.op.signature.name == "selective_scan" && call.input("D").is_none()) {
        for input in call.inputs.iter_mut().filter(|input| ["B", "C"].contains(&input.argument.name)) {
            input.buffer.fill_with(|| 1.0.into());
        }
        let at = call.input("x").unwrap().buffer.to_dense().data().len() / 2;
        for level in Level::available() {
            let exec = Exec::cpu(1).with_level(level).unwrap();
            let mut infinite = call.clone();
            infinite
                .inputs
                .iter_mut()
                .filter(|input| input.argument.name == "x")
                .for_each(|x| x.buffer = with(&x.buffer, f64::INFINITY));
            let mut out = memory::results(&infinite, false, Limits::default()).unwrap();
            compute::forward(&exec, &infinite, &mut out).unwrap();
            let y = out.get("y").unwrap();
            assert_eq!(y.to_dense().data()[at].re, f64::INFINITY, "{level}");
            let (mut cotangents, mut gradients) = (Tensors::default(), memory::gradients(&call, Limits::default()).unwrap());
            cotangents.push("y", with(y, f64::INFINITY));
            compute::backward(&exec, &call, &Tensors::default(), &cotangents, &mut gradients).unwrap();
            assert_eq!(gradients.get("x").unwrap().to_dense().data()[at].re, f64::INFINITY, "{level}");
        }
    }
}
