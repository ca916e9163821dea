//! The oracle against identities and central differences.

use super::*;

#[test]
fn oracle_identities() {
    let close = |a: &Dense, b: &Dense| {
        assert_eq!(a.shape(), b.shape());
        a.data().iter().zip(b.data()).for_each(|(a, b)| assert!((a - b).norm() < 1e-11, "{a} {b}"));
    };
    for method in Discretization::ALL {
        let mut rng = Rng::new(3);
        let setup = Setup { u: DType::Complex128, maps: DType::Complex128, delta: DType::F64, method, ..Setup::new(2, 3, 4, 20) };
        let case = Case::new(&mut rng, setup);
        let args = case.args();
        let whole = reference::forward(&args).unwrap();
        // in two pieces
        let piece = |range: core::ops::Range<usize>, initial_state| {
            args.u(args.u.slice(2, range.clone())).delta(args.delta.slice(2, range)).initial_state(initial_state)
        };
        let first = reference::forward(&piece(0..9, args.initial_state)).unwrap();
        let second = reference::forward(&piece(9..20, Some(first.last_state.view()))).unwrap();
        close(&second.last_state, &whole.last_state);
        close(&Dense::from_view(&whole.y.view().slice(2, 9..20)), &second.y);
        // mirrored
        let flipped = args.u(args.u.flip(2)).delta(args.delta.flip(2)).reverse(true);
        let mirrored = reference::forward(&flipped).unwrap();
        close(&Dense::from_view(&mirrored.y.view().flip(2)), &whole.y);
        // the linear scan of the discretized numbers
        let (mut decay, mut input) = (Dense::zeros(&[2, 4, 20]).unwrap(), Dense::zeros(&[2, 4, 20]).unwrap());
        for (b, n, t) in (0..2).flat_map(|b| (0..4).flat_map(move |n| (0..20).map(move |t| (b, n, t)))) {
            let (d, a) = (args.delta.at(&[b, n, t]).re, case.a.to_dense().data()[n]);
            *decay.at_mut(&[b, n, t]) = method.decay(a * d).0;
            let driven: Complex64 = (0..3).map(|h| args.b.at(&[n, h]) * args.u.at(&[b, h, t])).sum();
            *input.at_mut(&[b, n, t]) = method.input(d, a, driven);
        }
        use statescan::ops::linear_scan;
        let linear = linear_scan::Args::new(decay.view(), input.view()).initial_state(args.initial_state);
        close(&linear_scan::reference::forward(&linear).unwrap().final_state, &whole.last_state);
        // conjugate pairs kept whole: B and A with their conjugates, twice the states
        let inner = args.d(View::new(&[0f64; 3], &[3]).unwrap());
        let complex = reference::forward(&args).unwrap();
        let real = reference::forward(&inner).unwrap();
        complex.y.data().iter().zip(real.y.data()).for_each(|(c, r)| assert!((2.0 * c.re - r.re).abs() < 1e-12));
    }
}

#[test]
fn oracle_gradients_are_central_differences() {
    for (seed, method) in Discretization::ALL.into_iter().enumerate() {
        let mut rng = Rng::new(seed as u64);
        let real_u = seed % 2 == 1;
        let setup = Setup {
            u: if real_u { DType::F64 } else { DType::Complex128 },
            maps: DType::Complex128,
            delta: DType::F64,
            constant: seed == 2,
            delta_a: [None, Some(false), Some(true), None][seed],
            conj_sym: if seed > 1 { Some(seed == 2) } else { None },
            reverse: seed == 3,
            method,
            ..Setup::new(2, 2, 3, 5)
        };
        let case = Case::new(&mut rng, setup);
        let (by_y, by_last) = (case.by_y.to_dense(), case.by_last.to_dense());
        let loss = |args: Args<'_>| {
            let out = reference::forward(&args).unwrap();
            let dot = |a: &Dense, b: &Dense| a.data().iter().zip(b.data()).map(|(a, b)| (a.conj() * b).re).sum::<f64>();
            dot(&by_y, &out.y) + dot(&by_last, &out.last_state)
        };
        let args = case.args();
        let grads = reference::backward(&args, &case.cotangents()).unwrap();
        let check = |name: &str, grad: &Dense, at: &Dense, complex: bool, with: &dyn Fn(View<'_>) -> f64| {
            let differences = central_differences(at, 1e-5, complex, with);
            for (a, b) in grad.data().iter().zip(differences.data()) {
                assert!((a - b).norm() < 1e-6 * (1.0 + b.norm()), "{method} {name}: {a} {b}");
            }
        };
        check("u", &grads.u, &case.u.to_dense(), !real_u, &|u| loss(args.u(u)));
        check("delta", &grads.delta, &case.delta.to_dense(), false, &|delta| loss(args.delta(delta)));
        check("a", &grads.a, &case.a.to_dense(), true, &|a| loss(args.a(a)));
        check("b", &grads.b, &case.b.to_dense(), true, &|b| loss(args.b(b)));
        check("c", &grads.c, &case.c.to_dense(), true, &|c| loss(args.c(c)));
        let initial = case.initial.as_ref().unwrap().to_dense();
        check("initial", &grads.initial_state, &initial, true, &|s| loss(args.initial_state(s)));
        if let (Some(delta_a), Some(grad)) = (&case.delta_a, &grads.delta_a) {
            check("delta_a", grad, &delta_a.to_dense(), false, &|v| loss(args.delta_a(v)));
        }
        if let (Some(d), Some(grad)) = (&case.d, &grads.d) {
            check("d", grad, &d.to_dense(), false, &|v| loss(args.d(v)));
        }
    }
}
