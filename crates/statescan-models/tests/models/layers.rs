//! Layers on their own, from any state: against the oracle, cut anywhere, and every gradient by central differences.

use crate::common::{Random, apart, bits, largest};
use crate::device::gpu;
use num_complex::Complex32;
use statescan::{DType, Exec, Tensor, View};
use statescan_models::layers::{Layer, Mixer, Part, S5, S5Config};
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

fn mixer(exec: &Exec, config: Config) -> Case {
    let prefixes = ["backbone.layers.0.mixer.", "model.layers.0.linear_attn."];
    let tensors = config.tensors();
    let own = |name| prefixes.iter().find_map(|prefix| str::strip_prefix(name, prefix));
    let of_mixer = tensors.iter().filter_map(|(name, shape)| Some((own(name)?, shape.clone())));
    let weights = weights(&mut Random(7), of_mixer);
    let layer = Mixer::new(exec, config.clone(), &weights).unwrap();
    let oracle =
        move |weights: &Weights, x: &[f64], conv: &mut [f64], scan: &mut [f64]| reference::mixer(&config, weights, x, conv, scan);
    Case { layer: Box::new(layer), weights, oracle: Box::new(oracle) }
}

fn s5(exec: &Exec, conj_sym: bool) -> Case {
    let mut config = S5Config::new(6, 5);
    (config.conj_sym, config.step_rescale) = (conj_sym, 0.5);
    let mut weights = weights(&mut Random(8), config.tensors());
    // decays that decay
    weights.get_mut("A").unwrap().data.iter_mut().step_by(2).for_each(|a| *a = -a.abs() - 0.1);
    let layer = S5::new(exec, config.clone(), &weights).unwrap();
    let oracle = move |weights: &Weights, x: &[f64], _: &mut [f64], scan: &mut [f64]| reference::s5(&config, weights, x, scan);
    Case { layer: Box::new(layer), weights, oracle: Box::new(oracle) }
}

/// A layer of each kind.
fn cases(exec: &Exec) -> [Case; 7] {
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
    let mixer = |config| mixer(exec, config);
    [mixer(mamba), mixer(falcon), mixer(second), mixer(qwen), mixer(olmo), s5(exec, true), s5(exec, false)]
}

fn wide(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().map(|&x| f64::from(x)).collect()
}

fn wide_weights(weights: &Tensors) -> Weights {
    weights.iter().map(|(name, array)| (name.clone(), wide(&array.data))).collect()
}

/// The CPU, with two threads, and a GPU where there is one.
fn execs() -> Vec<Exec> {
    [Some(Exec::cpu(2)), gpu()].into_iter().flatten().collect()
}

/// A tensor of numbers, of pairs of them where it is complex.
fn tensor(exec: &Exec, dtype: DType, shape: &[usize], numbers: &[f32]) -> Tensor {
    let pairs: Vec<_> = numbers.chunks_exact(2).map(|pair| Complex32::new(pair[0], pair[1])).collect();
    match dtype {
        DType::Complex64 => Tensor::from_slice(exec, &pairs, shape),
        _ => Tensor::from_slice(exec, numbers, shape),
    }
    .unwrap()
}

/// The numbers of a tensor, two of each that is complex.
fn read(tensor: &Tensor) -> Vec<f32> {
    match tensor.dtype() {
        DType::Complex64 => tensor.to_vec::<Complex32>().unwrap().into_iter().flat_map(|x| [x.re, x.im]).collect(),
        _ => tensor.to_vec().unwrap(),
    }
}

/// Rows of a layer.
fn rows(layer: &dyn Layer, numbers: &[f32]) -> Tensor {
    Tensor::from_slice(layer.exec(), numbers, &[numbers.len() / layer.dim(), layer.dim()]).unwrap()
}

fn random_state(random: &mut Random, layer: &dyn Layer, batch: usize) -> Vec<Tensor> {
    let part = |Part { dtype, shape, .. }: Part| {
        let pair = if dtype == DType::Complex64 { 2 } else { 1 };
        let shape = [&[batch], &shape[..]].concat();
        tensor(layer.exec(), dtype, &shape, &numbers(random, pair * shape.iter().product::<usize>()))
    };
    layer.state_parts().into_iter().map(part).collect()
}

/// The numbers of a part of a state, which a layer may not have.
fn state_part(layer: &dyn Layer, state: &[Tensor], name: &str) -> Vec<f32> {
    let at = layer.state_parts().iter().position(|part| part.name == name);
    at.map(|at| read(&state[at])).unwrap_or_default()
}

#[track_caller]
fn close(what: &str, got: &[f32], expected: &[f64], tolerance: f64) {
    let (worst, largest) = (apart(got, expected), largest(expected.iter().copied()));
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
    for case in execs().iter().flat_map(cases) {
        let (layer, mut random, batch) = (&*case.layer, Random(1), 2);
        for seqlen in [1, 2, 7, 71] {
            let x = numbers(&mut random, batch * seqlen * layer.dim());
            let (state, mut after) = (random_state(&mut random, layer, batch), random_state(&mut random, layer, batch));
            let before = ["conv", "scan"].map(|name| wide(&state_part(layer, &state, name)));
            let expected = oracle(&case, &wide_weights(&case.weights), &wide(&x), &before, batch);
            let mut y = rows(layer, &vec![f32::NAN; x.len()]);
            layer.forward(batch, rows(layer, &x).view(), &state, y.view_mut(), &mut after).unwrap();
            let [conv, scan] = ["conv", "scan"].map(|name| state_part(layer, &after, name));
            for (what, got, expected) in
                [("y", read(&y), &expected[0]), ("conv", conv, &expected[1]), ("scan", scan, &expected[2])]
            {
                close(&format!("{} {seqlen} {what} on {:?}", layer.name(), layer.exec()), &got, expected, 2e-5);
            }
        }
    }
}

