//! Kernels of training: compiled for every architecture, and on a GPU against plain loops in `f64`.

use super::super::Products;
use super::super::rows::Rows;
use super::super::tests::{TYPES, check, gpu, random};
use super::*;
use crate::cuda::testing::Suite;
use crate::error::Result;
use crate::tensor::{DType, Tensor, Workspace};

#[test]
fn kernels_of_training_compile() {
    let Some(mut suite) = Suite::new() else { return };
    for dtype in TYPES {
        let own = Rows { address: 1 << 20, dtype, rows: 100, columns: 768, pitch: 768 };
        let wide = Rows { dtype: DType::F32, ..own };
        let rows = [[&wide, &own, &wide], [&own, &own, &own]];
        for (rows, weight, groups, add) in
            [(rows[0], Some([0, 0]), 1, true), (rows[1], Some([0, 0]), 4, false), (rows[1], None, 2, false)]
        {
            suite.add(&norm::NORM, &norm::kernel(rows, weight, groups, 1e-5, add).unwrap().config, 0);
        }
        let times = columns::Times { x: wide, factors: 0, groups: 1 };
        for times in [None, Some(times), Some(columns::Times { x: own, ..times })] {
            suite.add(&columns::COLUMNS, &columns::kernel(&own, times, 0).unwrap().config, 0);
        }
        suite.add(&entropy::ENTROPY, &entropy::kernel(&wide, &own, 0, 0, 1.0).unwrap().config, 0);
        let zeros = Some(Zeros { share: 0.1, seed: 1 });
        for (zeros, types, add) in
            [(zeros, [DType::F32, dtype], false), (zeros, [dtype, DType::F32], true), (None, [DType::F32, dtype], false)]
        {
            suite.add(&dropout::DROPOUT, &dropout::kernel(types, [0, 0], 100, zeros, add).unwrap().config, 0);
        }
        let step = AdamW { rate: 1e-3, weight_decay: 0.1, memory: [0.9, 0.95], eps: 1e-8, taken: 1 };
        for used in [None, Some((0, dtype, Form::Same)), Some((0, DType::F32, Form::Decay))] {
            suite.add(&adamw::ADAMW, &step.kernel([0; 5], used, 100, true).unwrap().config, 0);
        }
    }
    let step = AdamW { rate: 1e-3, weight_decay: 0.1, memory: [0.9, 0.95], eps: 1e-8, taken: 1 };
    suite.add(&adamw::ADAMW, &step.kernel([0; 5], Some((0, DType::F32, Form::Decay)), 100, false).unwrap().config, 0);
    let wide = Rows { address: 1 << 20, dtype: DType::F32, rows: 100, columns: 768, pitch: 768 };
    suite.add(&embedding::EMBEDDING, &embedding::kernel(&wide, &wide, [0; 3], 7).unwrap().config, 0);
    suite.add(&dropout::SCALE, &dropout::scale([0; 2], 100, true).unwrap().config, 0);
    suite.add(&adamw::SQUARES, &adamw::squares(0, 0, 100).config, 0);
    suite.add(&adamw::LENGTH, &adamw::length(0, 0, 7, 1.0).config, 0);
    suite.compile();
}

fn numbers(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.to_host()?.to_dense().data().iter().map(|x| x.re as f32).collect())
}

/// The error of a number that was rounded to a type.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 3e-6,
        DType::F16 => 1e-3,
        _ => 8e-3,
    }
}

