//! One step of the simplified scan: its oracle against the scan, its kernels against the oracle.

use crate::common::device::{home, is_gpu, on, ran};
use crate::common::*;
use num_complex::Complex64;
use proptest::prelude::proptest;
use statescan::ops::simplified_scan;
use statescan::ops::simplified_scan::update::{Args, reference, update};
use statescan::tensor::{Dense, ErrorBound};
use statescan::{DType, Discretization, Error, Exec, Level, Tensor, View, ViewMut};

struct Case {
    state: Tensor,
    u: Tensor,
    delta: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Option<Tensor>,
    delta_a: Option<Tensor>,
    indices: Option<Tensor>,
    conj_sym: Option<bool>,
    method: Discretization,
    layout: Layout,
}

impl Case {
    fn random(rng: &mut Rng, [batch, dim, dstate]: [usize; 3]) -> Self {
        let layout = rng.pick(&[Layout::Dense, Layout::Scattered]);
        let double = rng.below(4) == 0;
        let conj_sym = rng.pick(&[None, Some(true), Some(false)]);
        let indexed = rng.below(2) == 0;
        let states = if indexed { batch + rng.below(3) } else { batch };
        let u = match double {
            true => rng.pick(&[DType::F64, DType::Complex128]),
            false => rng.pick(&[DType::Complex64, DType::F32, DType::BF16]),
        };
        let (complex, real) = if double { (DType::Complex128, DType::F64) } else { (DType::Complex64, DType::F32) };
        let maps = rng.pick(&[complex, complex, real]);
        let step = |rng: &mut Rng| match rng.below(2) {
            0 => uniform(rng, real, &[dstate], layout, 0.01, 0.6),
            _ => uniform(rng, real, &[batch, dstate], layout, 0.01, 0.6),
        };
        let fan = |n: usize| 1.0 / (n.max(1) as f64).sqrt();
        let mut order: Vec<usize> = (0..states).collect();
        for i in (1..states).rev() {
            order.swap(i, rng.below(i + 1));
        }
        let index = rng.pick(&[DType::I32, DType::I64]);
        let rank = 1 + rng.below(2);
        Case {
            state: normal(rng, complex, &[states, dstate], layout, 1.0),
            u: normal(rng, u, &[batch, dim], layout, 1.0),
            delta: step(rng),
            a: random(rng, maps, &[dstate, 1][..rank], layout, |rng| {
                Complex64::new(rng.uniform(-1.5, -0.05), if maps.is_complex() { rng.uniform(-4.0, 4.0) } else { 0.0 })
            }),
            b: normal(rng, maps, &[dstate, dim], layout, fan(dim)),
            c: normal(rng, maps, &[dim, dstate], layout, fan(dstate)),
            d: conj_sym.is_some().then(|| normal(rng, DType::F32, &[dim], layout, 1.0)),
            delta_a: (rng.below(3) == 0).then(|| step(rng)),
            indices: indexed.then(|| {
                let mut next = order.into_iter();
                random(rng, index, &[batch], layout, |rng| {
                    let index = next.next().unwrap() as f64;
                    (if rng.below(4) == 0 { -1.0 - index } else { index }).into()
                })
            }),
            conj_sym,
            method: rng.pick(&Discretization::ALL),
            layout,
        }
    }

    /// The same on an executor's device.
    fn on(&self, exec: &Exec) -> Self {
        let [state, u, delta, a, b, c] = [&self.state, &self.u, &self.delta, &self.a, &self.b, &self.c].map(|t| on(exec, t));
        let [d, delta_a, indices] = [&self.d, &self.delta_a, &self.indices].map(|of| of.as_ref().map(|t| on(exec, t)));
        Case { state, u, delta, a, b, c, d, delta_a, indices, ..*self }
    }