#[test]
fn a_sequence_may_be_cut_anywhere() {
    for case in cases(&Exec::cpu(1)).into_iter().take(5) {
        let (layer, seqlen) = (&*case.layer, 9);
        let dim = layer.dim();
        let x = numbers(&mut Random(2), seqlen * dim);
        // from zeros, which need not be given
        let (mut whole, mut after) = (rows(layer, &vec![0.0; x.len()]), layer.state(1).unwrap());
        layer.forward(1, rows(layer, &x).view(), &[], whole.view_mut(), &mut after).unwrap();
        for cut in 1..=seqlen {
            let (mut state, mut y) = (layer.state(1).unwrap(), Vec::new());
            for part in [&x[..cut * dim]].into_iter().chain(x[cut * dim..].chunks(dim)) {
                let (mut next, mut of_part) = (layer.state(1).unwrap(), rows(layer, part));
                layer.forward(1, rows(layer, part).view(), &state, of_part.view_mut(), &mut next).unwrap();
                (state, y) = (next, [y, read(&of_part)].concat());
            }
            assert_eq!(bits(&y), bits(&read(&whole)), "{} {cut}", layer.name());
            assert!(state.iter().map(read).eq(after.iter().map(read)), "{} {cut}", layer.name());
        }
    }
}

#[test]
fn every_gradient_is_a_central_difference_of_the_oracle() {
    for case in execs().iter().flat_map(cases) {
        let (layer, mut random, batch, seqlen) = (&*case.layer, Random(3), 2, 5);
        let [x, dy] = [(); 2].map(|()| numbers(&mut random, batch * seqlen * layer.dim()));
        let [initial, dlast] = [(); 2].map(|()| random_state(&mut random, layer, batch));
        let got = layer.backward(batch, rows(layer, &x).view(), &initial, rows(layer, &dy).view(), &dlast).unwrap();
        let part = |state: &[Tensor], name| state_part(layer, state, name);
        let cotangents = [wide(&dy), wide(&part(&dlast, "conv")), wide(&part(&dlast, "scan"))];
        let mut at: BTreeMap<String, Vec<f64>> = wide_weights(&case.weights);
        let others = [("x", x.clone()), ("conv", part(&initial, "conv")), ("scan", part(&initial, "scan"))];
        at.extend(others.map(|(name, data)| (format!("the {name}"), wide(&data))));
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
                "the x" => read(&got.x),
                "the conv" => part(&got.initial, "conv"),
                "the scan" => part(&got.initial, "scan"),
                _ => read(&got.weights[&name]),
            };
            close(&format!("{} {name} on {:?}", layer.name(), layer.exec()), &of, &expected, 1e-4);
        }
    }
}

#[test]
fn arguments_that_do_not_go_together_are_refused() {
    for case in execs().iter().flat_map(cases) {
        let (layer, dim) = (&*case.layer, case.layer.dim());
        let (x, wide) = (rows(layer, &vec![0.5; 6 * dim]), Tensor::zeros(layer.exec(), DType::F32, &[6, dim + 1]).unwrap());
        let (state, other, mut none) = (layer.state(2).unwrap(), layer.state(3).unwrap(), Vec::new());
        let refused = |result: statescan_models::Result<()>, what: &str| {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(layer.name()) && error.contains(what), "{error}");
        };
        let mut y = rows(layer, &vec![f32::NAN; 6 * dim]);
        refused(layer.forward(2, x.view(), &other, y.view_mut(), &mut none), "`initial`");
        refused(layer.forward(2, wide.view(), &state, y.view_mut(), &mut none), "`x`");
        refused(layer.forward(2, wide.view().slice(1, 0..dim), &state, y.view_mut(), &mut none), "`x`");
        refused(layer.forward(4, x.view(), &[], y.view_mut(), &mut none), "at least a row for each sequence");
        refused(layer.forward(2, x.view(), &state, y.view_mut().slice(0, 0..4), &mut none), "`y`");
        refused(layer.backward(2, x.view(), &state, x.view(), &other).map(drop), "`dlast`");
        if layer.state_parts().len() > 1 {
            refused(layer.forward(2, x.view(), &state[..1], y.view_mut(), &mut none), "all parts of a state or none");
        }
        let mut last = layer.state(2).unwrap();
        let place = last.last().unwrap().view();
        // SAFETY: the state has as many numbers, and the call, which would write there, only looks at where they are.
        let x = unsafe { View::from_raw_parts(place.as_ptr(), DType::F32, place.device(), &[2, dim], &[dim as isize, 1]) };
        refused(
            layer.forward(2, x.unwrap(), &[], y.view_mut().slice(0, 0..2), &mut last),
            "`last` is written and must not share memory with `x`",
        );
        assert!(read(&y).iter().all(|y| y.is_nan()), "nothing is written");
    }
    let exec = Exec::cpu(1);
    let refused = |config: Config, what: &str| {
        let error = Mixer::random(&exec, config, DType::F32, 1).err().unwrap().to_string();
        assert!(error.contains(what), "{error}");
    };
    refused(Config::mamba2(1, 8, 1, 3), "`nheads` must be a divisor of the channels, got 5");
    refused(Config::mamba2(1, 8, 1, 0), "`nheads` must be an integer from 1 to 16777216, got 0");
    let mut config = Config::mamba(1, 8, 1);
    config.width = 9;
    refused(config, "`width` must be an integer from 2 to 8, got 9");
    assert!(S5::random(&exec, S5Config::new(0, 4), 1).is_err());
}
