//! Results agree with those that other people's implementations computed.

use super::*;
use crate::common::vectors::Case as Vectors;
use statescan::tensor::max_errors;

/// As [`Vectors::assert_close`], for gradients that the origin may not have: its chunked function exponentiates sums above the diagonal too,
/// and where those overflow its gradients by A and dt are NaN. There the results need only be finite; the oracle is compared with elsewhere.
#[track_caller]
fn close_where_finite(file: &Vectors, key: &str, got: &Dense) {
    let mut expected = file.need(key).to_dense();
    let mut missing = 0;
    for (expected, got) in expected.data_mut().iter_mut().zip(got.data()) {
        if expected.re.is_nan() {
            assert!(got.re.is_finite(), "{key}");
            *expected = *got;
            missing += 1;
        }
    }
    assert!(2 * missing <= got.data().len(), "{key}: {missing} elements are missing");
    let (absolute, relative, within) = max_errors(got.data(), expected.data(), ErrorBound { absolute: 1e-4, relative: 1e-3 });
    assert!(within, "{key}: error {absolute:.3e}, relative to the largest {relative:.3e}");
}

fn check_file(name: &str) {
    let Some(file) = Vectors::read(&format!("ssd_{name}")) else { return };
    let [x, dt, a, b, c] = ["x", "dt", "A", "B", "C"].map(|key| file.need(&format!("in.{key}")));
    let [d, z, bias] = ["D", "z", "dt_bias"].map(|key| file.tensor(&format!("in.{key}")));
    let [dy, dlast] = ["y", "final_state"].map(|key| file.tensor(&format!("cot.{key}")));
    let args = Args::new(x.view(), dt.view(), a.view(), b.view(), c.view())
        .d(d.as_ref().map(|v| v.view()))
        .z(z.as_ref().map(|v| v.view()))
        .dt_bias(bias.as_ref().map(|v| v.view()))
        .dt_softplus(name != "basic");
    let cotangents = Cotangents::default().y(dy.as_ref().map(|v| v.view())).final_state(dlast.as_ref().map(|v| v.view()));
    let (forward, backward) = (reference::forward(&args).unwrap(), reference::backward(&args, &cotangents).unwrap());
    let exec = Exec::cpu(2);
    let zeros = |like: &Tensor| Tensor::host(DType::F32, &like.shape()).unwrap();
    let (mut y, mut last) = (zeros(&x), Tensor::host(DType::F32, &ssd::final_state_shape(&args).unwrap()).unwrap());
    let mut out = Outputs::default().y(y.view_mut()).final_state(last.view_mut());
    ssd::forward(&exec, &args, &mut out).unwrap();
    for (key, got, oracle) in [("out.y", &y, &forward.y), ("out.final_state", &last, &forward.final_state)] {
        if file.tensor(key).is_some() {
            file.assert_close(key, oracle);
            file.assert_close(key, &got.to_dense());
        }
    }
    let [mut gx, mut gdt, mut ga, mut gb, mut gc] = [&x, &dt, &a, &b, &c].map(zeros);
    let [mut gd, mut gz, mut gbias] = [&d, &z, &bias].map(|v| v.as_ref().map(zeros));
    let mut grads = Gradients::default()
        .x(gx.view_mut())
        .dt(gdt.view_mut())
        .a(ga.view_mut())
        .b(gb.view_mut())
        .c(gc.view_mut())
        .d(gd.as_mut().map(|v| v.view_mut()))
        .z(gz.as_mut().map(|v| v.view_mut()))
        .dt_bias(gbias.as_mut().map(|v| v.view_mut()));
    ssd::backward(&exec, &args, None, &cotangents, &mut grads).unwrap();
    let results = [
        ("x", Some(&gx)),
        ("dt", Some(&gdt)),
        ("A", Some(&ga)),
        ("B", Some(&gb)),
        ("C", Some(&gc)),
        ("D", gd.as_ref()),
        ("z", gz.as_ref()),
        ("dt_bias", gbias.as_ref()),
    ];
    for (key, got) in results {
        let Some(got) = got else { continue };
        let exact = of(&backward, if key == "dt_bias" { key.to_owned() } else { key.to_lowercase() }.as_str());
        let key = format!("grad.{key}");
        for got in [exact, &got.to_dense()] {
            match name {
                "chunked" => close_where_finite(&file, &key, got),
                _ => file.assert_close(&key, got),
            }
        }
        assert_close(&format!("{name} {key}"), got, exact, ErrorBound::for_gradient(DType::F32, x.shape()[1]));
    }
}

#[test]
fn agree_with_the_origins() {
    for name in ["basic", "chunked", "dhp", "full"] {
        check_file(name);
    }
}
