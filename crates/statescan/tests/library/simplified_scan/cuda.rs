//! What concerns the CUDA kernels alone: tiles of products, tiles of steps, and rows that are cut. Without a GPU each test says so and passes.

use super::*;
use crate::common::device::{gpu, on_gpu, on_routes};
use statescan::tensor::max_errors;

fn check(setup: &Setup, execs: &[Exec]) {
    let rng = &mut Rng::new(setup.seqlen as u64);
    Case::new(rng, setup.clone()).check(execs, rng);
}

/// Channels, states and steps around the sizes of tiles.
#[test]
fn cuda_sizes_around_tiles() {
    let sizes = [
        [2, 64, 64, 128],
        [1, 63, 65, 127],
        [1, 65, 63, 129],
        [2, 16, 130, 255],
        [1, 130, 17, 257],
        [1, 1, 64, 16],
        [3, 64, 1, 17],
        [1, 15, 15, 1],
        // whole units of 16 bytes along time
        [3, 200, 130, 516],
        [1, 130, 66, 130],
        [2, 17, 193, 36],
    ];
    for (u, conj_sym) in [(DType::Complex64, None), (DType::F32, Some(true)), (DType::BF16, Some(false))] {
        on_gpu(sizes.map(|[b, h, p, l]| Setup { u, conj_sym, ..Setup::new(b, h, p, l) }), check);
    }
}

/// Long rows of few states, which are cut into segments.
#[test]
fn cuda_segments() {
    let methods = Discretization::ALL.into_iter().cycle();
    let packed = [Packed::No, Packed::Bounds, Packed::Index, Packed::Numbered];
    for ((i, packed), method) in packed.into_iter().chain(packed).enumerate().zip(methods) {
        let batch = if packed == Packed::Bounds { 1 } else { 2 };
        let setup = Setup {
            packed,
            method,
            reverse: i >= 4,
            constant: i % 3 == 1,
            delta_a: [None, Some(false), Some(true)][i % 3],
            initial: i != 3,
            ..Setup::new(batch, 5, 3, 2000 + 77 * i)
        };
        on_gpu([setup], check);
    }
}

/// Products by the kernels of other devices than Hopper, and rows in one pass and in segments.
#[test]
fn cuda_routes_of_other_devices() {
    on_routes(
        [DType::F32, DType::F16].map(|u| Setup { u, conj_sym: Some(true), initial: true, ..Setup::new(2, 96, 80, 516) }),
        check,
    );
}

/// Each option of a model's layer, at sizes that have more than one tile of everything.
#[test]
fn cuda_layers() {
    for u in [DType::F32, DType::BF16, DType::F16, DType::Complex64] {
        for layout in [Layout::Dense, Layout::Scattered] {
            let setup = Setup { u, layout, conj_sym: Some(true), ..Setup::new(2, 96, 80, 300) };
            on_gpu([setup], check);
        }
    }
}

/// Gradients that are asked for alone have the bits that they have beside the others.
#[test]
fn cuda_gradients_one_by_one() {
    let Some(exec) = gpu() else { return };
    for setup in [
        Setup { conj_sym: Some(true), delta_a: Some(false), ..Setup::new(2, 10, 7, 300) },
        Setup { constant: true, packed: Packed::Index, ..Setup::new(2, 10, 7, 300) },
    ] {
        let rng = &mut Rng::new(9);
        let case = Case::new(rng, setup);
        let (all, here) = (case.backward(&exec, rng, None), case.on(&exec));
        for (name, expected) in &all {
            let mut scratch = scratch(&exec, rng, backward_workspace_len(&exec, &here.args()));
            let mut one = on(&exec, &poisoned(rng, expected.dtype(), &expected.shape(), Layout::Dense));
            let mut grads = Gradients::default().workspace(scratch.view_mut());
            let place = match *name {
                "u" => &mut grads.u,
                "delta" => &mut grads.delta,
                "a" => &mut grads.a,
                "b" => &mut grads.b,
                "c" => &mut grads.c,
                "d" => &mut grads.d,
                "delta_a" => &mut grads.delta_a,
                _ => &mut grads.initial_state,
            };
            *place = Some(one.view_mut());
            backward(&exec, &here.args(), None, &here.cotangents(), &mut grads).unwrap();
            assert!(same(&home(&one).to_dense(), &expected.to_dense()), "{name}");
        }
    }
}

fn some(case: &Case, by_y: bool, by_last: bool) -> Cotangents<'_> {
    let Cotangents { y, last_state, .. } = case.cotangents();
    Cotangents::default().y(y.filter(|_| by_y)).last_state(last_state.filter(|_| by_last))
}

