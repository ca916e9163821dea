use super::*;
use statescan::ops::linear_scan::{Args, Cotangents, reference};

fn loops<S: Scalar>(i: &Inputs) -> Results {
    let (rows, timed): (&[usize], &[usize]) = (&[B], &[B, L]);
    let mut out =
        zeros(&[("h", timed), ("final_state", rows), ("decay", rows), ("da", timed), ("db", timed), ("d initial", rows)]);
    for b in 0..B {
        let mut h = vec![i.at::<S>("initial", &[b])];
        let mut decay = S::one();
        for t in 0..L {
            let a: S = i.at("a", &[b, t]);
            h.push(a * h[t] + i.at("b", &[b, t]));
            decay *= a;
            set(&mut out, "h", &[b, t], h[t + 1]);
        }
        set(&mut out, "final_state", &[b], h[L]);
        set(&mut out, "decay", &[b], decay);
        let mut g: S = i.at("dfinal", &[b]);
        for t in (0..L).rev() {
            g += i.at("dh", &[b, t]);
            set(&mut out, "db", &[b, t], g);
            set(&mut out, "da", &[b, t], g * h[t].conj());
            g *= i.at::<S>("a", &[b, t]).conj();
        }
        set(&mut out, "d initial", &[b], g);
    }
    out
}

#[test]
fn linear_scan_is_its_loops() {
    let (rows, timed): (&[usize], &[usize]) = (&[B], &[B, L]);
    for complex in [false, true] {
        let specs = [("a", timed), ("b", timed), ("initial", rows), ("dh", timed), ("dfinal", rows)];
        each(&specs.map(|(name, shape)| Spec(name, shape, complex)), |what, i| {
            let args = Args::new(i.view("a"), i.view("b")).initial_state(i.view("initial"));
            let cotangents = Cotangents::default().h(i.view("dh")).final_state(i.view("dfinal"));
            let (y, g) = (reference::forward(&args).unwrap(), reference::backward(&args, &cotangents).unwrap());
            let names = ["h", "final_state", "decay", "da", "db", "d initial"];
            let oracle = names.into_iter().zip([y.h, y.final_state, y.decay, g.a, g.b, g.initial_state]).collect();
            let expected = if complex { loops::<Complex64>(i) } else { loops::<f64>(i) };
            assert_same(what, &expected, &oracle);
        });
    }
}

/// The case that one meets first: an infinity stays one.
#[test]
fn an_infinite_input_makes_infinite_states() {
    let (a, b) = ([0.5; 4], [f64::INFINITY, 1.0, 1.0, 1.0]);
    let (a, b) = (View::new(&a, &[1, 4]).unwrap(), View::new(&b, &[1, 4]).unwrap());
    let out = reference::forward(&Args::new(a, b)).unwrap();
    assert_eq!(out.h.data(), [Complex64::from(f64::INFINITY); 4]);
}
