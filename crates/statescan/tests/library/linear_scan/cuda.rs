//! What concerns the CUDA kernels alone. Without a GPU each test says so and passes.

use super::*;
use crate::common::device::gpu;

/// Rows that are cut where there is a workspace.
#[test]
fn cuda_long_rows() {
    let Some(exec) = gpu() else { return };
    let mut rng = Rng::new(1);
    for (i, shape) in [[2, 5000], [300, 1100]].iter().enumerate() {
        for (j, &(a, b)) in TYPES.iter().enumerate() {
            let layout = if (i + j) % 2 == 0 { Layout::Dense } else { Layout::Scattered };
            let case = Case::new(&mut rng, shape, a, b, layout, (i + j) % 3 > 0, j % 2 == 1);
            case.check(std::slice::from_ref(&exec), &mut rng, layout);
        }
    }
}

#[test]
fn cuda_nan_stays_in_its_row_and_zero_stays_zero() {
    let Some(exec) = gpu() else { return };
    let mut rng = Rng::new(3);
    let mut case = Case::new(&mut rng, &[6, 3000], DType::F32, DType::F32, Layout::Dense, false, false);
    let (mut a, mut b) = (case.a.to_dense(), case.b.to_dense());
    *b.at_mut(&[2, 1500]) = f64::NAN.into();
    // the product of these decays is infinite, the state before them zero
    for t in 0..1000 {
        *a.at_mut(&[4, t]) = 3.0.into();
        *b.at_mut(&[4, t]) = 0.0.into();
    }
    case.a.copy_from(&a);
    case.b.copy_from(&b);
    let [h, ..] = case.forward(&exec, &mut rng, Layout::Dense).unwrap();
    let (h, expected) = (h.to_dense(), reference::forward(&case.args()).unwrap().h);
    for (i, (got, expected)) in h.data().iter().zip(expected.data()).enumerate() {
        assert_eq!(got.re.is_nan(), expected.re.is_nan(), "step {i}");
        assert!(got.re.is_nan() || (got - expected).norm() < 1e-3, "step {i}: {got} {expected}");
    }
}

#[test]
fn cuda_needs_the_states_or_room_for_them() {
    let Some(exec) = gpu() else { return };
    let case = Case::new(&mut Rng::new(4), &[2, 9], DType::F32, DType::F32, Layout::Dense, false, false).on(&exec);
    let mut a = Tensor::empty(&exec, DType::F32, &[2, 9]).unwrap();
    let grads = &mut Gradients::default().a(a.view_mut());
    let error = backward(&exec, &case.args(), None, &Cotangents::default(), grads);
    assert!(matches!(error, Err(Error::Presence { argument: "h", .. })), "{error:?}");
}
