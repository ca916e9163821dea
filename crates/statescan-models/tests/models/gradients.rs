//! Logits, loss and gradients against the oracle in f64.

use crate::common::{FAMILIES, Folder, apart, largest, tokens};
use statescan::Exec;
use statescan::testing::checks;
use statescan_models::reference::{self, Weights};
use statescan_models::{Array, Config, Kind, Model, Tensors};

/// A small model, its configuration, and its weights in f64.
fn model(kind: &str) -> (Model, Config, Weights) {
    let folder = Folder::of(kind);
    let model = folder.model();
    let config = model.config().clone();
    (model, config, folder.weights())
}

fn poisoned(weights: &Weights) -> Tensors {
    weights.iter().map(|(name, w)| (name.clone(), Array { shape: vec![w.len()], data: vec![f32::NAN; w.len()] })).collect()
}

#[test]
fn logits_are_those_of_the_oracle() {
    for kind in FAMILIES {
        let (model, config, weights) = model(kind);
        let text = tokens(90, config.vocab);
        let (got, expected) = (model.forward(&Exec::cpu(1), &text).unwrap(), reference::logits(&config, &weights, &text));
        let (worst, largest) = (apart(&got, &expected), largest(expected.iter().copied()));
        assert!(worst < 2e-5 * largest, "{kind}: {worst:e} of {largest}");
    }
}

#[test]
fn gradients_are_central_differences_of_the_oracle() {
    for kind in FAMILIES {
        let (model, config, mut weights) = model(kind);
        let (text, seqlen) = (tokens(14, config.vocab), 6);
        let mut gradients = poisoned(&weights);
        let loss = model.loss_and_gradients(&Exec::cpu(1), &text, seqlen, &mut gradients).unwrap();
        assert!((loss - reference::loss(&config, &weights, &text, seqlen)).abs() < 1e-5, "{kind}: {loss}");
        let names: Vec<_> = weights.keys().cloned().collect();
        for name in names {
            let mut expected = Vec::new();
            // so many of each weight, an odd distance apart, which reaches every row and column; all of those of hybrids are compared with `transformers`
            let many = if model.config().layers.contains(&Kind::Mlp) { 8 } else { 40 };
            let distance = (weights[&name].len() / many) | 1;
            for i in (0..weights[&name].len()).step_by(distance) {
                let value = weights[&name][i];
                let mut at = |x: f64| {
                    weights.get_mut(&name).unwrap()[i] = x;
                    reference::loss(&config, &weights, &text, seqlen)
                };
                let step = 1e-5;
                expected.push((at(value + step) - at(value - step)) / (2.0 * step));
                at(value);
            }
            assert!(expected.iter().any(|x| *x != 0.0), "{kind} {name}: it matters");
            // rounding is that of the whole gradient, whose largest number may not be among those that are compared
            let largest = largest(gradients[&name].data.iter().copied());
            let got: Vec<_> = gradients[&name].data.iter().step_by(distance).copied().collect();
            let worst = apart(&got, &expected);
            assert!(worst < 1e-4 * largest + 1e-7, "{kind} {name}: {worst:e} of {largest:e}");
        }
    }
}

/// A pass prepares each of its calls, which knows the sizes of its scratch memory and runs: nothing is checked twice.
#[test]
fn calls_of_a_pass_are_checked_once() {
    // a block's norm, its convolution and scan, and the norms of the mixer: forward, the same on the way back, and back; at last the head's norm
    for (kind, calls) in [("mamba", 3), ("falcon_mamba", 5), ("mamba2", 4)] {
        let (model, config, weights) = model(kind);
        let (text, mut gradients) = (tokens(14, config.vocab), poisoned(&weights));
        let count = checks(|| {
            model.loss_and_gradients(&Exec::cpu(1), &text, 6, &mut gradients).unwrap();
        });
        assert_eq!(count, 3 * calls * config.layers.len() + 2, "{kind}");
    }
}

#[test]
fn gradients_do_not_depend_on_threads() {
    for kind in ["mamba", "mamba2", "bamba", "olmo_hybrid"] {
        let (model, config, weights) = model(kind);
        let text = tokens(4 * 101, config.vocab);
        let [one, three] = [1, 3].map(|threads| {
            let mut gradients = poisoned(&weights);
            let loss = model.loss_and_gradients(&Exec::cpu(threads), &text, 100, &mut gradients).unwrap();
            (loss, gradients)
        });
        assert!(one == three, "{kind}");
    }
}

#[test]
fn what_cannot_be_learned_from_is_refused() {
    let (model, _, weights) = model("mamba");
    let mut gradients = poisoned(&weights);
    let mut error =
        |text: &[u32], seqlen| model.loss_and_gradients(&Exec::cpu(1), text, seqlen, &mut gradients).unwrap_err().to_string();
    for (text, seqlen) in [(&[][..], 3), (&[1, 2, 3], 3), (&[1, 2, 3, 4, 5], 3), (&[1, 2], 0)] {
        assert!(error(text, seqlen).contains("must be whole rows of"), "{text:?}");
    }
    assert!(error(&[1, 2, 99], 2).contains("token 99 at position 2"));
    let narrow = Folder::new("mamba").rounded(safetensors::Dtype::BF16, true).model();
    let error = narrow.loss_and_gradients(&Exec::cpu(1), &[1, 2], 1, &mut gradients).unwrap_err().to_string();
    assert_eq!(error, "loss_and_gradients: `weights` must be f32, got bf16");
}