    fn args(&self) -> Args<'_> {
        let [d, delta_a, indices] = [&self.d, &self.delta_a, &self.indices].map(|of| of.as_ref().map(|t| t.view()));
        Args::new(self.u.view(), self.delta.view(), self.a.view(), self.b.view(), self.c.view())
            .delta_a(delta_a)
            .discretization(self.method)
            .d(d)
            .conj_sym(self.conj_sym.unwrap_or(true))
            .state_batch_indices(indices)
    }

    /// y, poisoned before, and the states after the step; nothing where a GPU has no kernel for the case.
    fn update(&self, exec: &Exec, rng: &mut Rng) -> Option<(Tensor, Tensor)> {
        let complex = self.state.dtype();
        let y = if self.conj_sym.is_some() { complex.real() } else { complex };
        let mut y = on(exec, &poisoned(rng, y, &self.u.shape(), self.layout));
        let here = self.on(exec);
        let mut state = here.state.clone();
        let call = update(exec, &here.args(), &mut state.view_mut(), &mut y.view_mut());
        let ran = ran(exec, call, &[&y]);
        let (y, state) = (home(&y), home(&state));
        assert!(ran || state.bytes() == self.state.bytes(), "a state was written by no kernel");
        ran.then_some((y, state))
    }

    /// The kernels of executors against the oracle; on a GPU a second run gives the same bits.
    fn check(&self, execs: &[Exec], rng: &mut Rng) {
        let (by_y, by_state) = reference::update(&self.args(), &self.state.view()).unwrap();
        for exec in execs {
            let name = |what: &str| format!("{what} u {} {} {:?} {exec:?}", self.u.dtype(), self.u.shape(), self.method);
            let Some((y, state)) = self.update(exec, rng) else {
                assert!(self.u.dtype().is_double(), "{}", name("no kernel"));
                continue;
            };
            assert_close(&name("y"), &y, &by_y, ErrorBound::for_scan(y.dtype(), 1));
            assert_close(&name("state"), &state, &by_state, ErrorBound::for_scan(state.dtype(), 1));
            self.check_unused(&state);
            if is_gpu(exec) {
                let [first, second] = [5, 5].map(|seed| self.update(exec, &mut Rng::new(seed)).expect("it ran before"));
                let same = first.0.bytes() == second.0.bytes() && first.1.bytes() == second.1.bytes();
                assert!(same, "{}", name("two runs differ"));
            }
        }
    }

    fn check_unused(&self, state: &Tensor) {
        // states that no row uses keep their bits, and what lies between the elements is not touched
        let used: Vec<i64> = match &self.indices {
            Some(indices) => indices.to_dense().data().iter().map(|v| v.re as i64).collect(),
            None => (0..self.u.shape()[0] as i64).collect(),
        };
        let (before, after) = (self.state.to_dense(), state.to_dense());
        for row in (0..self.state.shape()[0]).filter(|&row| !used.contains(&(row as i64))) {
            for n in 0..self.state.shape()[1] {
                assert_eq!(before.at(&[row, n]), after.at(&[row, n]));
            }
        }
    }
}

#[test]
fn kernel_agrees_with_the_oracle() {
    let (mut rng, execs) = (Rng::new(1), executors());
    for size in [[1, 1, 1], [2, 5, 7], [1, 64, 33], [70, 3, 16], [3, 130, 65], [0, 3, 4], [2, 0, 4], [2, 3, 0]] {
        for _ in 0..12 {
            Case::random(&mut rng, size).check(&execs, &mut rng);
        }
    }
}

proptest! {
    #![proptest_config(random_cases(64, "tests/simplified_state_update.proptest-regressions"))]
    #[test]
    fn any_shape_and_option(seed in 0u64..1 << 40, batch in 0usize..6, dim in 0usize..90, dstate in 0usize..90) {
        let mut rng = Rng::new(seed);
        Case::random(&mut rng, [batch, dim, dstate]).check(&[Exec::cpu(1)], &mut rng);
    }
}

