//! Kernels of training: compiled for every architecture, and on a GPU against plain loops in `f64`.

use super::super::Products;
use super::super::rows::Rows;
use super::super::tests::{TYPES, check, gpu, numbers, random, rounding};
use super::*;
use statescan::Exec;
use statescan::error::{Error, Result};
use statescan::tensor::{DType, Tensor, Workspace};
use statescan_cuda::testing::Suite;

#[test]
fn kernels_of_training_compile() {
    let Some(mut suite) = Suite::new() else { return };
    for dtype in TYPES {
        let own = Rows { address: 1 << 20, dtype, rows: 100, columns: 768, pitch: 768 };
        let wide = Rows { dtype: DType::F32, ..own };
        suite.add(&columns::COLUMNS, &columns::kernel(&own, 0).unwrap().config, 0);
        let odd = Rows { columns: 767, ..own };
        for (own, divisor) in [(&own, 1.0), (&odd, 1.0), (&own, 8.0)] {
            let wide = Rows { columns: own.columns, ..wide };
            suite.add(&entropy::ENTROPY, &entropy::kernel([&wide, own], [0; 2], [1.0, divisor]).unwrap().config, 0);
        }
        let zeros = Some(Zeros { share: 0.1, seed: 1 });
        for (zeros, types, add) in
            [(zeros, [DType::F32, dtype], false), (zeros, [dtype, DType::F32], true), (None, [DType::F32, dtype], false)]
        {
            suite.add(&dropout::DROPOUT, &dropout::kernel(types, [0, 0], 100, (zeros, 1.0), add).unwrap().config, 0);
        }
    }
    let step = AdamW { rate: 1e-3, weight_decay: 0.1, betas: [0.9, 0.95], eps: 1e-8, taken: 1 };
    for moves in [true, false] {
        suite.add(&adamw::ADAMW, &step.kernel([0; 2], 0, 7, moves).unwrap().config, 0);
    }
    let wide = Rows { address: 1 << 20, dtype: DType::F32, rows: 100, columns: 768, pitch: 768 };
    suite.add(&embedding::EMBEDDING, &embedding::kernel([&wide, &wide], [0; 3], 7, 1.0).unwrap().config, 0);
    suite.add(&dropout::SCALE, &dropout::scale([0; 2], 100, true).unwrap().config, 0);
    suite.add(&adamw::SQUARES, &adamw::squares([0; 2], 0, 7).unwrap().config, 0);
    suite.add(&adamw::LENGTH, &adamw::length(0, 0, 7, 1.0).unwrap().config, 0);
    suite.compile();
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
fn products_are_added_to_others() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    let products = Products::new(&exec)?;
    for dtype in TYPES {
        let (rows, inputs, outputs) = (40, 24, 16);
        let [(x, on_x), (weight, on_weight)] =
            [(rows, 1), (outputs, 2)].map(|(of, seed)| random(&exec, dtype, &[of, inputs], seed));
        let (before, on_before) = random(&exec, DType::F32, &[rows, outputs], 3);
        let (bias, on_bias) = random(&exec, DType::F32, &[outputs], 4);
        let mut y = Tensor::empty(&exec, DType::F32, &[rows, outputs])?;
        let bias_of = Some(on_bias.view());
        products.multiply_add(on_x.view(), on_weight.view(), bias_of, on_before.view(), &mut y.view_mut())?;
        let of = |at: usize| {
            let (row, o) = (at / outputs, at % outputs);
            before[at] + bias[o] + (0..inputs).map(|i| x[row * inputs + i] * weight[o * inputs + i]).sum::<f64>()
        };
        check(&format!("sum {dtype}"), &numbers(&y)?, &(0..rows * outputs).map(of).collect::<Vec<_>>(), 3e-6);
        assert_eq!(numbers(&on_before)?, before.iter().map(|&x| x as f32).collect::<Vec<_>>(), "what is added to stays");
        // and a multiple to what is there
        let (first, mut y) = random(&exec, DType::F32, &[rows, outputs], 5);
        products.add_multiple(on_x.view(), on_weight.view(), bias_of, -0.3, &mut y.view_mut())?;
        let multiple =
            |at: usize| first[at] + bias[at % outputs] - f64::from(0.3f32) * (of(at) - before[at] - bias[at % outputs]);
        check(&format!("multiple {dtype}"), &numbers(&y)?, &(0..rows * outputs).map(multiple).collect::<Vec<_>>(), 3e-6);
        let wide = Tensor::zeros(&exec, DType::F32, &[rows, outputs + 8])?;
        let apart = wide.view().slice(1, 0..outputs);
        let error = products.multiply_add(on_x.view(), on_weight.view(), None, apart, &mut y.view_mut()).unwrap_err();
        assert!(error.to_string().contains("`before`"), "{error}");
    }
    Ok(())
}

