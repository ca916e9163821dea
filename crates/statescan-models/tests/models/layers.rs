//! Layers on their own, from any state: against the oracle, cut anywhere, and every gradient by central differences.

use crate::common::{Random, bits};
use statescan::{DType, Exec};
use statescan_models::layers::{Layer, LayerState, Mixer, RmsNorm, S5, S5Config};
use statescan_models::reference::{self, Weights};
use statescan_models::{Array, Config, Family, Tensors};
use std::collections::BTreeMap;

/// A layer, its weights, and one sequence through its oracle: weights, rows, states of convolution and scan.
struct Case {
    layer: Box<dyn Layer>,
    weights: Tensors,
    oracle: Box<Oracle>,
}

type Oracle = dyn Fn(&Weights, &[f64], &mut [f64], &mut [f64]) -> Vec<f64>;

fn numbers(random: &mut Random, len: usize) -> Vec<f32> {
    (0..len).map(|_| random.uniform()).collect()
}

/// Random weights of some names and shapes.
fn weights<'n>(random: &mut Random, tensors: impl IntoIterator<Item = (&'n str, Vec<usize>)>) -> Tensors {
    let tensor = |(name, shape): (&str, Vec<usize>)| {
        let data = numbers(random, shape.iter().product());
        (name.to_owned(), Array { shape, data })
    };
    tensors.into_iter().map(tensor).collect()
}

fn mixer(config: Config) -> Case {
    let prefixes = ["backbone.layers.0.mixer.", "model.layers.0.linear_attn."];
    let tensors = config.tensors();
    let own = |name| prefixes.iter().find_map(|prefix| str::strip_prefix(name, prefix));
    let of_mixer = tensors.iter().filter_map(|(name, shape)| Some((own(name)?, shape.clone())));
    let weights = weights(&mut Random(7), of_mixer);
    let layer = Mixer::new(config.clone(), &weights).unwrap();
    let oracle =
        move |weights: &Weights, x: &[f64], conv: &mut [f64], scan: &mut [f64]| reference::mixer(&config, weights, x, conv, scan);
    Case { layer: Box::new(layer), weights, oracle: Box::new(oracle) }
}

fn s5(conj_sym: bool) -> Case {
    let mut config = S5Config::new(6, 5);
    (config.conj_sym, config.step_rescale) = (conj_sym, 0.5);
    let mut weights = weights(&mut Random(8), config.tensors());
    // decays that decay
    weights.get_mut("A").unwrap().data.iter_mut().step_by(2).for_each(|a| *a = -a.abs() - 0.1);
    let layer = S5::new(config.clone(), &weights).unwrap();
    let oracle = move |weights: &Weights, x: &[f64], _: &mut [f64], scan: &mut [f64]| reference::s5(&config, weights, x, scan);
    Case { layer: Box::new(layer), weights, oracle: Box::new(oracle) }
}

fn cases() -> [Case; 7] {
    let mut mamba = Config::mamba(1, 6, 1);
    (mamba.dstate, mamba.bias) = (3, true);
    let mut falcon = Config::falcon_mamba(1, 5, 1);
    (falcon.dstate, falcon.dt_rank, falcon.width, falcon.conv_bias, falcon.mixer_eps) = (3, 2, 2, false, 1e-5);
    let mut second = Config::mamba2(1, 6, 1, 3);
    (second.dstate, second.ngroups, second.dt_limit) = (3, 2, (0.001, 3.0));
    let mut qwen = Config::qwen3_5(1, 6, 1, &[], 3);
    (qwen.mixer_eps, qwen.dstate) = (1e-3, 2);
    let mut olmo = qwen.clone();
    (olmo.family, olmo.allow_neg_eigval) = (Family::OlmoHybrid, true);
    [mixer(mamba), mixer(falcon), mixer(second), mixer(qwen), mixer(olmo), s5(true), s5(false)]
}

fn wide(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().map(|&x| f64::from(x)).collect()
}

fn wide_weights(weights: &Tensors) -> Weights {
    weights.iter().map(|(name, array)| (name.clone(), wide(&array.data))).collect()
}

fn random_state(random: &mut Random, layer: &dyn Layer, batch: usize) -> LayerState {
    let mut state = layer.state(batch);
    for name in state.names().collect::<Vec<_>>() {
        let part = state.get_mut(name).unwrap();
        *part = numbers(random, part.len());
    }
    state
}

/// A part of a state, which a layer may not have.
fn state_part<'s>(state: &'s LayerState, name: &str) -> &'s [f32] {
    state.get(name).unwrap_or_default()
}

#[track_caller]
fn close(what: &str, got: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    let worst = got.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
    assert!(worst <= tolerance * largest + 1e-7, "{what}: {worst:e} of {largest:e}");
}

