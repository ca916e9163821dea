//! Norms, beside what is drawn for every operation: identities, numbers worked out by hand, options that fit no row.

use crate::common::device::{home, on};
use crate::common::{Layout, Rng, cpu_executors, executors, normal};
use statescan::ops::norm::{self, Args, Cotangents, Kind, Outputs, reference};
use statescan::tensor::{ErrorBound, max_errors};
use statescan::{DType, Exec, Tensor, View, ViewMut};

#[test]
fn the_oracle_keeps_the_identities() {
    let x = normal(&mut Rng::new(1), DType::F64, &[7, 24], Layout::Dense, 1.0);
    let args = Args::new(x.view()).kind(Kind::Layer).eps(0.0);
    let y = reference::forward(&args).unwrap().y;
    for row in 0..7 {
        let values: Vec<f64> = (0..24).map(|channel| y.at(&[row, channel]).re).collect();
        let mean = values.iter().sum::<f64>() / 24.0;
        let square = values.iter().map(|v| v * v).sum::<f64>() / 24.0;
        assert!(mean.abs() < 1e-14 && (square - 1.0).abs() < 1e-14, "{mean} {square}");
    }
    // rows that are already centred have the same norm of either kind
    let again = reference::forward(&args.x(y.real_view()).kind(Kind::Rms)).unwrap().y;
    let (error, _, _) = max_errors(again.data(), y.data(), ErrorBound { absolute: 0.0, relative: 0.0 });
    assert!(error < 1e-14, "{error}");
    // groups are rows of their own
    let grouped = reference::forward(&args.groups(4)).unwrap().y;
    let split = reference::forward(&args.x(args.x.split(1, 4))).unwrap().y;
    assert_eq!(grouped.data(), split.data());
}

#[test]
fn numbers_worked_out_by_hand() {
    let (x, weight, residual) = ([1.0f32, 2.0], [2.0f32, -1.0], [2.0f32, 2.0]);
    let args = Args::new(View::new(&x, &[2]).unwrap())
        .weight(View::new(&weight, &[2]).unwrap())
        .residual(View::new(&residual, &[2]).unwrap())
        .eps(0.0);
    // the sum is (3, 4), its mean square 12.5
    let (mut y, mut sum) = ([f32::NAN; 2], [f32::NAN; 2]);
    let mut out = Outputs::default().y(ViewMut::new(&mut y, &[2]).unwrap()).sum(ViewMut::new(&mut sum, &[2]).unwrap());
    for exec in cpu_executors() {
        norm::forward(&exec, &args, &mut out).unwrap();
    }
    assert_eq!(sum, [3.0, 4.0]);
    assert!((y[0] - 6.0 / 12.5f32.sqrt()).abs() < 1e-6 && (y[1] + 4.0 / 12.5f32.sqrt()).abs() < 1e-6, "{y:?}");
}

#[test]
fn a_row_that_is_not_normed_is_its_sum_weighted() {
    let (x, weight, residual, scale) = ([1.0f32, 2.0], [2.0f32, -1.0], [2.0f32, 2.0], [0.5f32]);
    let row = |data| View::new(data, &[2]).unwrap();
    let args = Args::new(row(&x)).weight(row(&weight)).residual(row(&residual)).kind(Kind::None);
    let args = args.residual_scale(View::new(&scale, &[1]).unwrap());
    for exec in cpu_executors() {
        let out = norm::run(&exec, &args).unwrap();
        assert_eq!([out.y, out.sum].map(|tensor| tensor.to_vec::<f32>().unwrap()), [vec![4.0, -3.0], vec![2.0, 3.0]]);
        // by the sum (2, -1), then times the scale, and along the residual
        let by = norm::gradients(&exec, &args, &Cotangents::default().y(View::new(&[1.0f32, 1.0], &[2]).unwrap())).unwrap();
        let by = [by.x, by.residual.unwrap(), by.residual_scale.unwrap()].map(|tensor| tensor.to_vec::<f32>().unwrap());
        assert_eq!(by, [vec![2.0, -1.0], vec![1.0, -0.5], vec![2.0]]);
    }
}

#[test]
fn numbers_stay_in_their_row_and_group() {
    for exec in executors() {
        for (kind, bad) in [(Kind::Rms, f64::NAN), (Kind::Layer, f64::INFINITY)] {
            let rng = &mut Rng::new(2);
            let [x, z, dy] = [(); 3].map(|()| normal(rng, DType::F32, &[5, 34], Layout::Dense, 1.0));
            let mut spoilt = x.to_dense();
            *spoilt.at_mut(&[2, 20]) = bad.into();
            let spoilt = Tensor::from_dense(&spoilt, DType::F32);
            let [x, spoilt, z, dy] = [x, spoilt, z, dy].map(|tensor| on(&exec, &tensor));
            let [clean, got] = [&x, &spoilt].map(|x| {
                let args = Args::new(x.view()).z(z.view()).kind(kind).groups(2);
                let y = norm::run(&exec, &args).unwrap().y;
                let by = norm::gradients(&exec, &args, &Cotangents::default().y(dy.view())).unwrap();
                [y, by.x, by.z.unwrap()].map(|tensor| home(&tensor).to_dense())
            });
            for (got, clean) in got.iter().zip(&clean) {
                for (row, channel) in (0..5).flat_map(|row| (0..34).map(move |channel| (row, channel))) {
                    let same = got.at(&[row, channel]) == clean.at(&[row, channel]);
                    assert!(same || (row == 2 && channel >= 17), "{exec:?} {kind:?}: row {row}, channel {channel}");
                }
            }
            assert!(got[0].at(&[2, 20]).re.is_nan(), "{exec:?} {kind:?}");
        }
    }
}

#[test]
fn options_that_fit_no_row_are_named() {
    let data = [0.5f32; 24];
    let args = Args::new(View::new(&data, &[4, 6]).unwrap());
    for (args, name) in [
        (args.groups(0), "groups"),
        (args.groups(4), "groups"),
        (args.eps(-1.0), "eps"),
        (args.eps(f64::NAN), "eps"),
        (args.residual(args.x.index(0, 0)), "residual"),
        (args.residual_scale(args.x.slice(1, 0..1)), "residual"),
        (args.residual(args.x).residual_scale(args.x.slice(1, 0..1)).groups(2), "groups"),
    ] {
        let error = norm::forward(&Exec::cpu(1), &args, &mut Outputs::default()).unwrap_err();
        assert!(error.to_string().starts_with(&format!("norm: `{name}`")), "{error}");
    }
}