#[test]
fn gradients_of_products_are_products_of_transposes() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    let products = Products::new(&exec)?;
    for dtype in TYPES {
        for (rows, inputs, outputs) in [(8, 16, 24), (130, 768, 96), (72, 8, 80)] {
            let (x, on_x) = random(&exec, dtype, &[rows, inputs], 1);
            let (weight, on_weight) = random(&exec, dtype, &[outputs, inputs], 2);
            let (dy, on_dy) = random(&exec, dtype, &[rows, outputs], 3);
            let (first, mut dx) = random(&exec, DType::F32, &[rows, inputs], 4);
            products.multiply(on_dy.view(), on_weight.view().permute(&[1, 0]), None, &mut dx.view_mut(), true)?;
            let of_x = |at: usize| {
                let (row, column) = (at / inputs, at % inputs);
                first[at] + (0..outputs).map(|o| dy[row * outputs + o] * weight[o * inputs + column]).sum::<f64>()
            };
            check(&format!("dx {dtype}"), &numbers(&dx)?, &(0..rows * inputs).map(of_x).collect::<Vec<_>>(), 3e-6);
            let mut dweight = Tensor::empty(&exec, DType::F32, &[outputs, inputs])?;
            let (by_output, by_input) = (on_dy.view().permute(&[1, 0]), on_x.view().permute(&[1, 0]));
            products.multiply(by_output, by_input, None, &mut dweight.view_mut(), false)?;
            let of_weight = |at: usize| {
                let (o, column) = (at / inputs, at % inputs);
                (0..rows).map(|row| dy[row * outputs + o] * x[row * inputs + column]).sum::<f64>()
            };
            check(
                &format!("dweight {dtype}"),
                &numbers(&dweight)?,
                &(0..outputs * inputs).map(of_weight).collect::<Vec<_>>(),
                3e-6,
            );
        }
    }
    Ok(())
}

#[test]
fn norms_have_the_gradients_of_plain_loops() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    let (eps, mut scratch) = (1e-3f32, Workspace::default());
    for (dtype, of_x) in [(DType::F32, DType::F32), (DType::BF16, DType::F32), (DType::F16, DType::F16)] {
        for (rows, columns, groups) in [(1, 8, 1), (70, 96, 4), (333, 768, 1), (5, 2560, 2)] {
            let (x, on_x) = random(&exec, of_x, &[rows, columns], 1);
            let (dy, on_dy) = random(&exec, dtype, &[rows, columns], 2);
            let (weight, on_weight) = random(&exec, DType::F32, &[columns], 3);
            for (weighted, add) in [(true, true), (true, false), (false, false)] {
                let (first, mut dx) = random(&exec, of_x, &[rows, columns], 4);
                let mut dweight = Tensor::empty(&exec, DType::F32, &[columns])?;
                let mut workspace = scratch.view_mut(&exec, rms_norm_backward_workspace_len(rows, columns, groups))?;
                let mut by_weight = dweight.view_mut();
                let weights = weighted.then_some((on_weight.view(), &mut by_weight, &mut workspace));
                rms_norm_backward(&exec, Normed { x: on_x.view(), groups, eps }, weights, on_dy.view(), &mut dx.view_mut(), add)?;
                let (group, mut expected, mut sums) = (columns / groups, Vec::new(), vec![0.0; columns]);
                for (at, (x, dy)) in x.chunks(group).zip(dy.chunks(group)).enumerate() {
                    let r = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / group as f64 + f64::from(eps)).sqrt();
                    let place = at % groups * group;
                    let dn: Vec<f64> =
                        dy.iter().enumerate().map(|(i, dy)| dy * if weighted { weight[place + i] } else { 1.0 }).collect();
                    let mean = dn.iter().zip(x).map(|(d, x)| d * x * r).sum::<f64>() / group as f64;
                    expected.extend(dn.iter().zip(x).map(|(d, x)| r * (d - x * r * mean)));
                    dy.iter().zip(x).enumerate().for_each(|(i, (dy, x))| sums[place + i] += dy * x * r);
                }
                expected.iter_mut().zip(&first).for_each(|(to, first)| *to += if add { *first } else { 0.0 });
                check(&format!("{dtype} {rows} {columns} {groups}"), &numbers(&dx)?, &expected, rounding(of_x));
                if weighted {
                    check("weights", &numbers(&dweight)?, &sums, 3e-6);
                }
            }
            let (mut sums, mut workspace) = (Tensor::empty(&exec, DType::F32, &[columns])?, Workspace::default());
            let room = &mut workspace.view_mut(&exec, column_sums_workspace_len(rows, columns))?;
            column_sums(&exec, on_dy.view(), &mut sums.view_mut(), room)?;
            let expected: Vec<f64> = (0..columns).map(|i| dy.iter().skip(i).step_by(columns).sum()).collect();
            check("columns", &numbers(&sums)?, &expected, 3e-6);
        }
    }
    Ok(())
}