/// Results and states after the last step, sequence by sequence, in f64.
fn oracle(case: &Case, weights: &Weights, x: &[f64], state: &[Vec<f64>; 2], batch: usize) -> [Vec<f64>; 3] {
    let [mut conv, mut scan] = state.clone();
    let part = |of: &[f64], row: usize| of.len() / batch * row..of.len() / batch * (row + 1);
    let mut y = Vec::new();
    for row in 0..batch {
        let [of_x, of_conv, of_scan] = [part(x, row), part(&conv, row), part(&scan, row)];
        y.extend((case.oracle)(weights, &x[of_x], &mut conv[of_conv], &mut scan[of_scan]));
    }
    [y, conv, scan]
}

#[test]
fn results_and_states_are_those_of_the_oracle() {
    for case in cases() {
        let (layer, mut random, batch) = (&*case.layer, Random(1), 2);
        for seqlen in [1, 2, 7, 71] {
            let x = numbers(&mut random, batch * seqlen * layer.dim());
            let mut state = random_state(&mut random, layer, batch);
            let before = ["conv", "scan"].map(|name| wide(state_part(&state, name)));
            let expected = oracle(&case, &wide_weights(&case.weights), &wide(&x), &before, batch);
            let mut y = vec![f32::NAN; x.len()];
            layer.forward_from(&Exec::cpu(2), &x, &mut state, &mut y).unwrap();
            let [conv, scan] = ["conv", "scan"].map(|name| state_part(&state, name));
            for (what, got, expected) in [("y", &y[..], &expected[0]), ("conv", conv, &expected[1]), ("scan", scan, &expected[2])]
            {
                close(&format!("{} {seqlen} {what}", layer.name()), got, expected, 2e-5);
            }
        }
    }
}

#[test]
fn a_sequence_may_be_cut_anywhere() {
    for case in cases().into_iter().take(5) {
        let (layer, exec, seqlen) = (&*case.layer, Exec::cpu(1), 9);
        let dim = layer.dim();
        let x = numbers(&mut Random(2), seqlen * dim);
        let mut whole = vec![0.0; x.len()];
        let after = layer.forward(&exec, &x, 1, &mut whole).unwrap();
        for cut in 0..=seqlen {
            let (mut state, mut y) = (layer.state(1), vec![0.0; x.len()]);
            let (first, rest) = y.split_at_mut(cut * dim);
            layer.forward_from(&exec, &x[..cut * dim], &mut state, first).unwrap();
            for (x, y) in x[cut * dim..].chunks(dim).zip(rest.chunks_mut(dim)) {
                layer.step(&exec, x, &mut state, y).unwrap();
            }
            assert_eq!(bits(&y), bits(&whole), "{} {cut}", layer.name());
            assert!(state == after, "{} {cut}", layer.name());
        }
    }
}

#[test]
fn every_gradient_is_a_central_difference_of_the_oracle() {
    for case in cases() {
        let (layer, mut random, batch, seqlen) = (&*case.layer, Random(3), 2, 5);
        let x = numbers(&mut random, batch * seqlen * layer.dim());
        let [initial, dlast] = [(); 2].map(|()| random_state(&mut random, layer, batch));
        let dy = numbers(&mut random, x.len());
        let got = layer.backward(&Exec::cpu(2), &x, &initial, &dy, Some(&dlast)).unwrap();

        let cotangents = [wide(&dy), wide(state_part(&dlast, "conv")), wide(state_part(&dlast, "scan"))];
        let mut at: BTreeMap<String, Vec<f64>> = wide_weights(&case.weights);
        at.extend(
            [("x", &x[..]), ("conv", state_part(&initial, "conv")), ("scan", state_part(&initial, "scan"))]
                .map(|(name, data)| (format!("the {name}"), wide(data))),
        );
        let loss = |at: &BTreeMap<String, Vec<f64>>| -> f64 {
            let results = oracle(&case, at, &at["the x"], &[at["the conv"].clone(), at["the scan"].clone()], batch);
            results.iter().zip(&cotangents).flat_map(|(y, dy)| y.iter().zip(dy)).map(|(y, dy)| y * dy).sum()
        };
        let names: Vec<_> = at.keys().cloned().collect();
        for name in names {
            let mut expected = Vec::new();
            for i in 0..at[&name].len() {
                let (value, step) = (at[&name][i], 1e-5);
                let mut moved = |by: f64| {
                    at.get_mut(&name).unwrap()[i] = value + by;
                    loss(&at)
                };
                expected.push((moved(step) - moved(-step)) / (2.0 * step));
                moved(0.0);
            }
            let of = match &name[..] {
                "the x" => &got.x,
                "the conv" => state_part(&got.initial, "conv"),
                "the scan" => state_part(&got.initial, "scan"),
                _ => &got.weights[&name].data,
            };
            close(&format!("{} {name}", layer.name()), of, &expected, 1e-4);
        }
    }
}