/// A cotangent that is not given counts as zero.
#[test]
fn cuda_cotangents_one_by_one() {
    let Some(exec) = gpu() else { return };
    let rng = &mut Rng::new(10);
    let case = Case::new(rng, Setup { conj_sym: Some(false), ..Setup::new(2, 10, 7, 200) });
    let here = case.on(&exec);
    for (by_y, by_last) in [(true, false), (false, true), (false, false)] {
        let expected = reference::backward(&case.args(), &some(&case, by_y, by_last)).unwrap();
        let mut scratch = scratch(&exec, rng, backward_workspace_len(&exec, &here.args()));
        let mut like = |of: &Tensor| on(&exec, &poisoned(rng, of.dtype(), &of.shape(), Layout::Dense));
        let [mut u, mut b, mut c, mut d] = [&case.u, &case.b, &case.c, case.d.as_ref().unwrap()].map(&mut like);
        let mut initial = like(&case.by_last);
        let mut grads = Gradients::default()
            .u(u.view_mut())
            .b(b.view_mut())
            .c(c.view_mut())
            .d(d.view_mut())
            .initial_state(initial.view_mut())
            .workspace(scratch.view_mut());
        backward(&exec, &here.args(), None, &some(&here, by_y, by_last), &mut grads).unwrap();
        let d_expected = expected.d.unwrap();
        for (name, got, expected) in [
            ("u", &u, &expected.u),
            ("b", &b, &expected.b),
            ("c", &c, &expected.c),
            ("d", &d, &d_expected),
            ("initial_state", &initial, &expected.initial_state),
        ] {
            assert_close(name, &home(got), expected, ErrorBound::for_gradient(got.dtype(), case.setup.seqlen));
        }
    }
}

#[test]
fn cuda_results_have_the_same_bits_from_run_to_run() {
    let Some(exec) = gpu() else { return };
    for setup in [Setup::new(2, 70, 40, 700), Setup { packed: Packed::Numbered, ..Setup::new(1, 3, 4, 3000) }] {
        let case = Case::new(&mut Rng::new(11), setup);
        let run = || {
            let rng = &mut Rng::new(12);
            let [y, last, saved] = case.forward(&exec, rng).unwrap();
            let grads = case.backward(&exec, rng, Some(&saved));
            grads.iter().map(|(_, grad)| grad).chain([&y, &last]).map(|t| t.bytes().to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(run(), run());
    }
}

/// Where tf32 is allowed, products lose some bits, fewer than tf32 has less.
#[test]
fn cuda_tf32_is_close() {
    let Some(exec) = gpu() else { return };
    let rng = &mut Rng::new(14);
    let case = Case::new(rng, Setup::new(1, 70, 40, 200));
    let exact = reference::forward(&case.args()).unwrap().y;
    let error = |exec: &Exec| {
        let [y, _, _] = case.forward(exec, &mut Rng::new(15)).unwrap();
        max_errors(y.to_dense().data(), exact.data(), ErrorBound::for_scan(y.dtype(), 200)).1
    };
    let (short, precise) = (error(&exec.clone().with_tf32(true)), error(&exec));
    assert!(short < 1e-4 && precise < 2e-6 && precise < short, "{short} {precise}");
}

#[test]
fn cuda_refuses_what_it_cannot_do() {
    let Some(exec) = gpu() else { return };
    let rng = &mut Rng::new(13);
    let case = Case::new(rng, Setup::new(1, 3, 4, 10)).on(&exec);
    let mut y = on(&exec, &Tensor::host(DType::Complex64, &[1, 3, 10]).unwrap());
    let missing = |result| matches!(result, Err(Error::Presence { op: "simplified_scan", argument: "workspace", .. }));
    assert!(missing(forward(&exec, &case.args(), &mut Outputs::default().y(y.view_mut()))));
    let mut grads = Gradients::default().u(y.view_mut());
    assert!(missing(backward(&exec, &case.args(), None, &case.cotangents(), &mut grads)));
    let double = Setup { u: DType::Complex128, maps: DType::Complex128, ..Setup::new(1, 3, 4, 10) };
    let case = Case::new(rng, double).on(&exec);
    assert!(matches!(workspace_len(&exec, &case.args()), Err(Error::Unavailable { .. })));
    let mut y = on(&exec, &Tensor::host(DType::Complex128, &[1, 3, 10]).unwrap());
    let error = forward(&exec, &case.args(), &mut Outputs::default().y(y.view_mut()));
    assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
}