#[test]
fn rows_of_a_table_get_the_sums_of_their_tokens() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    for (rows, columns, vocab) in [(1, 3, 5), (300, 200, 7), (1000, 96, 50)] {
        let tokens: Vec<u32> = (0..rows as u32).map(|i| i.wrapping_mul(2_654_435_761) % (vocab as u32 - 2)).collect();
        let (dy, on_dy) = random(&exec, DType::F32, &[rows, columns], 1);
        let (mut expected, mut table) = random(&exec, DType::F32, &[vocab, columns], 2);
        embedding_backward(&exec, &TokenRows::new(&exec, &tokens)?, on_dy.view(), &mut table.view_mut())?;
        for (&token, dy) in tokens.iter().zip(dy.chunks(columns)) {
            expected[token as usize * columns..][..columns].iter_mut().zip(dy).for_each(|(to, dy)| *to += dy);
        }
        check("table", &numbers(&table)?, &expected, 3e-6);
    }
    Ok(())
}

#[test]
fn cross_entropy_is_that_of_a_plain_loop() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    for dtype in TYPES {
        for (rows, vocab, scale) in [(1, 2, 1.0f32), (40, 256, 0.025), (3, 50280, 0.5)] {
            let (logits, on_logits) = random(&exec, DType::F32, &[rows, vocab], 1);
            let targets: Vec<i32> = (0..rows as i32).map(|i| (i * 7919 + 1) % vocab as i32).collect();
            let on_targets = Tensor::from_slice(&exec, &targets, &[rows])?;
            let mut losses = Tensor::empty(&exec, DType::F32, &[rows])?;
            let mut gradient = Tensor::empty(&exec, dtype, &[rows, vocab])?;
            cross_entropy(&exec, on_logits.view(), on_targets.view(), scale, &mut losses.view_mut(), &mut gradient.view_mut())?;
            let (mut expected, mut by_logits) = (Vec::new(), Vec::new());
            for (x, &target) in logits.chunks(vocab).zip(&targets) {
                let sum: f64 = x.iter().map(|x| x.exp()).sum();
                expected.push(sum.ln() - x[target as usize]);
                let one = |i: usize| if i == target as usize { 1.0 } else { 0.0 };
                by_logits.extend(x.iter().enumerate().map(|(i, x)| f64::from(scale) * (x.exp() / sum - one(i))));
            }
            check("losses", &numbers(&losses)?, &expected, 3e-6);
            check("logits", &numbers(&gradient)?, &by_logits, rounding(dtype));
        }
    }
    Ok(())
}

