use super::rules::{silu, step_size};
use super::*;
use statescan::ops::ssd::{Args, Cotangents, reference};

/// Channels of a head.
const P: usize = 2;
const TIMED: &[usize] = &[B, L, D, P];
const STEPS: &[usize] = &[B, L, D];
const MAPS: &[usize] = &[B, L, 1, N];
const STATES: &[usize] = &[B, D, P, N];
const LIMIT: (f64, f64) = (0.0, 0.9);

/// The step of the input and its derivative by the raw one, and the step of the decay.
fn steps(i: &Inputs, softplus: bool, b: usize, t: usize, h: usize) -> ((f64, f64), f64) {
    let raw = i.at::<f64>("dt", &[b, t, h]);
    let raw = i.option("dt_bias", &[h]).map_or(raw, |bias| raw + bias);
    let dt = step_size(raw, softplus, LIMIT);
    (dt, i.option("dt_a", &[b, t, h]).unwrap_or(dt.0))
}

fn loops(i: &Inputs, softplus: bool) -> Results {
    let all: [(&'static str, &[usize]); 12] = [
        ("y", TIMED),
        ("final_state", STATES),
        ("x", TIMED),
        ("dt", STEPS),
        ("a", &[D]),
        ("b", MAPS),
        ("c", MAPS),
        ("initial", STATES),
        ("d", &[D]),
        ("z", TIMED),
        ("dt_bias", &[D]),
        ("dt_a", STEPS),
    ];
    let given: Vec<_> =
        all.into_iter().filter(|(name, _)| ["y", "final_state"].contains(name) || i.get(name).is_some()).collect();
    let mut out = zeros(&given);
    for b in 0..B {
        for h in 0..D {
            (0..P).for_each(|p| row(i, softplus, [b, h, p], &mut out));
        }
    }
    out
}

fn row(i: &Inputs, softplus: bool, [b, h, p]: [usize; 3], out: &mut Results) {
    let a: f64 = i.at("a", &[h]);
    let mut state = vec![[0, 1].map(|n| i.at::<f64>("initial", &[b, h, p, n]))];
    let mut outputs = Vec::new();
    for t in 0..L {
        let (x, ((dt, _), dt_a)) = (i.at::<f64>("x", &[b, t, h, p]), steps(i, softplus, b, t, h));
        let next = [0, 1].map(|n| (dt_a * a).exp() * state[t][n] + dt * i.at::<f64>("b", &[b, t, 0, n]) * x);
        state.push(next);
        let mut y = 0.0;
        for n in 0..N {
            y += i.at::<f64>("c", &[b, t, 0, n]) * next[n];
        }
        outputs.push(i.option("d", &[h]).map_or(y, |skip| y + skip * x));
        let gated = i.option("z", &[b, t, h, p]).map_or(outputs[t], |z| outputs[t] * silu(z).0);
        set(out, "y", &[b, t, h, p], gated);
    }
    let mut g = [0, 1].map(|n| i.at::<f64>("dlast", &[b, h, p, n]));
    for n in 0..N {
        set(out, "final_state", &[b, h, p, n], state[L][n]);
    }
    for t in (0..L).rev() {
        let (x, ((dt, slope), dt_a)) = (i.at::<f64>("x", &[b, t, h, p]), steps(i, softplus, b, t, h));
        let mut dy: f64 = i.at("dy", &[b, t, h, p]);
        if let Some(z) = i.option("z", &[b, t, h, p]) {
            set(out, "z", &[b, t, h, p], dy * outputs[t] * silu(z).1);
            dy *= silu(z).0;
        }
        let (mut dx, mut by_dt, mut by_dt_a) = (i.option("d", &[h]).map_or(0.0, |skip| skip * dy), 0.0, 0.0);
        add(out, "d", &[h], dy * x);
        let decay = (dt_a * a).exp();
        for n in 0..N {
            let map: f64 = i.at("b", &[b, t, 0, n]);
            g[n] += i.at::<f64>("c", &[b, t, 0, n]) * dy;
            add(out, "c", &[b, t, 0, n], state[t + 1][n] * dy);
            add(out, "b", &[b, t, 0, n], g[n] * dt * x);
            dx += g[n] * dt * map;
            let by_exponent = g[n] * state[t][n] * decay;
            add(out, "a", &[h], by_exponent * dt_a);
            by_dt += g[n] * map * x;
            by_dt_a += by_exponent * a;
            g[n] *= decay;
        }
        match i.get("dt_a") {
            Some(_) => add(out, "dt_a", &[b, t, h], by_dt_a),
            None => by_dt += by_dt_a,
        }
        set(out, "x", &[b, t, h, p], dx);
        add(out, "dt", &[b, t, h], by_dt * slope);
        add(out, "dt_bias", &[h], by_dt * slope);
    }
    for n in 0..N {
        set(out, "initial", &[b, h, p, n], g[n]);
    }
}

fn oracle(i: &Inputs, softplus: bool) -> Results {
    let mut args = Args::new(i.view("x"), i.view("dt"), i.view("a"), i.view("b"), i.view("c"))
        .initial_state(i.view("initial"))
        .dt_softplus(softplus)
        .dt_limit(LIMIT);
    (args.d, args.z, args.dt_bias, args.dt_a) = (i.get("d"), i.get("z"), i.get("dt_bias"), i.get("dt_a"));
    let cotangents = Cotangents::default().y(i.view("dy")).final_state(i.view("dlast"));
    let (y, g) = (reference::forward(&args).unwrap(), reference::backward(&args, &cotangents).unwrap());
    let mut all = vec![("y", y.y), ("final_state", y.final_state), ("x", g.x), ("dt", g.dt), ("a", g.a)];
    all.extend([("b", g.b), ("c", g.c), ("initial", g.initial_state)]);
    all.extend([("d", g.d), ("z", g.z), ("dt_bias", g.dt_bias), ("dt_a", g.dt_a)].into_iter().filter_map(|(n, g)| Some((n, g?))));
    all
}

#[test]
fn ssd_is_its_loops() {
    for (softplus, with_options) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut specs = vec![("x", TIMED), ("dt", STEPS), ("a", &[D] as &[usize]), ("b", MAPS), ("c", MAPS)];
        specs.extend([("initial", STATES), ("dy", TIMED), ("dlast", STATES)]);
        if with_options {
            specs.extend([("d", &[D] as &[usize]), ("z", TIMED), ("dt_bias", &[D]), ("dt_a", STEPS)]);
        }
        let specs: Vec<_> = specs.into_iter().map(|(name, shape)| Spec(name, shape, false)).collect();
        each(&specs, |what, i| {
            let what = format!("softplus {softplus}, options {with_options}, {what}");
            assert_same(&what, &loops(i, softplus), &oracle(i, softplus));
        });
    }
}
