//! Every operation, taken by its name, keeps these rules.

use statescan::ops::signature::Saved;
use statescan::ops::{Call, Operation};
use statescan::{DType, Device, View};

#[test]
fn what_is_saved_fits_the_capacity() {
    let zero = [0u64; 2];
    for operation in Operation::ALL.iter().filter(|o| matches!(o.signature.saved, Saved::States { .. })) {
        for seqlen in [1, 63, 64, 65, 129, 1000] {
            let signature = operation.signature;
            let mut call = Call::new(signature);
            for (argument, view) in signature.arguments.iter().zip(&mut call.views).filter(|(a, _)| a.required) {
                let layout = argument.layouts[argument.layouts.len() - 1];
                let size = |letter| match letter {
                    'L' => seqlen,
                    'B' => 3,
                    'D' | 'H' | 'J' | 'P' => 18,
                    'G' | '1' => 1,
                    _ => 5,
                };
                let shape: Vec<usize> = layout.chars().map(size).collect();
                // SAFETY: strides of zero: every element is the first number.
                let whole =
                    unsafe { View::from_raw_parts(zero.as_ptr().cast(), DType::F32, Device::Cpu, &shape, &vec![0; shape.len()]) };
                *view = Some(whole.unwrap());
            }
            let (needed, capacity) = (operation.saved_len(&call).unwrap(), call.saved_capacity().unwrap());
            assert!(needed <= capacity, "{operation:?}, {seqlen} steps: {needed} of {capacity}");
        }
    }
}