#[test]
fn zeros_are_those_of_the_draws() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    let draw = |seed: u64, at: u64| {
        let z = seed.wrapping_add((at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    for (dtype, count, zeros, add) in [
        (DType::F32, 4099, Some(Zeros { share: 0.3, seed: u64::MAX - 5 }), false),
        (DType::BF16, 1, Some(Zeros { share: 0.5, seed: 3 }), true),
        (DType::F16, 1000, None, true),
        (DType::F32, 4096, Some(Zeros { share: 0.25, seed: 9 }), true),
    ] {
        let (x, on_x) = random(&exec, dtype, &[count], 1);
        let (mut expected, mut y) = random(&exec, DType::F32, &[count], 2);
        dropout(&exec, on_x.view(), zeros, &mut y.view_mut(), add)?;
        for (i, (to, x)) in expected.iter_mut().zip(&x).enumerate() {
            let kept = zeros.map_or(1.0, |Zeros { share, seed }| {
                let bits = draw(seed, i as u64 / 4) >> (16 * (i % 4)) & 0xffff;
                if (bits as f64) < (share * 65536.0).floor() { 0.0 } else { 1.0 / (1.0 - share) }
            });
            *to = x * kept + if add { *to } else { 0.0 };
        }
        check("dropout", &numbers(&y)?, &expected, 3e-7);
        let (times, on_times) = random(&exec, DType::F32, &[count], 3);
        scale_by(&exec, &mut y.view_mut(), on_times.view())?;
        let expected: Vec<f64> = expected.iter().zip(&times).map(|(x, y)| x * y).collect();
        check("scaled", &numbers(&y)?, &expected, 3e-7);
        let half = Tensor::from_slice(&exec, &[0.5f32], &[1])?;
        scale_by(&exec, &mut y.view_mut(), half.view())?;
        check("halved", &numbers(&y)?, &expected.iter().map(|x| x / 2.0).collect::<Vec<_>>(), 3e-7);
    }
    Ok(())
}

#[test]
fn a_step_is_that_of_adamw() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    let counts = [5, 10_000, 3_000_000];
    let gradients: Vec<_> = counts.iter().map(|&count| random(&exec, DType::F32, &[count], count as u64)).collect();
    let length = gradients.iter().flat_map(|(g, _)| g).map(|g| g * g).sum::<f64>().sqrt();
    let mut clipped = ClippedGradient::new(&exec, counts)?;
    for (longest, factor) in [(1.0, 1.0 / length), (2.0 * length, 1.0)] {
        clipped.measure(gradients.iter().map(|(_, on)| on.view()), longest)?;
        let mut got = Tensor::from_slice(&exec, &[1f32], &[1])?;
        scale_by(&exec, &mut got.view_mut(), clipped.factor())?;
        check("factor", &numbers(&got)?, &[factor], 1e-7);
        for (dtype, form) in [(DType::F32, Form::Decay), (DType::BF16, Form::Same)] {
            let step = AdamW { rate: 1e-2, weight_decay: 0.1, memory: [0.9, 0.95], eps: 1e-8, taken: 3 };
            let (g, on_g) = &gradients[1];
            let [(weight, mut on_weight), (first, mut on_first), (second, _)] =
                [1, 2, 3].map(|seed| random(&exec, DType::F32, &[g.len()], seed));
            let second: Vec<f64> = second.iter().map(|x| x.abs()).collect();
            let mut on_second = Tensor::from_slice(&exec, &second.iter().map(|&x| x as f32).collect::<Vec<_>>(), &[g.len()])?;
            let mut used = Tensor::empty(&exec, dtype, &[g.len()])?;
            let mut means = [on_first.view_mut(), on_second.view_mut()];
            let [by_first, by_second] = &mut means;
            let target = Some((&mut used.view_mut(), form));
            step.apply(&exec, &mut on_weight.view_mut(), (on_g.view(), clipped.factor()), [by_first, by_second], target)?;
            let mut expected = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
            for i in 0..g.len() {
                let g = g[i] * factor;
                let (m, v) = (0.9 * first[i] + 0.1 * g, 0.95 * second[i] + 0.05 * g * g);
                let change = 1e-2 * m / (1.0 - 0.9f64.powi(3)) / ((v / (1.0 - 0.95f64.powi(3))).sqrt() + 1e-8);
                let moved = weight[i] * (1.0 - 1e-3) - change;
                let used = if form == Form::Decay { -moved.exp() } else { moved };
                expected.iter_mut().zip([m, v, moved, used]).for_each(|(to, x)| to.push(x));
            }
            let got = [&on_first, &on_second, &on_weight, &used];
            for ((got, expected), bound) in got.into_iter().zip(&expected).zip([1e-6, 1e-6, 1e-6, rounding(dtype)]) {
                check("adamw", &numbers(got)?, expected, bound);
            }
            // the same again, without a step
            let mut copy = Tensor::empty(&exec, dtype, &[g.len()])?;
            AdamW::copy(&exec, on_weight.view(), &mut copy.view_mut(), form)?;
            assert_eq!(numbers(&copy)?, numbers(&used)?);
        }
    }
    Ok(())
}