#[test]
fn norms_and_their_gradients() {
    let (rows, dim, mut random) = (3, 7, Random(4));
    let [x, gate, dy] = [(); 3].map(|()| numbers(&mut random, rows * dim));
    let norm = RmsNorm { weight: numbers(&mut random, dim), eps: 1e-3 };
    let forward = |x: &[f64], gate: Option<&[f64]>, weight: &[f64]| -> Vec<f64> {
        let gated: Vec<f64> = x.iter().enumerate().map(|(i, x)| gate.map_or(*x, |z| x * z[i] / (1.0 + (-z[i]).exp()))).collect();
        let normed = gated.chunks(dim).flat_map(|row| {
            let mean = row.iter().map(|x| x * x).sum::<f64>() / dim as f64;
            row.iter().zip(weight).map(move |(x, w)| w * x / (mean + f64::from(norm.eps)).sqrt())
        });
        normed.collect()
    };
    for gate in [None, Some(&gate[..])] {
        let mut y = vec![f32::NAN; x.len()];
        norm.forward(&x, gate, &mut y).unwrap();
        let wide_gate = gate.map(wide);
        close("y", &y, &forward(&wide(&x), wide_gate.as_deref(), &wide(&norm.weight)), 1e-6);
        let got = norm.backward(&x, gate, &dy).unwrap();
        let mut all = [wide(&x), wide_gate.clone().unwrap_or_default(), wide(&norm.weight)];
        for (which, of) in [&got.x, &got.gate, &got.weight].into_iter().enumerate() {
            let mut expected = Vec::new();
            for i in 0..all[which].len() {
                let mut loss = |by: f64| -> f64 {
                    all[which][i] += by;
                    let y = forward(&all[0], gate.map(|_| &all[1][..]), &all[2]);
                    all[which][i] -= by;
                    y.iter().zip(&dy).map(|(y, dy)| y * f64::from(*dy)).sum()
                };
                expected.push((loss(1e-6) - loss(-1e-6)) / 2e-6);
            }
            close(["x", "gate", "weight"][which], of, &expected, 1e-4);
        }
    }
    let error = norm.forward(&x[1..], None, &mut vec![0.0; x.len() - 1]).unwrap_err().to_string();
    assert_eq!(error, "rms_norm: `x` must be (rows, dim), 14 elements, got 20");
}

#[test]
fn nothing_is_a_sequence_too() {
    for case in cases() {
        let (layer, exec) = (&*case.layer, Exec::cpu(1));
        let before = random_state(&mut Random(5), layer, 2);
        let mut state = before.clone();
        layer.forward_from(&exec, &[], &mut state, &mut []).unwrap();
        assert!(state == before, "{}", layer.name());
        let got = layer.backward(&exec, &[], &before, &[], Some(&before)).unwrap();
        assert!(
            got.initial == before && got.weights.values().all(|array| array.data.iter().all(|&x| x == 0.0)),
            "{}",
            layer.name()
        );
    }
}

#[test]
fn arguments_of_a_wrong_size_are_refused() {
    let exec = Exec::cpu(1);
    for case in cases() {
        let layer = &*case.layer;
        let (x, state) = (vec![0.5; 2 * 3 * layer.dim()], layer.state(2));
        let refused = |result: statescan_models::Result<()>, what: &str| {
            let error = result.unwrap_err().to_string();
            assert!(error.starts_with(layer.name()) && error.contains(what), "{error}");
        };
        let mut y = vec![f32::NAN; x.len()];
        let mut short = state.clone();
        short.get_mut("scan").unwrap().pop();
        refused(layer.forward_from(&exec, &x, &mut short, &mut y), "`state` must be");
        let mut foreign = if layer.name() == "s5" {
            Mixer::random(Config::mamba(1, 4, 1), DType::F32, 1).unwrap().state(2)
        } else {
            s5(true).layer.state(2)
        };
        refused(layer.forward_from(&exec, &x, &mut foreign, &mut y), "`state` must be of the parts that this layer's has");
        refused(layer.forward_from(&exec, &x[1..], &mut state.clone(), &mut y), "`x` must be (batch, seqlen, dim)");
        refused(layer.step(&exec, &x, &mut state.clone(), &mut y), "`x` must be (batch, dim)");
        let less = y.len() - 1;
        refused(layer.forward_from(&exec, &x, &mut state.clone(), &mut y[..less]), "`y` must be");
        refused(layer.backward(&exec, &x, &state, &y, Some(&layer.state(1))).map(drop), "`dlast` must be");
        assert!(y.iter().all(|y| y.is_nan()), "nothing is written");
    }
    let refused = |config: Config, what: &str| {
        let error = Mixer::random(config, DType::F32, 1).err().unwrap().to_string();
        assert!(error.contains(what), "{error}");
    };
    refused(Config::mamba2(1, 8, 1, 3), "`nheads` must be a divisor of the channels, got 5");
    refused(Config::mamba2(1, 8, 1, 0), "`nheads` must be an integer from 1 to 16777216, got 0");
    let mut config = Config::mamba(1, 8, 1);
    config.width = 9;
    refused(config, "`width` must be an integer from 2 to 8, got 9");
    assert!(S5::random(S5Config::new(0, 4), 1).is_err());
}
