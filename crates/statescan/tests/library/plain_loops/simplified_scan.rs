use super::rules::{decay, input, input_backward};
use super::*;
use core::ops::Mul;
use statescan::Discretization;
use statescan::ops::simplified_scan::{Args, Cotangents, reference, update};

const BHL: &[usize] = &[B, D, L];
const BNL: &[usize] = &[B, N, L];
const BN: &[usize] = &[B, N];
const NH: &[usize] = &[N, D];
const HN: &[usize] = &[D, N];

/// Which numbers are complex.
#[derive(Clone, Copy, Debug)]
enum Numbers {
    Real,
    ComplexStates,
    Complex,
}

/// Inputs are numbers of type `U`, states and maps of type `S`; `real` says that the output is the real part and has a skip.
fn loops<U: Scalar, S: Scalar + Mul<U, Output = S>>(i: &Inputs, method: Discretization, real: bool) -> Results {
    let all: [(&'static str, &[usize]); 10] = [
        ("y", BHL),
        ("last_state", BN),
        ("u", BHL),
        ("delta", BNL),
        ("a", &[N]),
        ("b", NH),
        ("c", HN),
        ("delta_a", BNL),
        ("initial", BN),
        ("d", &[D]),
    ];
    let given: Vec<_> = all.into_iter().filter(|(name, _)| ["y", "last_state"].contains(name) || i.get(name).is_some()).collect();
    let mut out = zeros(&given);
    (0..B).for_each(|b| row::<U, S>(i, method, real, b, &mut out));
    out
}

fn row<U: Scalar, S: Scalar + Mul<U, Output = S>>(i: &Inputs, method: Discretization, real: bool, b: usize, out: &mut Results) {
    let a = |n: usize| i.at::<S>("a", &[n]);
    let u = |h: usize, t: usize| i.at::<U>("u", &[b, h, t]);
    let steps = |n: usize, t: usize| {
        let d = i.at::<f64>("delta", &[b, n, t]);
        (d, i.option("delta_a", &[b, n, t]).unwrap_or(d))
    };
    let driven = |n: usize, t: usize| {
        let mut sum = S::zero();
        for h in 0..D {
            sum += i.at::<S>("b", &[n, h]) * u(h, t);
        }
        sum
    };
    let mut x = vec![[0, 1].map(|n| i.at::<S>("initial", &[b, n]))];
    for t in 0..L {
        let next = [0, 1].map(|n| {
            let (d, da) = steps(n, t);
            decay(method, a(n) * da).0 * x[t][n] + input(method, d, a(n), driven(n, t))
        });
        x.push(next);
        for h in 0..D {
            let mut y = S::zero();
            for n in 0..N {
                y += i.at::<S>("c", &[h, n]) * next[n];
            }
            match real {
                false => set(out, "y", &[b, h, t], y),
                true => set(out, "y", &[b, h, t], 2.0 * y.re() + i.at::<f64>("d", &[h]) * u(h, t).re()),
            }
        }
    }
    let mut g = [0, 1].map(|n| i.at::<S>("dlast", &[b, n]));
    for n in 0..N {
        set(out, "last_state", &[b, n], x[L][n]);
    }
    for t in (0..L).rev() {
        for h in 0..D {
            let dy: S = i.at("dy", &[b, h, t]);
            if real {
                add(out, "d", &[h], dy.re() * u(h, t).re());
                add(out, "u", &[b, h, t], i.at::<f64>("d", &[h]) * dy.re());
            }
            for n in 0..N {
                let by = |value: S| if real { value * (2.0 * dy.re()) } else { value * dy };
                g[n] += by(i.at::<S>("c", &[h, n]).conj());
                add(out, "c", &[h, n], by(x[t + 1][n].conj()));
            }
        }
        for n in 0..N {
            let ((d, da), (value, slope)) = (steps(n, t), decay(method, a(n) * steps(n, t).1));
            let (by_driven, by_d, by_a) = input_backward(method, d, a(n), driven(n, t), g[n]);
            for h in 0..D {
                add(out, "b", &[n, h], by_driven * u(h, t).conj());
                // the gradient of a real input is real
                add(out, "u", &[b, h, t], U::of((by_driven * i.at::<S>("b", &[n, h]).conj()).into()));
            }
            let by_decay = g[n] * x[t][n].conj();
            add(out, "a", &[n], by_decay * slope.conj() * da + by_a);
            add(out, "delta", &[b, n, t], by_d);
            let step = if i.get("delta_a").is_some() { "delta_a" } else { "delta" };
            add(out, step, &[b, n, t], (by_decay * (slope * a(n)).conj()).re());
            g[n] *= value.conj();
        }
    }
    for n in 0..N {
        set(out, "initial", &[b, n], g[n]);
    }
}

fn expected(i: &Inputs, method: Discretization, real: bool, numbers: Numbers) -> Results {
    match numbers {
        Numbers::Real => loops::<f64, f64>(i, method, real),
        Numbers::ComplexStates => loops::<f64, Complex64>(i, method, real),
        Numbers::Complex => loops::<Complex64, Complex64>(i, method, real),
    }
}

/// The skip, which only a real result has.
fn skip(i: &Inputs, real: bool) -> Option<View<'_>> {
    i.get("d").filter(|_| real)
}

