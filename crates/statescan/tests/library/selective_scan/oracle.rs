//! The oracle itself: identities and central differences.

use super::*;
use crate::common::central_differences;
use statescan::View;
use statescan::tensor::Dense;

const F64: ErrorBound = ErrorBound { absolute: 1e-12, relative: 1e-12 };

fn close(got: &Dense, expected: &Dense, bound: ErrorBound, what: &str) {
    let (absolute, _, within) = statescan::tensor::max_errors(got.data(), expected.data(), bound);
    assert!(within, "{what}: {absolute:.2e}");
}

fn dense(view: View<'_>) -> Dense {
    Dense::from_view(&view)
}

#[test]
fn two_halves_with_a_carried_state_are_the_whole() {
    for complex in [false, true] {
        let case = Case { complex, ..Case::new(DType::F64, 2, 3, 20, 4, INITIAL | GATE | SKIP) };
        let inputs = Inputs::new(&case);
        let args = inputs.args(&case);
        let whole = reference::forward(&args).unwrap();
        let part = |range: std::ops::Range<usize>, state: View<'_>| {
            let cut = |v: View<'_>| dense(v.slice(v.rank() - 1, range.clone()));
            let [x, dt, b, c, z] = [args.x, args.dt, args.b, args.c, args.z.unwrap()].map(cut);
            let real = |v: &Dense| Tensor::from_dense(v, DType::F64);
            let [x, dt, z] = [&x, &dt, &z].map(real);
            let maps = [&b, &c].map(|m| Tensor::from_dense(m, case.wide()));
            let args = args.x(x.view()).dt(dt.view()).b(maps[0].view()).c(maps[1].view()).z(z.view()).initial_state(state);
            reference::forward(&args).unwrap()
        };
        let first = part(0..7, args.initial_state.unwrap());
        let state = Tensor::from_dense(&first.final_state, case.wide());
        let second = part(7..20, state.view());
        close(&second.final_state, &whole.final_state, F64, "final state");
        close(&first.y, &dense(whole.y.view().slice(2, 0..7)), F64, "first half");
        close(&second.y, &dense(whole.y.view().slice(2, 7..20)), F64, "second half");
    }
}

#[test]
fn without_decay_it_is_a_cumulative_sum() {
    let case = Case::new(DType::F64, 1, 2, 9, 1, 0);
    let mut inputs = Inputs::new(&case);
    inputs.a.fill_with(|| Complex64::ZERO);
    inputs.c.fill_with(|| Complex64::ONE);
    let y = reference::forward(&inputs.args(&case)).unwrap().y;
    for d in 0..2 {
        let mut sum = 0.0;
        for t in 0..9 {
            let at = |b: &Tensor, i: &[usize]| b.view().at(i).re;
            sum += at(&inputs.dt, &[0, d, t]) * at(&inputs.x, &[0, d, t]) * at(&inputs.b, &[0, 0, t]);
            assert!((y.at(&[0, d, t]).re - sum).abs() < 1e-12);
        }
    }
}

#[test]
fn reversed_is_the_mirror_image() {
    let forwards = Case::new(DType::F64, 2, 3, 11, 2, SKIP);
    let inputs = Inputs::new(&forwards);
    let args = inputs.args(&forwards);
    let mirrored = args.x(args.x.flip(2)).dt(args.dt.flip(2)).b(args.b.flip(2)).c(args.c.flip(2)).reverse(true);
    let (a, b) = (reference::forward(&args).unwrap(), reference::forward(&mirrored).unwrap());
    close(&dense(b.y.view().flip(2)), &a.y, F64, "y");
    close(&b.final_state, &a.final_state, F64, "final state");
}

