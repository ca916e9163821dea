use super::rules::{decay, input, input_backward, silu, step_size};
use super::*;
use statescan::Discretization;
use statescan::ops::selective_scan::{Args, Cotangents, reference, update};

const BDL: &[usize] = &[B, D, L];
const DN: &[usize] = &[D, N];
const BNL: &[usize] = &[B, N, L];
const BDN: &[usize] = &[B, D, N];
const LIMIT: (f64, f64) = (0.0, 0.9);

#[derive(Clone, Copy)]
struct Options {
    method: Discretization,
    softplus: bool,
    limit: (f64, f64),
}

impl Options {
    /// The step of the input and its derivative by the raw one, and the step of the decay.
    fn steps(&self, i: &Inputs, b: usize, d: usize, t: usize) -> ((f64, f64), f64) {
        let raw = i.at::<f64>("dt", &[b, d, t]);
        let raw = i.option("dt_bias", &[d]).map_or(raw, |bias| raw + bias);
        let dt = step_size(raw, self.softplus, self.limit);
        (dt, i.option("dt_a", &[b, d, t]).unwrap_or(dt.0))
    }
}

fn loops<S: Scalar>(i: &Inputs, options: Options, complex: bool) -> Results {
    let all: [(&'static str, &[usize]); 12] = [
        ("y", BDL),
        ("final_state", BDN),
        ("x", BDL),
        ("dt", BDL),
        ("a", DN),
        ("b", BNL),
        ("c", BNL),
        ("initial", BDN),
        ("d", &[D]),
        ("z", BDL),
        ("dt_bias", &[D]),
        ("dt_a", BDL),
    ];
    let given: Vec<_> =
        all.into_iter().filter(|(name, _)| ["y", "final_state"].contains(name) || i.get(name).is_some()).collect();
    let mut out = zeros(&given);
    for b in 0..B {
        for d in 0..D {
            channel::<S>(i, options, complex, (b, d), &mut out);
        }
    }
    out
}

fn channel<S: Scalar>(i: &Inputs, options: Options, complex: bool, (b, d): (usize, usize), out: &mut Results) {
    let (method, factor) = (options.method, if complex { 2.0 } else { 1.0 });
    let a = |n: usize| i.at::<S>("a", &[d, n]);
    let mut h = vec![[0, 1].map(|n| i.at::<S>("initial", &[b, d, n]))];
    let mut outputs = Vec::new();
    for t in 0..L {
        let (x, ((dt, _), dt_a)) = (i.at::<f64>("x", &[b, d, t]), options.steps(i, b, d, t));
        h.push([0, 1].map(|n| decay(method, a(n) * dt_a).0 * h[t][n] + input(method, dt, a(n), i.at::<S>("b", &[b, n, t]) * x)));
        let mut sum = S::zero();
        for n in 0..N {
            sum += i.at::<S>("c", &[b, n, t]) * h[t + 1][n];
        }
        let y = sum.re() * factor;
        outputs.push(i.option("d", &[d]).map_or(y, |skip| y + skip * x));
        let gated = i.option("z", &[b, d, t]).map_or(outputs[t], |z| outputs[t] * silu(z).0);
        set(out, "y", &[b, d, t], gated);
    }
    let mut g = [0, 1].map(|n| i.at::<S>("dlast", &[b, d, n]));
    for n in 0..N {
        set(out, "final_state", &[b, d, n], h[L][n]);
    }
    for t in (0..L).rev() {
        let (x, ((dt, slope), dt_a)) = (i.at::<f64>("x", &[b, d, t]), options.steps(i, b, d, t));
        let mut dy: f64 = i.at("dy", &[b, d, t]);
        if let Some(z) = i.option("z", &[b, d, t]) {
            set(out, "z", &[b, d, t], dy * outputs[t] * silu(z).1);
            dy *= silu(z).0;
        }
        let (mut dx, mut by_dt, mut by_dt_a) = (i.option("d", &[d]).map_or(0.0, |skip| skip * dy), 0.0, 0.0);
        add(out, "d", &[d], dy * x);
        for n in 0..N {
            let (by, map) = (dy * factor, i.at::<S>("b", &[b, n, t]));
            g[n] += i.at::<S>("c", &[b, n, t]).conj() * by;
            add(out, "c", &[b, n, t], h[t + 1][n].conj() * by);
            let (by_driven, by_d, by_a) = input_backward(method, dt, a(n), map * x, g[n]);
            add(out, "b", &[b, n, t], by_driven * x);
            dx += (by_driven * map.conj()).re();
            let ((value, slope), by_decay) = (decay(method, a(n) * dt_a), g[n] * h[t][n].conj());
            add(out, "a", &[d, n], by_decay * slope.conj() * dt_a + by_a);
            by_dt += by_d;
            by_dt_a += (by_decay * (slope * a(n)).conj()).re();
            g[n] *= value.conj();
        }
        if i.get("dt_a").is_some() {
            set(out, "dt_a", &[b, d, t], by_dt_a);
        } else {
            by_dt += by_dt_a;
        }
        set(out, "x", &[b, d, t], dx);
        set(out, "dt", &[b, d, t], by_dt * slope);
        add(out, "dt_bias", &[d], by_dt * slope);
    }
    for n in 0..N {
        set(out, "initial", &[b, d, n], g[n]);
    }
}

fn oracle(i: &Inputs, options: Options) -> Results {
    let mut args = Args::new(i.view("x"), i.view("dt"), i.view("a"), i.view("b"), i.view("c"))
        .initial_state(i.view("initial"))
        .discretization(options.method)
        .dt_softplus(options.softplus)
        .dt_limit(options.limit);
    (args.d, args.z, args.dt_bias, args.dt_a) = (i.get("d"), i.get("z"), i.get("dt_bias"), i.get("dt_a"));
    let cotangents = Cotangents::default().y(i.view("dy")).final_state(i.view("dlast"));
    let (y, g) = (reference::forward(&args).unwrap(), reference::backward(&args, &cotangents).unwrap());
    let mut all = vec![("y", y.y), ("final_state", y.final_state), ("x", g.x), ("dt", g.dt), ("a", g.a)];
    all.extend([("b", g.b), ("c", g.c), ("initial", g.initial_state)]);
    all.extend([("d", g.d), ("z", g.z), ("dt_bias", g.dt_bias), ("dt_a", g.dt_a)].into_iter().filter_map(|(n, g)| Some((n, g?))));
    all
}

fn specs(complex: bool, with_options: bool) -> Vec<Spec> {
    let wide = [("a", DN), ("b", BNL), ("c", BNL), ("initial", BDN), ("dlast", BDN)];
    let mut specs = vec![Spec("x", BDL, false), Spec("dt", BDL, false), Spec("dy", BDL, false)];
    specs.extend(wide.map(|(name, shape)| Spec(name, shape, complex)));
    if with_options {
        specs.extend(
            [("d", &[D] as &[usize]), ("z", BDL), ("dt_bias", &[D]), ("dt_a", BDL)].map(|(name, shape)| Spec(name, shape, false)),
        );
    }
    specs
}

#[test]
fn selective_scan_is_its_loops() {
    for method in Discretization::ALL {
        for (complex, with_options) in [(false, false), (false, true), (true, false), (true, true)] {
            for (softplus, limit) in [(false, (f64::NEG_INFINITY, f64::INFINITY)), (true, LIMIT)] {
                let options = Options { method, softplus, limit };
                each(&specs(complex, with_options), |what, i| {
                    let expected = if complex { loops::<Complex64>(i, options, true) } else { loops::<f64>(i, options, false) };
                    let what = format!("{method}, complex {complex}, softplus {softplus}, {what}");
                    assert_same(&what, &expected, &oracle(i, options));
                });
            }
        }
    }
}

/// A step is a scan of one step.
#[test]
fn selective_state_update_is_its_loops() {
    let limit = (f64::NEG_INFINITY, f64::INFINITY);
    for method in Discretization::ALL {
        for (complex, with_options) in [(false, false), (false, true), (true, false), (true, true)] {
            let options = Options { method, softplus: with_options, limit };
            each(&specs(complex, with_options), |what, i| {
                let scan = if complex { loops::<Complex64>(i, options, true) } else { loops::<f64>(i, options, false) };
                let first = |name: &str| i.get(name).map(|view| view.index(view.rank() - 1, 0));
                let [x, dt, b, c] = ["x", "dt", "b", "c"].map(|name| first(name).unwrap());
                let mut args = update::Args::new(x, dt, i.view("a"), b, c).discretization(method).dt_softplus(options.softplus);
                (args.d, args.z, args.dt_bias, args.dt_a) = (i.get("d"), first("z"), i.get("dt_bias"), first("dt_a"));
                let (y, _) = update::reference::update(&args, &i.view("initial")).unwrap();
                let expected = Dense::from_view(&scan[0].1.view().index(2, 0));
                let what = format!("step, {method}, complex {complex}, {what}");
                // `y` of a scan is complex numbers whose imaginary parts are zero
                assert_same(&what, &vec![("y", expected)], &vec![("y", y)]);
            });
        }
    }
}