fn oracle(i: &Inputs, method: Discretization, real: bool) -> Results {
    let mut args = Args::new(i.view("u"), i.view("delta"), i.view("a"), i.view("b"), i.view("c"))
        .initial_state(i.view("initial"))
        .discretization(method)
        .d(skip(i, real));
    args.delta_a = i.get("delta_a");
    let cotangents = Cotangents::default().y(i.view("dy")).last_state(i.view("dlast"));
    let (y, g) = (reference::forward(&args).unwrap(), reference::backward(&args, &cotangents).unwrap());
    let mut all =
        vec![("y", y.y), ("last_state", y.last_state), ("u", g.u), ("delta", g.delta), ("a", g.a), ("b", g.b), ("c", g.c)];
    all.extend(g.delta_a.map(|g| ("delta_a", g)));
    all.push(("initial", g.initial_state));
    all.extend(g.d.map(|g| ("d", g)));
    all
}

fn each_kind(mut check: impl FnMut(&str, &Inputs, Discretization, bool, Numbers)) {
    for method in Discretization::ALL {
        for (real, numbers) in [
            (false, Numbers::Real),
            (false, Numbers::ComplexStates),
            (false, Numbers::Complex),
            (true, Numbers::Real),
            (true, Numbers::ComplexStates),
            (true, Numbers::Complex),
        ] {
            let (inputs, states) = (matches!(numbers, Numbers::Complex), !matches!(numbers, Numbers::Real));
            let wide = [("a", &[N] as &[usize]), ("b", NH), ("c", HN), ("initial", BN), ("dlast", BN)];
            let mut specs = vec![Spec("u", BHL, inputs), Spec("delta", BNL, false), Spec("dy", BHL, states && !real)];
            specs.extend(wide.map(|(name, shape)| Spec(name, shape, states)));
            specs.extend(real.then_some(Spec("d", &[D], false)));
            for delta_a in [false, true] {
                specs.extend(delta_a.then_some(Spec("delta_a", BNL, false)));
                each(&specs, |what, i| {
                    check(&format!("{method}, real output {real}, {numbers:?}, {what}"), i, method, real, numbers)
                });
            }
        }
    }
}

#[test]
fn simplified_scan_is_its_loops() {
    each_kind(|what, i, method, real, numbers| {
        assert_same(what, &expected(i, method, real, numbers), &oracle(i, method, real));
    });
}

/// A step is a scan of one step.
#[test]
fn simplified_state_update_is_its_loops() {
    each_kind(|what, i, method, real, numbers| {
        let first = |name: &str| i.get(name).map(|view| view.index(2, 0));
        let (u, delta) = (first("u").unwrap(), first("delta").unwrap());
        let mut args = update::Args::new(u, delta, i.view("a"), i.view("b"), i.view("c"));
        args = args.discretization(method).d(skip(i, real));
        args.delta_a = first("delta_a");
        let (y, _) = update::reference::update(&args, &i.view("initial")).unwrap();
        let loops = Dense::from_view(&expected(i, method, real, numbers)[0].1.view().index(2, 0));
        assert_same(what, &vec![("y", loops)], &vec![("y", y)]);
    });
}
