use super::rules::silu;
use super::*;
use statescan::ops::causal_conv1d::{Activation, Args, Cotangents, reference, update};

/// Taps.
const W: usize = 3;
const BDL: &[usize] = &[B, D, L];
const STATES: &[usize] = &[B, D, W - 1];

fn loops(i: &Inputs, with_silu: bool) -> Results {
    let all: [(&'static str, &[usize]); 6] =
        [("y", BDL), ("final_states", STATES), ("dx", BDL), ("dweight", &[D, W]), ("dbias", &[D]), ("dinitial", STATES)];
    let mut out = zeros(&all);
    for (b, d) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let before = (0..W - 1).map(|j| i.at::<f64>("initial", &[b, d, j]));
        let u: Vec<f64> = before.chain((0..L).map(|t| i.at("x", &[b, d, t]))).collect();
        let mut du = vec![0.0; u.len()];
        for t in 0..L {
            let mut sum = 0.0;
            for k in 0..W {
                sum += i.at::<f64>("weight", &[d, k]) * u[t + k];
            }
            sum += i.at::<f64>("bias", &[d]);
            set(&mut out, "y", &[b, d, t], if with_silu { silu(sum).0 } else { sum });
            let dy: f64 = i.at("dy", &[b, d, t]);
            let by_sum = if with_silu { dy * silu(sum).1 } else { dy };
            for k in 0..W {
                du[t + k] += i.at::<f64>("weight", &[d, k]) * by_sum;
                add(&mut out, "dweight", &[d, k], u[t + k] * by_sum);
            }
            add(&mut out, "dbias", &[d], by_sum);
        }
        for j in 0..W - 1 {
            set(&mut out, "final_states", &[b, d, j], u[L + j]);
            du[L + j] += i.at::<f64>("dlast", &[b, d, j]);
            set(&mut out, "dinitial", &[b, d, j], du[j]);
        }
        (0..L).for_each(|t| set(&mut out, "dx", &[b, d, t], du[W - 1 + t]));
    }
    out
}

fn each_call(mut check: impl FnMut(&str, &Inputs, bool, Args<'_>)) {
    let specs: [(&'static str, &[usize]); 6] =
        [("x", BDL), ("weight", &[D, W]), ("bias", &[D]), ("initial", STATES), ("dy", BDL), ("dlast", STATES)];
    for with_silu in [false, true] {
        each(&specs.map(|(name, shape)| Spec(name, shape, false)), |what, i| {
            let activation = if with_silu { Activation::Silu } else { Activation::None };
            let args = Args::new(i.view("x"), i.view("weight")).bias(i.view("bias")).activation(activation);
            check(&format!("silu {with_silu}, {what}"), i, with_silu, args.initial_states(i.view("initial")));
        });
    }
}

#[test]
fn causal_conv1d_is_its_loops() {
    each_call(|what, i, with_silu, args| {
        let cotangents = Cotangents::default().y(i.view("dy")).final_states(i.view("dlast"));
        let (y, g) = (reference::forward(&args).unwrap(), reference::backward(&args, &cotangents).unwrap());
        let oracle = vec![
            ("y", y.y),
            ("final_states", y.final_states),
            ("dx", g.x),
            ("dweight", g.weight),
            ("dbias", g.bias),
            ("dinitial", g.initial_states),
        ];
        assert_same(what, &loops(i, with_silu), &oracle);
    });
}

/// Steps are a convolution that begins with what was there.
#[test]
fn causal_conv1d_update_is_its_loops() {
    each_call(|what, i, with_silu, args| {
        let args = update::Args::new(args.x, args.weight).bias(i.view("bias")).activation(args.activation);
        let (y, state) = update::reference::update(&args, &i.view("initial")).unwrap();
        let loops = loops(i, with_silu);
        assert_same(what, &loops[..2].to_vec(), &vec![("y", y), ("final_states", state)]);
    });
}
