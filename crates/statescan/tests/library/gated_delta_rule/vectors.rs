//! Results agree with those that other people's implementations computed.

use super::*;
use crate::common::vectors::Case as Vectors;

fn check_file(name: &str) {
    let Some(file) = Vectors::read(name) else { return };
    let [q, k, v] = ["q", "k", "v"].map(|key| file.need(&format!("in.{key}")));
    let [g, beta, state] = ["g", "beta", "initial_state"].map(|key| file.tensor(&format!("in.{key}")));
    let [dy, dlast] = ["o", "final_state"].map(|key| file.tensor(&format!("cot.{key}")));
    let seen = |tensor: &'static str, of: &Option<Tensor>| of.as_ref().map(|of| (tensor, of.clone()));
    let args = Args::new(q.view(), k.view(), v.view())
        .g(g.as_ref().map(Tensor::view))
        .beta(beta.as_ref().map(Tensor::view))
        .initial_state(state.as_ref().map(Tensor::view))
        .qk_l2norm(name != "gdn_plain");
    let cotangents = Cotangents::default().y(dy.as_ref().map(Tensor::view)).final_state(dlast.as_ref().map(Tensor::view));
    let (forward, backward) = (reference::forward(&args).unwrap(), reference::backward(&args, &cotangents).unwrap());
    let exec = Exec::cpu(2);
    let zeros = |shape: &[usize]| Tensor::host(DType::F32, shape).unwrap();
    let (mut y, mut last) = (zeros(&v.shape()), zeros(&gdr::final_state_shape(&args).unwrap()));
    gdr::forward(&exec, &args, &mut Outputs::default().y(y.view_mut()).final_state(last.view_mut())).unwrap();
    for (key, got, oracle) in [("out.o", &y, &forward.y), ("out.final_state", &last, &forward.final_state)] {
        file.assert_close(key, oracle);
        file.assert_close(key, &got.to_dense());
    }
    let given = [Some(("q", q.clone())), Some(("k", k.clone())), Some(("v", v.clone()))];
    let given = given.into_iter().chain([seen("g", &g), seen("beta", &beta), seen("initial_state", &state)]).flatten();
    for (key, like) in given {
        let mut grad = zeros(&like.shape());
        let mut grads = Gradients::default();
        let slot = match key {
            "q" => &mut grads.q,
            "k" => &mut grads.k,
            "v" => &mut grads.v,
            "g" => &mut grads.g,
            "beta" => &mut grads.beta,
            _ => &mut grads.initial_state,
        };
        *slot = Some(grad.view_mut());
        gdr::backward(&exec, &args, None, &cotangents, &mut grads).unwrap();
        file.assert_close(&format!("grad.{key}"), of(&backward, key));
        file.assert_close(&format!("grad.{key}"), &grad.to_dense());
    }
}

#[test]
fn agree_with_the_origins() {
    for name in ["gdn_basic", "gdn_chunk", "gdn_groups", "gdn_plain", "kda_basic", "kda_state"] {
        check_file(name);
    }
}
