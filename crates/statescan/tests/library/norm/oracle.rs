//! The oracle against central differences, identities and numbers worked out by hand.

use super::*;
use crate::common::central_differences;

#[test]
fn the_oracle_agrees_with_central_differences() {
    for kind in [Kind::Rms, Kind::Layer] {
        for gate in GATES {
            let case = Case { kind, gate, groups: 2, ..Case::new(DType::F64, &[2, 3], 10) };
            let inputs = Inputs::new(&case);
            let args = inputs.args(&case);
            let by = reference::backward(&args, &inputs.cotangents()).unwrap();
            let loss = |args: &Args<'_>| {
                let out = reference::forward(args).unwrap();
                let dot =
                    |a: &Dense, b: &Tensor| -> f64 { a.data().iter().zip(b.to_dense().data()).map(|(a, b)| a.re * b.re).sum() };
                dot(&out.y, &inputs.dy) + dot(&out.sum, &inputs.dsum)
            };
            let close = |name: &str, got: &Dense, expected: Dense| {
                let bound = ErrorBound { absolute: 1e-8, relative: 1e-7 };
                let (error, _, within) = statescan::tensor::max_errors(got.data(), expected.data(), bound);
                assert!(within, "{name} {kind:?} {gate:?}: {error:e}");
            };
            let at = |b: &Tensor, f: &mut dyn FnMut(View<'_>) -> f64| central_differences(&b.to_dense(), 1e-5, false, f);
            close("x", &by.x, at(&inputs.x, &mut |x| loss(&args.x(x))));
            close("residual", &by.x, at(&inputs.residual, &mut |residual| loss(&args.residual(residual))));
            close("weight", &by.weight, at(&inputs.weight, &mut |weight| loss(&args.weight(weight))));
            close("bias", &by.bias, at(&inputs.bias, &mut |bias| loss(&args.bias(bias))));
            if gate != Gate::None {
                close("z", &by.z, at(&inputs.z, &mut |z| loss(&args.z(z))));
            }
        }
    }
}

#[test]
fn the_oracle_keeps_the_identities() {
    let case = Case {
        kind: Kind::Layer,
        weight: false,
        bias: false,
        residual: false,
        gate: Gate::None,
        ..Case::new(DType::F64, &[7], 24)
    };
    let inputs = Inputs::new(&case);
    let args = inputs.args(&case).eps(0.0);
    let y = reference::forward(&args).unwrap().y;
    for row in 0..7 {
        let values: Vec<f64> = (0..24).map(|channel| y.at(&[row, channel]).re).collect();
        let mean = values.iter().sum::<f64>() / 24.0;
        let square = values.iter().map(|v| v * v).sum::<f64>() / 24.0;
        assert!(mean.abs() < 1e-14 && (square - 1.0).abs() < 1e-14, "{mean} {square}");
    }
    // rows that are already centred have the same norm of either kind
    let again = reference::forward(&args.x(y.real_view()).kind(Kind::Rms)).unwrap().y;
    let (error, _, _) = statescan::tensor::max_errors(again.data(), y.data(), ErrorBound { absolute: 0.0, relative: 0.0 });
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