#[test]
fn sums_of_columns_are_those_of_a_plain_loop() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    for dtype in TYPES {
        for (rows, columns) in [(1, 8), (70, 96), (333, 768), (5, 2560)] {
            let (y, on_y) = random(&exec, dtype, &[rows, columns], 2);
            let (mut sums, mut workspace) = (Tensor::empty(&exec, DType::F32, &[columns])?, Workspace::default());
            let room = &mut workspace.view_mut(&exec, column_sums_workspace_len(rows, columns))?;
            column_sums(&exec, on_y.view(), &mut sums.view_mut(), room)?;
            let expected: Vec<f64> = (0..columns).map(|i| y.iter().skip(i).step_by(columns).sum()).collect();
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
        // it grows
        let mut order = TokenRows::new(&exec, 1)?;
        order.sort(&tokens)?;
        embedding_backward(&exec, &order, on_dy.view(), 0.5, &mut table.view_mut())?;
        for (&token, dy) in tokens.iter().zip(dy.chunks(columns)) {
            expected[token as usize * columns..][..columns].iter_mut().zip(dy).for_each(|(to, dy)| *to += 0.5 * dy);
        }
        check("table", &numbers(&table)?, &expected, 3e-6);
    }
    Ok(())
}

#[test]
fn cross_entropy_is_that_of_a_plain_loop() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    for dtype in TYPES {
        for (rows, vocab, scale, divisor) in
            [(1, 2, 1.0f32, 1.0f32), (2, 331, 0.5, 8.0), (40, 256, 0.025, 0.25), (3, 50280, 0.5, 1.0)]
        {
            let (logits, on_logits) = random(&exec, DType::F32, &[rows, vocab], 1);
            let targets: Vec<i32> = (0..rows as i32).map(|i| (i * 7919 + 1) % vocab as i32).collect();
            let on_targets = Tensor::from_slice(&exec, &targets, &[rows])?;
            let mut losses = Tensor::empty(&exec, DType::F32, &[rows])?;
            let mut gradient = Tensor::empty(&exec, dtype, &[rows, vocab])?;
            cross_entropy(
                &exec,
                on_logits.view(),
                on_targets.view(),
                [scale, divisor],
                &mut losses.view_mut(),
                &mut gradient.view_mut(),
            )?;
            let (mut expected, mut by_logits) = (Vec::new(), Vec::new());
            for (x, &target) in logits.chunks(vocab).zip(&targets) {
                let x: Vec<f64> = x.iter().map(|x| x / f64::from(divisor)).collect();
                let sum: f64 = x.iter().map(|x| x.exp()).sum();
                expected.push(sum.ln() - x[target as usize]);
                let one = |i: usize| if i == target as usize { 1.0 } else { 0.0 };
                by_logits.extend(x.iter().enumerate().map(|(i, x)| f64::from(scale / divisor) * (x.exp() / sum - one(i))));
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
    for (dtype, count, zeros, factor, add) in [
        (DType::F32, 4099, Some(Zeros { share: 0.3, seed: u64::MAX - 5 }), 1.0, false),
        (DType::BF16, 1, Some(Zeros { share: 0.5, seed: 3 }), 1.0, true),
        (DType::F16, 1000, None, 0.75, true),
        (DType::F32, 4096, Some(Zeros { share: 0.25, seed: 9 }), 0.75, true),
    ] {
        let (x, on_x) = random(&exec, dtype, &[count], 1);
        let (mut expected, mut y) = random(&exec, DType::F32, &[count], 2);
        dropout(&exec, on_x.view(), (zeros, factor), &mut y.view_mut(), add)?;
        for (i, (to, x)) in expected.iter_mut().zip(&x).enumerate() {
            let kept = zeros.map_or(1.0, |Zeros { share, seed }| {
                let bits = draw(seed, i as u64 / 4) >> (16 * (i % 4)) & 0xffff;
                if (bits as f64) < (share * 65536.0).floor() { 0.0 } else { 1.0 / (1.0 - share) }
            });
            *to = x * kept * f64::from(factor) + if add { *to } else { 0.0 };
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

/// A weight, its gradient and both moments, in `f64` and on a device, and what is used in its place.
struct Weight {
    numbers: [Vec<f64>; 4],
    tensors: [Tensor; 4],
    used: Option<(Tensor, Form)>,
    decays: bool,
}

impl Weight {
    fn new(exec: &Exec, count: usize, used: Option<(DType, Form)>, decays: bool) -> Result<Self> {
        let all = [1, 2, 3, 4].map(|seed| random(exec, DType::F32, &[count], seed + count as u64));
        let [(weight, on_weight), (gradient, on_gradient), (first, on_first), (second, _)] = all;
        let second: Vec<f64> = second.iter().map(|x| x.abs()).collect();
        let on_second = Tensor::from_slice(exec, &second.iter().map(|&x| x as f32).collect::<Vec<_>>(), &[count])?;
        let used = used.map(|(dtype, form)| Ok::<_, Error>((Tensor::empty(exec, dtype, &[count])?, form))).transpose()?;
        let tensors = [on_weight, on_gradient, on_first, on_second];
        Ok(Weight { numbers: [weight, gradient, first, second], tensors, used, decays })
    }

    fn params(&mut self) -> Param<'_> {
        let [weight, gradient, first, second] = &mut self.tensors;
        let used = self.used.as_mut().map(|(used, form)| (used.view_mut(), *form));
        let moments = [first.view_mut(), second.view_mut()];
        Param { weight: weight.view_mut(), gradient: gradient.view(), moments, used, decays: self.decays }
    }

    /// A step in `f64`.
    fn step(&mut self, step: &AdamW, factor: f64) {
        let [weight, gradient, first, second] = &mut self.numbers;
        let keep = if self.decays { 1.0 - step.rate * step.weight_decay } else { 1.0 };
        let correct = |beta: f64| 1.0 - beta.powi(step.taken as i32);
        for i in 0..weight.len() {
            let (g, [a, b]) = (gradient[i] * factor, step.betas);
            (first[i], second[i]) = (a * first[i] + (1.0 - a) * g, b * second[i] + (1.0 - b) * g * g);
            let change = step.rate * first[i] / correct(a) / ((second[i] / correct(b)).sqrt() + step.eps);
            weight[i] = weight[i] * keep - change;
        }
    }

    fn check(&self) -> Result<()> {
        for (at, name) in [(0, "weight"), (2, "first"), (3, "second")] {
            check(name, &numbers(&self.tensors[at])?, &self.numbers[at], 1e-6);
        }
        let Some((used, form)) = &self.used else { return Ok(()) };
        let of = |w: &f64| match form {
            Form::Same => *w,
            Form::Decay => -w.exp(),
            Form::OnePlus => 1.0 + w,
        };
        check("used", &numbers(used)?, &self.numbers[0].iter().map(of).collect::<Vec<_>>(), rounding(used.dtype()));
        Ok(())
    }
}

#[test]
fn a_step_is_that_of_adamw() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    let (same, decay) = (Form::Same, Form::Decay);
    let of = |count, used, decays| Weight::new(&exec, count, used, decays);
    let mut weights = [
        of(5, Some((DType::F32, decay)), false)?,
        of(10_000, Some((DType::BF16, same)), true)?,
        of(8192, Some((DType::F16, same)), true)?,
        of(77, Some((DType::F32, Form::OnePlus)), false)?,
        of(0, None, true)?,
        of(3_000_001, None, false)?,
    ];
    let length = weights.iter().flat_map(|weight| &weight.numbers[1]).map(|g| g * g).sum::<f64>().sqrt();
    let step = AdamW { rate: 1e-2, weight_decay: 0.1, betas: [0.9, 0.95], eps: 1e-8, taken: 3 };
    let mut optimizer = Optimizer::new(&exec)?;
    for (max_grad_norm, factor) in [(1.0, 1.0 / length), (2.0 * length, 1.0)] {
        let mut params: Vec<_> = weights.iter_mut().map(Weight::params).collect();
        optimizer.step(step, max_grad_norm, &mut params)?;
        let mut got = Tensor::from_slice(&exec, &[1f32], &[1])?;
        scale_by(&exec, &mut got.view_mut(), optimizer.factor())?;
        check("factor", &numbers(&got)?, &[factor], 1e-7);
        for weight in &mut weights {
            weight.step(&step, factor);
            weight.check()?;
        }
    }
    // weights are copied again, without a step
    for weight in &mut weights {
        weight.used = weight.used.take().map(|(used, form)| (Tensor::empty(&exec, used.dtype(), &used.shape()).unwrap(), form));
    }
    optimizer.copy(&mut weights.iter_mut().map(Weight::params).collect::<Vec<_>>())?;
    weights.iter().try_for_each(Weight::check)?;
    // a table of other weights, and what it refuses
    let [first, second, ..] = &mut weights;
    optimizer.copy(&mut [first.params()])?;
    let gradient = second.tensors[1].view();
    let error = optimizer.copy(&mut [Param { gradient, ..first.params() }]).unwrap_err();
    assert!(error.to_string().contains("`weight`"), "{error}");
    Ok(())
}
