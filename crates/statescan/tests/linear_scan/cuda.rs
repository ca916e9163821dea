//! The CUDA kernels against the oracle, by the same body as the CPU's. Without a GPU each test says so and passes.

use super::common::device::gpu;
use super::*;

fn check_twice(case: &Case, exec: &Exec, layout: Layout) {
    case.check(exec, &mut Rng::new(7), layout);
    let run = || {
        let rng = &mut Rng::new(8);
        (case.forward(exec, rng, layout), case.backward(exec, rng, layout, None))
    };
    let (first, second) = (run(), run());
    for (a, b) in first.0.iter().zip(&second.0).chain(first.1.iter().zip(&second.1)) {
        assert!(a.bytes() == b.bytes(), "two runs differ on {exec:?}");
    }
}

fn single() -> impl Iterator<Item = (DType, DType)> {
    TYPES.into_iter().filter(|(a, b)| !a.is_double() && !b.is_double())
}

fn shapes(shapes: &[&[usize]]) {
    let Some(exec) = gpu() else { return };
    let mut rng = Rng::new(1);
    for (i, shape) in shapes.iter().enumerate() {
        for (j, (a, b)) in single().enumerate() {
            let layout = if (i + j) % 2 == 0 { Layout::Dense } else { Layout::Scattered };
            check_twice(&Case::new(&mut rng, shape, a, b, layout, (i + j) % 3 > 0, j % 2 == 1), &exec, layout);
        }
    }
}

// a test each, so that kernels are compiled side by side
#[test]
fn cuda_small_shapes() {
    shapes(&[&[1], &[65], &[3, 0], &[0, 5], &[5, 64]]);
}
#[test]
fn cuda_shapes_of_many_axes() {
    shapes(&[&[17, 63], &[2, 31, 130], &[3, 1, 16, 7], &[2, 3, 1, 5, 67], &[33, 1]]);
}
#[test]
fn cuda_long_rows() {
    shapes(&[&[2, 5000], &[300, 1100]]);
}

#[test]
fn cuda_channels_side_by_side() {
    let Some(exec) = gpu() else { return };
    let mut rng = Rng::new(2);
    for (dim, length) in [(520, 70), (2100, 65), (3, 4000)] {
        for (a, b) in single() {
            let mut case = Case::new(&mut rng, &[dim, length], a, b, Layout::Dense, true, length == 70);
            for tensor in [&mut case.a, &mut case.b, &mut case.by_h] {
                let values = tensor.to_dense();
                *tensor = Tensor::strided(tensor.dtype(), &[dim, length], &[1, dim as isize], 0, dim * length).unwrap();
                tensor.copy_from(&values);
            }
            check_twice(&case, &exec, Layout::Dense);
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
    let [h, ..] = case.forward(&exec, &mut rng, Layout::Dense);
    let (h, expected) = (h.to_dense(), reference::forward(&case.args()).unwrap().h);
    for (i, (got, expected)) in h.data().iter().zip(expected.data()).enumerate() {
        assert_eq!(got.re.is_nan(), expected.re.is_nan(), "step {i}");
        assert!(got.re.is_nan() || (got - expected).norm() < 1e-3, "step {i}: {got} {expected}");
    }
}

#[test]
fn cuda_needs_the_states_or_room_for_them() {
    let Some(exec) = gpu() else { return };
    let case = Case::new(&mut Rng::new(4), &[2, 9], DType::F32, DType::F32, Layout::Dense, false, false);
    let placed = case.all().map(|buffer| buffer.map(|b| Placed::new(&exec, b)));
    let views = placed.each_ref().map(|p| p.as_ref().map(|p| p.view()));
    let mut a = Tensor::host(DType::F32, &[2, 9]).unwrap();
    let mut on_device = PlacedMut::new(&exec, &mut a);
    let grads = &mut Gradients { a: Some(on_device.view_mut()), ..Default::default() };
    let error = backward(&exec, &case.args_of(views), None, &Cotangents::default(), grads);
    assert!(matches!(error, Err(Error::Presence { argument: "h", .. })), "{error:?}");
}