#[test]
fn with_fixed_maps_the_reversed_scan_is_the_adjoint() {
    // y = S x is linear in x; with the roles of B and C exchanged, dt folded into x, and time reversed one step later it is S^T
    let case = Case { discretization: Discretization::Dirac, ..Case::new(DType::F64, 1, 2, 10, 3, 0) };
    let mut inputs = Inputs::new(&case);
    // a constant step makes the decay between two steps symmetric
    inputs.dt.fill_with(|| 0.3.into());
    let args = inputs.args(&case);
    let transposed = args.b(args.c).c(args.b).reverse(true);
    let y = reference::forward(&args).unwrap().y;
    let adjoint = reference::forward(&transposed.x(inputs.dy.view())).unwrap().y;
    let dot = |a: &Dense, b: &Dense| a.data().iter().zip(b.data()).map(|(a, b)| a.re * b.re).sum::<f64>();
    let (left, right) = (dot(&y, &inputs.dy.to_dense()), dot(&inputs.x.to_dense(), &adjoint));
    assert!((left - right).abs() < 1e-12 * left.abs().max(1.0), "{left} {right}");
}

#[test]
fn every_gradient_agrees_with_central_differences() {
    let all = SKIP | GATE | BIAS | SOFTPLUS | INITIAL;
    for (complex, discretization, options) in [
        (false, Discretization::Mamba, all),
        (true, Discretization::Mamba, all | REVERSE),
        (false, Discretization::Zoh, all | OWN_DECAY_STEP),
        (true, Discretization::Zoh, all),
        (true, Discretization::Bilinear, all | OWN_DECAY_STEP),
        (false, Discretization::Dirac, all | INDEX | INDEX_STATES),
        (false, Discretization::Mamba, (all | BOUNDS | LIMIT) & !SOFTPLUS),
    ] {
        let case = Case { complex, discretization, ..Case::new(DType::F64, 2, 2, 7, 2, options) };
        let inputs = Inputs::new(&case);
        let args = inputs.args(&case);
        let cotangents = inputs.cotangents();
        let (dy, dlast) = (inputs.dy.to_dense(), inputs.dstate.to_dense());
        let loss = |args: &Args<'_>| {
            let out = reference::forward_with_state_shape(args, &case.state_shape()).unwrap();
            let dot = |a: &Dense, b: &Dense| a.data().iter().zip(b.data()).map(|(a, b)| (a.conj() * b).re).sum::<f64>();
            dot(&out.y, &dy) + dot(&out.final_state, &dlast)
        };
        let grads = reference::backward(&args, &cotangents).unwrap();
        let bound = ErrorBound { absolute: 2e-8, relative: 2e-8 };
        let test = |name: &str, at: View<'_>, got: &Dense, with: &dyn Fn(View<'_>) -> f64| {
            let expected = central_differences(&dense(at), 1e-5, at.dtype().is_complex(), with);
            close(got, &expected, bound, &format!("{name} of {case:?}"));
        };
        test("x", args.x, &grads.x, &|v| loss(&args.x(v)));
        test("dt", args.dt, &grads.dt, &|v| loss(&args.dt(v)));
        test("a", args.a, &grads.a, &|v| loss(&args.a(v)));
        test("b", args.b, &grads.b, &|v| loss(&args.b(v)));
        test("c", args.c, &grads.c, &|v| loss(&args.c(v)));
        let some = |name: &str, at: Option<View<'_>>, got: &Option<Dense>, with: &dyn Fn(View<'_>) -> f64| {
            if let (Some(at), Some(got)) = (at, got) {
                test(name, at, got, with);
            }
        };
        some("d", args.d, &grads.d, &|v| loss(&args.d(v)));
        some("z", args.z, &grads.z, &|v| loss(&args.z(v)));
        some("dt_bias", args.dt_bias, &grads.dt_bias, &|v| loss(&args.dt_bias(v)));
        some("dt_a", args.dt_a, &grads.dt_a, &|v| loss(&args.dt_a(v)));
        let state = &Some(grads.initial_state.clone());
        some("state", args.initial_state, state, &|v| loss(&args.initial_state(v)));
    }
}
