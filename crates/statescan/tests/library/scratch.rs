//! Whole passes by position. Scratch memory is as long as it must be, and no longer: with any array of it an element short, debug builds find it
//! out. Arguments are checked once, whatever is asked about a call before it runs.

use statescan::ops::call::{Value, carried};
use statescan::ops::signature::{Argument, Choice, Complex, Role, Saved};
use statescan::ops::{Call, Given, Operation, Written, linear_scan};
use statescan::testing::{checks, every_array_is_needed_to_its_end};
use statescan::{DType, Exec, Tensor, View, ViewMut};

/// A tensor of a small number; activations are of a type that is converted on its way, which takes room that others do without.
fn filled(dtype: DType, shape: &[usize]) -> Tensor {
    let mut tensor = Tensor::host(dtype, shape).unwrap();
    tensor.fill_with(|| (-0.5).into());
    tensor
}

/// A call with every argument but those that divide time, of whole tiles of whole vectors. The letters are B, L and these sizes.
struct Sample {
    operation: &'static Operation,
    inputs: Vec<Option<Tensor>>,
}

impl Sample {
    fn new(name: &str, sizes: &[(char, usize)]) -> Self {
        let operation = Operation::find(name).unwrap();
        let size = |letter| match letter {
            'B' | 'G' | '1' => Some(1),
            _ => sizes.iter().find(|(own, _)| *own == letter).map(|(_, size)| *size),
        };
        let input = |argument: &Argument| {
            let shapes = argument.layouts.iter().filter_map(|layout| layout.chars().map(size).collect::<Option<Vec<_>>>());
            let shape = shapes.max_by_key(Vec::len)?;
            match argument.role {
                Role::Index => None,
                Role::Activation => Some(filled(DType::BF16, &shape)),
                _ => Some(filled(carried(DType::F32, argument.complex == Complex::Always && name == "simplified_scan"), &shape)),
            }
        };
        Sample { operation, inputs: operation.signature.arguments.iter().map(input).collect() }
    }

    /// All results, or all gradients.
    fn run(&self, exec: &Exec, gradients: bool) {
        let signature = self.operation.signature;
        let mut call = Call::new(signature);
        call.views.iter_mut().zip(&self.inputs).for_each(|(view, input)| *view = input.as_ref().map(Tensor::view));
        for (value, option) in call.values.iter_mut().zip(signature.options) {
            if let Choice::Flag(_) = option.choice {
                *value = Value::Flag(option.name == "dt_softplus");
            }
        }
        let prepared = self.operation.prepare(exec, &call).unwrap();
        let planned: Vec<_> = (0..signature.results.len()).map(|at| prepared.result(at)).collect();
        let mut results: Vec<_> = planned.iter().map(|planned| filled(planned.dtype, &planned.shape)).collect();
        let mut out = Written::default();
        if !gradients {
            out.views.iter_mut().zip(&mut results).for_each(|(view, result)| *view = Some(result.view_mut()));
            assert_eq!(prepared.workspace_len().unwrap(), 0, "the CPU has memory of its own");
            return prepared.forward(&mut out).unwrap();
        }
        let mut grads: Vec<_> = self.inputs.iter().map(|input| input.as_ref().map(|i| filled(i.dtype(), &i.shape()))).collect();
        // states that are given need no forward pass, of which another call sees the arrays
        let saved = match signature.saved {
            Saved::States { .. } => Some(filled(DType::F32, &[prepared.saved_len()])),
            _ => None,
        };
        let mut given = Given { saved: saved.as_ref().map(Tensor::view), ..Given::default() };
        given.cotangents[0] = Some(results[0].view());
        let wanted =
            signature.arguments.iter().zip(&mut grads).zip(&mut out.views).filter(|((argument, _), _)| argument.gradient);
        wanted.for_each(|((_, grad), view)| *view = grad.as_mut().map(Tensor::view_mut));
        assert_eq!(prepared.backward_workspace_len(saved.is_some()).unwrap(), 0);
        prepared.backward(&given, &mut out).unwrap();
    }
}

#[test]
fn a_call_is_checked_once() {
    let exec = Exec::cpu(1);
    for name in ["selective_scan", "ssd", "gated_delta_rule", "simplified_scan", "s5_inner", "linear_scan", "causal_conv1d"] {
        let sample = Sample::new(name, &[('D', 4), ('H', 4), ('J', 4), ('P', 4), ('N', 4), ('L', 70), ('W', 3), ('V', 2)]);
        assert_eq!([checks(|| sample.run(&exec, false)), checks(|| sample.run(&exec, true))], [1, 1], "{name}");
    }
    let a = [0.5f32; 4];
    let view = View::new(&a, &[4]).unwrap();
    let (args, mut h, mut da) = (linear_scan::Args::new(view, view), [0f32; 4], [0f32; 4]);
    let mut out = linear_scan::Outputs::default().h(ViewMut::new(&mut h, &[4]).unwrap());
    assert_eq!(checks(|| linear_scan::forward(&exec, &args, &mut out).unwrap()), 1);
    let mut grads = linear_scan::Gradients::default().a(ViewMut::new(&mut da, &[4]).unwrap());
    let cotangents = linear_scan::Cotangents::default().h(view);
    assert_eq!(checks(|| linear_scan::backward(&exec, &args, None, &cotangents, &mut grads).unwrap()), 1);
}

#[test]
fn every_array_is_as_long_as_it_must_be() {
    let exec = Exec::cpu(1);
    // many channels have a lane each; few have several, and states for as many vectors as are walked at once; heads that fill whole vectors,
    // and columns an odd number of lines
    let samples = [
        Sample::new("selective_scan", &[('D', 128), ('N', 4), ('L', 128)]),
        Sample::new("selective_scan", &[('D', 4), ('N', 8), ('L', 128)]),
        Sample::new("linear_scan", &[('D', 32), ('L', 64)]),
        Sample::new("ssd", &[('H', 16), ('P', 17), ('N', 16), ('L', 64)]),
        Sample::new("gated_delta_rule", &[('H', 2), ('J', 2), ('P', 64), ('N', 64), ('L', 64)]),
        Sample::new("simplified_scan", &[('H', 8), ('P', 16), ('L', 64)]),
    ];
    for sample in &samples {
        for gradients in [false, true] {
            let count = every_array_is_needed_to_its_end(&format!("{:?}", sample.operation), || sample.run(&exec, gradients));
            assert!(count >= 4, "{count} arrays");
        }
    }
}
