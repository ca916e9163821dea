//! Products of rows: against the oracle over types, sizes and instruction sets, and the same bits however rows come together.

use crate::common::{self, Layout, Rng, normal};
use half::bf16;
use statescan::tensor::ErrorBound;
use statescan::{DType, Error, Exec, Level, Tensor, View, ViewMut, linear};

/// Every way of taking products: instruction sets, and tiles of bf16 where the processor has them.
fn executors() -> impl Iterator<Item = Exec> {
    let levels = Level::available().map(|level| Exec::cpu(1).with_level(level).unwrap().with_exact_products(true));
    let tiles = Exec::cpu(1);
    let has_tiles = linear::rounds_rows(&tiles, DType::BF16);
    if !has_tiles {
        eprintln!("products of bf16 in tiles are skipped: this processor has none");
    }
    levels.chain(has_tiles.then_some(tiles))
}

/// Rows as a product takes them.
fn rounded(exec: &Exec, x: &Tensor, weights: DType) -> Tensor {
    let mut numbers = x.to_vec::<f32>().unwrap();
    if linear::rounds_rows(exec, weights) {
        numbers.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
    }
    Tensor::from_slice(exec, &numbers, &x.shape()).unwrap()
}

fn product(exec: &Exec, x: View<'_>, weight: &Tensor, bias: Option<View<'_>>) -> Vec<f32> {
    let shape = [x.shape()[0], weight.shape()[0]];
    let mut y = vec![f32::NAN; shape[0] * shape[1]];
    linear::forward(exec, x, weight.view(), bias, ViewMut::new(&mut y, &shape).unwrap()).unwrap();
    y
}

