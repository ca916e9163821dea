//! Results and gradients of the origin.

use super::common::vectors::Case as Vectors;
use super::*;

pub fn check_vectors(exec: &Exec) {
    for name in ["conv_silu", "conv_state"] {
        let Some(case) = Vectors::read(name) else { continue };
        let names = ["in.x", "in.weight", "in.bias", "cot.y", "cot.final_states"];
        let inputs = names.map(|name| case.need(name));
        let placed = inputs.each_ref().map(|buffer| Placed::new(exec, buffer));
        let states = case.tensor("in.initial_states");
        let placed_states = states.as_ref().map(|buffer| Placed::new(exec, buffer));
        fn args<'a>(name: &str, [x, weight, bias, _, _]: [View<'a>; 5], states: Option<View<'a>>) -> Args<'a> {
            let activation = if name == "conv_silu" { Activation::Silu } else { Activation::None };
            Args { bias: Some(bias), activation, initial_states: states, ..Args::new(x, weight) }
        }
        let host = inputs.each_ref().map(|buffer| buffer.view());
        let cotangents = Cotangents { y: Some(host[3]), final_states: Some(host[4]) };
        let args_on_host = args(name, host, states.as_ref().map(|s| s.view()));
        let (oracle, by) = (reference::forward(&args_on_host).unwrap(), reference::backward(&args_on_host, &cotangents).unwrap());
        case.assert_close("out.y", &oracle.y);
        case.assert_close("out.final_states", &oracle.final_states);
        case.assert_close("grad.x", &by.x);
        case.assert_close("grad.weight", &by.weight);
        let views = placed.each_ref().map(|p| p.view());
        let args = args(name, views, placed_states.as_ref().map(|s| s.view()));
        let cotangents = Cotangents { y: Some(views[3]), final_states: Some(views[4]) };
        let mut results = [0, 4, 0, 1, 2, 4].map(|i: usize| Tensor::host(DType::F32, &inputs[i].shape()).unwrap());
        let [mut y, mut last, mut dx, mut dweight, mut dbias, mut dfirst] = results.each_mut().map(|b| PlacedMut::new(exec, b));
        let mut out = Outputs { y: Some(y.view_mut()), final_states: Some(last.view_mut()) };
        causal_conv1d::forward(exec, &args, &mut out).unwrap();
        let mut grads = Gradients {
            x: Some(dx.view_mut()),
            weight: Some(dweight.view_mut()),
            bias: Some(dbias.view_mut()),
            initial_states: Some(dfirst.view_mut()),
            workspace: None,
        };
        causal_conv1d::backward(exec, &args, &cotangents, &mut grads).unwrap();
        [y, last, dx, dweight, dbias, dfirst].into_iter().for_each(PlacedMut::finish);
        let keys = ["out.y", "out.final_states", "grad.x", "grad.weight", "grad.bias", "grad.initial_states"];
        for (key, got) in keys.iter().zip(&results).take(if states.is_some() { 6 } else { 5 }) {
            case.assert_close(key, &got.to_dense());
        }
    }
}

#[test]
fn vectors_of_the_origin() {
    check_vectors(&Exec::cpu(1));
}
