//! The oracle: plain loops in `f64`.

use crate::tensor::{Dense, View};

/// The gradients by `x`, `weight` and the bias.
///
/// # Panics
/// If shapes do not fit together, or a view is not on the CPU.
pub fn backward(x: &View<'_>, weight: &View<'_>, dy: &View<'_>) -> [Dense; 3] {
    let (rows, inputs, outputs) = (x.shape()[0], x.shape()[1], weight.shape()[0]);
    let (mut dx, mut dw, mut db) = (vec![0.0; rows * inputs], vec![0.0; outputs * inputs], vec![0.0; outputs]);
    for r in 0..rows {
        for o in 0..outputs {
            let dy = dy.at(&[r, o]).re;
            db[o] += dy;
            for k in 0..inputs {
                dx[r * inputs + k] += dy * weight.at(&[o, k]).re;
                dw[o * inputs + k] += dy * x.at(&[r, k]).re;
            }
        }
    }
    let dense = |data: Vec<f64>, shape: &[usize]| Dense::from_slice(&data, shape).expect("as many elements as the shape has");
    [dense(dx, &[rows, inputs]), dense(dw, &[outputs, inputs]), dense(db, &[outputs])]
}

/// `x W^T + bias`, shape (R, O).
///
/// # Panics
/// If shapes do not fit together, or a view is not on the CPU.
pub fn forward(x: &View<'_>, weight: &View<'_>, bias: Option<&View<'_>>) -> Dense {
    let (rows, inputs, outputs) = (x.shape()[0], x.shape()[1], weight.shape()[0]);
    let mut y = Vec::with_capacity(rows * outputs);
    for r in 0..rows {
        for o in 0..outputs {
            let products = (0..inputs).map(|k| x.at(&[r, k]).re * weight.at(&[o, k]).re);
            y.push(products.sum::<f64>() + bias.map_or(0.0, |bias| bias.at(&[o]).re));
        }
    }
    Dense::from_slice(&y, &[rows, outputs]).expect("as many elements as the shape has")
}
