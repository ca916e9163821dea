//! The simplified scan against vectors of other people's reference functions.

use crate::common::vectors::Case;
use statescan::ops::simplified_scan::{Args, Cotangents, Gradients, Outputs, backward, forward, reference};
use statescan::tensor::Dense;
use statescan::{DType, Discretization, Exec, Tensor, View, ViewMut};

/// A tensor with a trailing axis of (re, im) as a complex one.
fn complex(view: View<'_>) -> View<'_> {
    let rank = view.rank() - 1;
    let strides: Vec<isize> = view.strides()[..rank].iter().map(|s| s / 2).collect();
    // SAFETY: dense f32 pairs are complex numbers, in memory that is borrowed for as long as the view.
    unsafe { View::from_raw_parts(view.as_ptr(), DType::Complex64, view.device(), &view.shape()[..rank], &strides) }.unwrap()
}

fn complex_mut<'a>(view: &'a mut ViewMut<'_>) -> ViewMut<'a> {
    let rank = view.shape().len() - 1;
    let strides: Vec<isize> = view.as_view().strides()[..rank].iter().map(|s| s / 2).collect();
    let (ptr, device, shape) = (view.as_mut_ptr(), view.as_view().device(), view.shape());
    // SAFETY: as above, and the borrow is exclusive.
    unsafe { ViewMut::from_raw_parts(ptr, DType::Complex64, device, &shape[..rank], &strides) }.unwrap()
}

/// A complex result with its parts on a trailing axis.
fn pairs(dense: &Dense) -> Dense {
    let shape: Vec<usize> = dense.shape().iter().copied().chain([2]).collect();
    let values: Vec<f64> = dense.data().iter().flat_map(|z| [z.re, z.im]).collect();
    Dense::from_slice(&values, &shape).unwrap()
}

fn check(name: &str, discretization: Discretization, inner: Option<bool>) {
    let Some(case) = Case::read(name) else { return };
    let [u, a, b, c] = ["in.u", "in.A", "in.B", "in.C"].map(|key| case.need(key));
    let delta = case.need("in.delta");
    let (d, delta_a) = (case.tensor("in.D"), case.tensor("in.deltaA"));
    let [u, a, b, c] = [&u, &a, &b, &c].map(|v| complex(v.view()));
    let args = Args::new(u, delta.view(), a, b, c)
        .delta_a(delta_a.as_ref().map(|v| v.view()))
        .discretization(discretization)
        .d(d.as_ref().map(|v| v.view()))
        .conj_sym(inner.unwrap_or(true));
    let (by_y, by_last) = (case.need("cot.y"), case.tensor("cot.last_state"));
    let cotangents = Cotangents::default()
        .y(if inner.is_some() { by_y.view() } else { complex(by_y.view()) })
        .last_state(by_last.as_ref().map(|v| complex(v.view())));

    let exact = reference::forward(&args).unwrap();
    let shown = |dense: &Dense| if inner.is_some() { dense.clone() } else { pairs(dense) };
    case.assert_close("out.y", &shown(&exact.y));
    let grads = reference::backward(&args, &cotangents).unwrap();
    for (key, grad) in [("grad.u", &grads.u), ("grad.A", &grads.a), ("grad.B", &grads.b), ("grad.C", &grads.c)] {
        case.assert_close(key, &pairs(grad));
    }
    case.assert_close("grad.delta", &grads.delta);

    let exec = Exec::cpu(2);
    let like = |key: &str| Tensor::host(DType::F32, &case.need(key).shape()).unwrap();
    let (mut y, mut last) = (like("out.y"), case.tensor("out.last_state"));
    let mut y_view = y.view_mut();
    let mut last_view = last.as_mut().map(|v| v.view_mut());
    let mut out = Outputs::default()
        .y(if inner.is_some() { y_view.reborrow() } else { complex_mut(&mut y_view) })
        .last_state(last_view.as_mut().map(complex_mut));
    forward(&exec, &args, &mut out).unwrap();
    case.assert_close("out.y", &y.to_dense());
    if let Some(last) = &last {
        case.assert_close("out.last_state", &pairs(&exact.last_state));
        case.assert_close("out.last_state", &last.to_dense());
    }
    let [mut du, mut da, mut db, mut dc, mut ddelta] = ["grad.u", "grad.A", "grad.B", "grad.C", "grad.delta"].map(like);
    let [mut vu, mut va, mut vb, mut vc] = [&mut du, &mut da, &mut db, &mut dc].map(|v| v.view_mut());
    let (mut dd, mut ddelta_a) = (d.clone(), delta_a.clone());
    let mut wanted = Gradients::default()
        .u(complex_mut(&mut vu))
        .a(complex_mut(&mut va))
        .b(complex_mut(&mut vb))
        .c(complex_mut(&mut vc))
        .delta(ddelta.view_mut())
        .d(dd.as_mut().map(|v| v.view_mut()))
        .delta_a(ddelta_a.as_mut().map(|v| v.view_mut()));
    backward(&exec, &args, None, &cotangents, &mut wanted).unwrap();
    for (key, grad) in [("grad.u", &du), ("grad.A", &da), ("grad.B", &db), ("grad.C", &dc), ("grad.delta", &ddelta)] {
        case.assert_close(key, &grad.to_dense());
    }
    if let (Some(dd), Some(exact)) = (&dd, &grads.d) {
        case.assert_close("grad.D", exact);
        case.assert_close("grad.D", &dd.to_dense());
    }
    if let (Some(ddelta_a), Some(exact)) = (&ddelta_a, &grads.delta_a) {
        case.assert_close("grad.deltaA", exact);
        case.assert_close("grad.deltaA", &ddelta_a.to_dense());
    }
}

#[test]
fn simplified_scan_agrees() {
    check("s5_bilinear", Discretization::Bilinear, None);
    check("s5_zoh", Discretization::Zoh, None);
    check("s5_dirac", Discretization::Dirac, None);
    check("s5_async_zoh", Discretization::Zoh, None);
}

#[test]
fn s5_inner_agrees() {
    check("s5_inner_bilinear", Discretization::Bilinear, Some(true));
    check("s5_inner_zoh", Discretization::Zoh, Some(true));
    check("s5_inner_dirac", Discretization::Dirac, Some(true));
    check("s5_inner_noconj_real_u", Discretization::Bilinear, Some(false));
}
