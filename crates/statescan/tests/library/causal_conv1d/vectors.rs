//! Results and gradients of the origin.

use super::*;
use crate::common::vectors::Case as Vectors;

fn check(name: &str, exec: &Exec) {
    let Some(case) = Vectors::read(name) else { return };
    let inputs = ["in.x", "in.weight", "in.bias", "cot.y", "cot.final_states"].map(|name| case.need(name));
    let states = case.tensor("in.initial_states");
    fn args<'a>(name: &str, [x, weight, bias, _, _]: &'a [Tensor; 5], states: &'a Option<Tensor>) -> Args<'a> {
        Args::new(x.view(), weight.view())
            .bias(bias.view())
            .activation(if name == "conv_silu" { Activation::Silu } else { Activation::None })
            .initial_states(states.as_ref().map(|s| s.view()))
    }
    fn cotangents([_, _, _, y, states]: &[Tensor; 5]) -> Cotangents<'_> {
        Cotangents::default().y(y.view()).final_states(states.view())
    }
    let oracle = reference::forward(&args(name, &inputs, &states)).unwrap();
    let by = reference::backward(&args(name, &inputs, &states), &cotangents(&inputs)).unwrap();
    case.assert_close("out.y", &oracle.y);
    case.assert_close("out.final_states", &oracle.final_states);
    case.assert_close("grad.x", &by.x);
    case.assert_close("grad.weight", &by.weight);
    let mut results = [0, 4, 0, 1, 2, 4].map(|i: usize| Tensor::like(exec, &inputs[i].view()).unwrap());
    let [y, last, dx, dweight, dbias, dfirst] = results.each_mut().map(|tensor| Some(tensor.view_mut()));
    let (inputs, states) = (inputs.each_ref().map(|tensor| on(exec, tensor)), states.as_ref().map(|tensor| on(exec, tensor)));
    let args = args(name, &inputs, &states);
    causal_conv1d::forward(exec, &args, &mut Outputs::default().y(y).final_states(last)).unwrap();
    let mut grads = Gradients::default().x(dx).weight(dweight).bias(dbias).initial_states(dfirst);
    causal_conv1d::backward(exec, &args, &cotangents(&inputs), &mut grads).unwrap();
    let keys = ["out.y", "out.final_states", "grad.x", "grad.weight", "grad.bias", "grad.initial_states"];
    for (key, got) in keys.iter().zip(&results).take(if states.is_some() { 6 } else { 5 }) {
        case.assert_close(key, &home(got).to_dense());
    }
}

#[test]
fn vectors_of_the_origin() {
    for exec in executors() {
        check("conv_silu", &exec);
        check("conv_state", &exec);
    }
}