#[test]
fn steps_give_the_scan() {
    let (batch, dim, dstate, seqlen) = (2, 5, 7, 40);
    for (i, method) in Discretization::ALL.into_iter().enumerate() {
        let mut rng = Rng::new(i as u64);
        let dense = Layout::Dense;
        let u = normal(&mut rng, DType::Complex64, &[batch, dim, seqlen], dense, 1.0);
        let delta = uniform(&mut rng, DType::F32, &[batch, dstate, seqlen], dense, 0.01, 0.6);
        let delta_a = uniform(&mut rng, DType::F32, &[dstate], dense, 0.01, 0.6);
        let a = random(&mut rng, DType::Complex64, &[dstate], dense, |rng| {
            Complex64::new(rng.uniform(-1.5, -0.05), rng.uniform(-4.0, 4.0))
        });
        let b = normal(&mut rng, DType::Complex64, &[dstate, dim], dense, 0.4);
        let c = normal(&mut rng, DType::Complex64, &[dim, dstate], dense, 0.4);
        let d = normal(&mut rng, DType::F32, &[dim], dense, 1.0);
        let host = [u, delta, delta_a, a, b, c, d];
        let [u, delta, delta_a, a, b, c, d] = host.each_ref().map(|tensor| tensor.view());
        let real = !i.is_multiple_of(2);
        let scan = simplified_scan::Args::new(u, delta, a, b, c)
            .delta_a((i > 1).then_some(delta_a))
            .discretization(method)
            .d(real.then_some(d));
        let whole = simplified_scan::reference::forward(&scan).unwrap();
        let y_type = if real { DType::F32 } else { DType::Complex64 };
        for exec in executors() {
            let here = host.each_ref().map(|tensor| on(&exec, tensor));
            let [u, delta, delta_a, a, b, c, d] = here.each_ref().map(|tensor| tensor.view());
            let mut state = Tensor::zeros(&exec, DType::Complex64, &[batch, dstate]).unwrap();
            let mut y = on(&exec, &poisoned(&mut rng, y_type, &[batch, dim, seqlen], dense));
            for t in 0..seqlen {
                let args = Args::new(u.index(2, t), delta.index(2, t), a, b, c)
                    .delta_a((i > 1).then_some(delta_a))
                    .discretization(method)
                    .d(real.then_some(d));
                update(&exec, &args, &mut state.view_mut(), &mut y.view_mut().index(2, t)).unwrap();
            }
            assert_close("y", &home(&y), &whole.y, ErrorBound::for_scan(y_type, seqlen));
            let bound = ErrorBound::for_scan(DType::Complex64, seqlen);
            assert_close("state", &home(&state), &whole.last_state, bound);
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads_or_runs_and_nan_stays_in_its_row() {
    let mut rng = Rng::new(3);
    for level in Level::available() {
        let mut case = Case::random(&mut rng, [5, 40, 70]);
        (case.indices, case.layout) = (None, Layout::Dense);
        case.state = normal(&mut rng, DType::Complex64, &[5, 70], Layout::Dense, 1.0);
        case.u = normal(&mut rng, DType::Complex64, &[5, 40], Layout::Dense, 1.0);
        let exec = |threads| Exec::cpu(threads).with_level(level).unwrap();
        let clean = case.update(&exec(1), &mut rng).unwrap();
        for threads in [2, 3, 7, 1] {
            let again = case.update(&exec(threads), &mut rng).unwrap();
            assert!(again.0.bytes() == clean.0.bytes() && again.1.bytes() == clean.1.bytes());
        }
        let mut dirty = case.u.to_dense();
        *dirty.at_mut(&[2, 7]) = Complex64::new(f64::NAN, f64::INFINITY);
        case.u.copy_from(&dirty);
        let spoilt = case.update(&exec(1), &mut rng).unwrap();
        for (clean, spoilt) in [(&clean.0, &spoilt.0), (&clean.1, &spoilt.1)] {
            let per_row = clean.shape()[1];
            for (i, (a, b)) in clean.to_dense().data().iter().zip(spoilt.to_dense().data()).enumerate() {
                assert!(i / per_row == 2 || a == b);
            }
        }
    }
}

#[test]
fn wrong_arguments_are_named_and_nothing_is_written() {
    let exec = Exec::cpu(1);
    let (real, complex) = (vec![0.5f32; 60], vec![num_complex::Complex32::ONE; 60]);
    let indices = [0i32, 1, 7, 1, 0, -5];
    let view = |shape: &[usize]| View::new(&real[..shape.iter().product()], shape).unwrap();
    let cview = |shape: &[usize]| View::new(&complex[..shape.iter().product()], shape).unwrap();
    let good = Args::new(cview(&[2, 3]), view(&[2, 4]), cview(&[4]), cview(&[4, 3]), cview(&[3, 4]));
    let run = |args: Args<'_>, state: &[usize]| {
        let mut y = vec![num_complex::Complex32::I; 6];
        let mut states = vec![num_complex::Complex32::I; state.iter().product()];
        let result =
            update(&exec, &args, &mut ViewMut::new(&mut states, state).unwrap(), &mut ViewMut::new(&mut y, &[2, 3]).unwrap());
        assert!(result.is_ok() || y.iter().chain(&states).all(|v| *v == num_complex::Complex32::I));
        result
    };
    run(good, &[2, 4]).unwrap();
    let fails = |args: Args<'_>| run(args, &[2, 4]).unwrap_err();
    assert!(matches!(fails(good.u(cview(&[2, 3, 1]))), Error::Rank { argument: "u", .. }));
    assert!(matches!(fails(good.delta(view(&[3, 4]))), Error::Shape { argument: "delta", .. }));
    assert!(matches!(fails(good.delta(cview(&[4]))), Error::DType { argument: "delta", .. }));
    assert!(matches!(fails(good.b(cview(&[3, 4]))), Error::Shape { argument: "b", .. }));
    assert!(matches!(fails(good.c(cview(&[4, 3]))), Error::Shape { argument: "c", .. }));
    assert!(matches!(fails(good.a(cview(&[4, 2]))), Error::Shape { argument: "a", .. }));
    assert!(matches!(run(good, &[3, 4]).unwrap_err(), Error::Shape { argument: "state", .. }));
    assert!(matches!(run(good, &[8]).unwrap_err(), Error::Rank { argument: "state", .. }));
    let at = |range: core::ops::Range<usize>| Some(View::new(&indices[range], &[2]).unwrap());
    assert!(matches!(
        fails(good.state_batch_indices(at(1..3))),
        Error::Index { argument: "state_batch_indices", position: 1, got: 7, .. }
    ));
    let twice = [1i64, 1];
    let twice = View::new(&twice, &[2]).unwrap();
    assert!(matches!(fails(good.state_batch_indices(twice)), Error::Index { got: 1, .. }));
    let wrong = good.state_batch_indices(view(&[2]));
    assert!(matches!(fails(wrong), Error::DType { argument: "state_batch_indices", .. }));
    run(good.state_batch_indices(at(4..6)), &[2, 4]).unwrap();
    assert!(matches!(fails(good.d(view(&[3]))), Error::DType { argument: "y", .. }));
}

#[test]
fn a_double_state_is_updated_in_double_precision() {
    let mut rng = Rng::new(7);
    let mut case = Case::random(&mut rng, [2, 3, 4]);
    (case.indices, case.layout) = (None, Layout::Dense);
    case.state = normal(&mut rng, DType::Complex128, &[2, 4], Layout::Dense, 1.0);
    let (_, state) = case.update(&Exec::cpu(1), &mut rng).unwrap();
    let (_, expected): (_, Dense) = reference::update(&case.args(), &case.state.view()).unwrap();
    assert_close("state", &state, &expected, ErrorBound::for_scan(DType::Complex128, 1));
}

#[test]
fn sizes_that_no_memory_has_are_refused() {
    let one = &[0.5f32];
    for ([batch, dim, dstate], states) in [
        ([1, 1, 1 << 62], [1, 1]),
        ([1, 1 << 62, 1], [1, 1]),
        ([1 << 62, 1, 1], [1, 1]),
        ([1, 1 << 31, 1 << 31], [1, 1]),
        ([1, 0, 1 << 62], [1, 0]),
        ([1, 1, 1], [1 << 62, 0]),
    ] {
        let (u, delta) = (broadcast(one, &[batch, dim]), broadcast(one, &[dstate]));
        let args = &Args::new(u, delta, delta, broadcast(one, &[dstate, dim]), broadcast(one, &[dim, dstate]));
        assert_too_large("simplified_state_update", reference::update(args, &broadcast(one, &states)));
        let mut state = vec![num_complex::Complex32::I; states.iter().product()];
        let mut y = [num_complex::Complex32::I];
        let (mut state_view, mut y_view) = (ViewMut::new(&mut state, &states).unwrap(), ViewMut::new(&mut y, &[1, 1]).unwrap());
        assert_too_large("simplified_state_update", update(&Exec::cpu(2), args, &mut state_view, &mut y_view));
        assert!(state.iter().chain(&y).all(|&v| v == num_complex::Complex32::I));
    }
}