#[test]
fn products_agree_with_the_oracle() {
    let mut rng = Rng::new(1);
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let sizes = [(1, 1, 1), (0, 5, 4), (3, 0, 4), (2, 5, 0), (1, 48, 35), (13, 17, 9), (100, 67, 131), (7, 300, 64)];
        for (rows, inputs, outputs) in sizes.into_iter().chain([(33, 64, 80), (130, 32, 33), (600, 31, 16)]) {
            let x = normal(&mut rng, DType::F32, &[rows, inputs], Layout::Dense, 1.0);
            let weight = normal(&mut rng, dtype, &[outputs, inputs], Layout::Dense, 1.0);
            let bias = normal(&mut rng, dtype, &[outputs], Layout::Scattered, 1.0);
            for bias in [None, Some(bias.view())] {
                for exec in executors() {
                    let x = rounded(&exec, &x, dtype);
                    let expected = linear::reference::forward(&x.view(), &weight.view(), bias.as_ref());
                    let y = product(&exec, x.view(), &weight, bias);
                    let got = Tensor::from_slice(&exec, &y, &[rows, outputs]).unwrap();
                    let bound = ErrorBound::for_scan(DType::F32, inputs);
                    common::assert_close(&format!("{exec:?} {dtype}"), &got, &expected, bound);
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_whatever_is_beside_it() {
    let mut rng = Rng::new(2);
    let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for (rows, inputs, outputs) in [(110, 83, 70), (530, 64, 96)] {
            let x = normal(&mut rng, DType::F32, &[rows, inputs], Layout::Dense, 1.0);
            let weight = normal(&mut rng, dtype, &[outputs, inputs], Layout::Dense, 1.0);
            for alone in executors() {
                let several = Exec::cpu(3).with_level(alone.level()).unwrap();
                let several = several.with_exact_products(!linear::rounds_rows(&alone, DType::BF16));
                let whole = product(&several, x.view(), &weight, None);
                for part in [0..1, 5..6, rows - 1..rows, 0..97, 3..10, 14..18, 96..rows] {
                    let y = product(&alone, x.view().slice(0, part.clone()), &weight, None);
                    let of_whole = &whole[part.start * outputs..part.end * outputs];
                    assert_eq!(bits(&y), bits(of_whole), "{alone:?} {dtype} {part:?}");
                }
            }
        }
    }
}

#[test]
fn products_are_exact_where_that_is_asked_for() {
    let (x, exec) = ([1.0f32 + 1.0 / 1024.0], Exec::cpu(1));
    let weight = Tensor::from_slice(&exec, &[bf16::ONE], &[1, 1]).unwrap();
    let one = |exec: &Exec| product(exec, View::new(&x, &[1, 1]).unwrap(), &weight, None)[0];
    assert_eq!(one(&exec.clone().with_exact_products(true)), x[0]);
    assert_eq!(one(&exec), if linear::rounds_rows(&exec, DType::BF16) { 1.0 } else { x[0] });
}

#[test]
fn gradients_agree_with_the_oracle_and_do_not_depend_on_threads() {
    let mut rng = Rng::new(3);
    for (rows, inputs, outputs) in [(1, 1, 1), (0, 5, 4), (3, 0, 4), (2, 5, 0), (13, 17, 9), (150, 67, 131)] {
        let [x, weight, dy] = [[rows, inputs], [outputs, inputs], [rows, outputs]]
            .map(|shape| normal(&mut rng, DType::F32, &shape, Layout::Dense, 1.0));
        let expected = linear::reference::backward(&x.view(), &weight.view(), &dy.view());
        let gradients = |exec: &Exec| {
            let mut grads = [&[rows, inputs][..], &[outputs, inputs], &[outputs]]
                .map(|shape| common::poisoned(&mut Rng::new(4), DType::F32, shape, Layout::Dense));
            let [dx, dw, db] = &mut grads;
            let mut into = linear::Gradients::default().x(dx.view_mut()).weight(dw.view_mut()).bias(db.view_mut());
            linear::backward(exec, x.view(), weight.view(), dy.view(), &mut into).unwrap();
            grads
        };
        let grads = [1, 3].map(|threads| gradients(&Exec::cpu(threads)));
        for (i, name) in ["dx", "dweight", "dbias"].into_iter().enumerate() {
            let bound = ErrorBound::for_gradient(DType::F32, rows.max(outputs));
            common::assert_close(name, &grads[0][i], &expected[i], bound);
            assert_eq!(grads[0][i].bytes(), grads[1][i].bytes(), "{name}");
        }
    }
}

#[test]
fn a_gradient_is_added_where_that_is_asked_for() {
    let (mut rng, exec) = (Rng::new(5), Exec::cpu(1));
    for (rows, inputs, outputs) in [(1, 1, 1), (3, 4, 0), (13, 17, 9), (150, 67, 131)] {
        let [x, weight, dy, before] = [[rows, inputs], [outputs, inputs], [rows, outputs], [rows, inputs]]
            .map(|shape| normal(&mut rng, DType::F32, &shape, Layout::Dense, 1.0));
        let [mut expected, ..] = linear::reference::backward(&x.view(), &weight.view(), &dy.view());
        expected.data_mut().iter_mut().zip(before.to_dense().data()).for_each(|(sum, before)| *sum += before);
        let mut dx = before;
        let mut into = linear::Gradients::default().x(dx.view_mut()).add_to_x(true);
        linear::backward(&exec, x.view(), weight.view(), dy.view(), &mut into).unwrap();
        common::assert_close("dx", &dx, &expected, ErrorBound::for_gradient(DType::F32, rows.max(outputs)));
    }
}

#[test]
fn a_neighbour_that_is_not_a_number_stays_alone() {
    let x = [1.0, 2.0, f32::NAN, 4.0, 5.0, 6.0];
    let weights =
        [Tensor::from_slice(&Exec::cpu(1), &[1f32; 2], &[1, 2]), Tensor::from_slice(&Exec::cpu(1), &[bf16::ONE; 2], &[1, 2])];
    for (exec, weight) in executors().flat_map(|exec| weights.each_ref().map(|weight| (exec.clone(), weight.as_ref().unwrap()))) {
        let y = product(&exec, View::new(&x, &[3, 2]).unwrap(), weight, None);
        assert!(y[0] == 3.0 && y[1].is_nan() && y[2] == 11.0);
    }
}

#[test]
fn rows_may_lie_apart() {
    let x: Vec<f32> = (0..40).map(|i| i as f32).collect();
    let weight = Tensor::from_slice(&Exec::cpu(1), &[1f32, 10.0, 100.0], &[1, 3]).unwrap();
    let mut y = vec![-1f32; 20];
    let rows = View::strided(&x, 2, &[4, 3], &[10, 1]).unwrap();
    let target = ViewMut::strided(&mut y, 1, &[4, 1], &[5, 7]).unwrap();
    linear::forward(&Exec::cpu(1), rows, weight.view(), None, target).unwrap();
    let expected = |row: f32| (row * 10.0 + 2.0) + 10.0 * (row * 10.0 + 3.0) + 100.0 * (row * 10.0 + 4.0);
    for (i, &y) in y.iter().enumerate() {
        assert_eq!(y, if i % 5 == 1 { expected((i / 5) as f32) } else { -1.0 });
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (exec, numbers, double) = (Exec::cpu(1), [0f32; 12], [0f64; 12]);
    let call = |x: View<'_>, weight: View<'_>, bias: Option<View<'_>>, outputs: usize| {
        let mut y = vec![7f32; 2 * outputs];
        let error = linear::forward(&exec, x, weight, bias, ViewMut::new(&mut y, &[2, outputs]).unwrap()).unwrap_err();
        assert!(y.iter().all(|&y| y == 7.0), "nothing is written");
        error
    };
    let view = |shape: &[usize]| View::new(&numbers[..shape.iter().product()], shape).unwrap();
    assert!(matches!(call(view(&[2]), view(&[2, 3]), None, 2), Error::Rank { argument: "x", .. }));
    assert!(matches!(call(view(&[2, 3]), view(&[3]), None, 2), Error::Rank { argument: "weight", .. }));
    assert!(matches!(call(view(&[2, 3]), view(&[2, 4]), None, 2), Error::Shape { argument: "weight", .. }));
    assert!(matches!(call(view(&[2, 3]), view(&[2, 3]), Some(view(&[3])), 2), Error::Shape { argument: "bias", .. }));
    assert!(matches!(call(view(&[2, 3]), view(&[4, 3]), None, 2), Error::Shape { argument: "y", .. }));
    let across = View::strided(&numbers, 0, &[2, 3], &[1, 2]).unwrap();
    assert!(matches!(call(across, view(&[2, 3]), None, 2), Error::Presence { argument: "x", .. }));
    assert!(matches!(call(view(&[2, 3]), across, None, 2), Error::Presence { argument: "weight", .. }));
    let wide = View::new(&double[..6], &[2, 3]).unwrap();
    assert!(matches!(call(wide, view(&[2, 3]), None, 2), Error::DType { argument: "x", .. }));
    assert!(matches!(call(view(&[2, 3]), wide, None, 2), Error::DType { argument: "weight", .. }));
}
