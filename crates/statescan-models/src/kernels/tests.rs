//! Kernels of language models: compiled for every architecture, and on a GPU against plain loops in `f64`.

use super::row_product::{Extra, ROW_PRODUCT};
use super::rows::Rows;
use super::*;
use statescan::cuda::{Graph, Landing};
use statescan::error::{Error, Result};
use statescan::tensor::{DType, Device, Shape, Tensor};
use statescan::{Exec, View};
use statescan_cuda::Numbers;
use statescan_cuda::testing::Suite;

pub(super) const TYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// A dense tensor in a device's memory that nobody reads.
pub(super) fn tensor(dtype: DType, shape: &[usize]) -> View<'static> {
    let strides = Shape::new(shape).unwrap().row_major();
    // SAFETY: nothing reads through the view: configurations look at types, shapes and layouts.
    let view = unsafe { View::from_raw_parts(core::ptr::without_provenance(1 << 20), dtype, Device::Cuda(0), shape, &strides) };
    view.unwrap()
}

#[test]
fn products_of_a_row_compile() {
    let Some(mut suite) = Suite::new() else { return };
    for (dtype, rows, columns) in
        [(DType::BF16, 3072, 768), (DType::F32, 80, 1536), (DType::F16, 50280, 2560), (DType::BF16, 24, 12)]
    {
        let (weight, x, norm) = (tensor(dtype, &[rows, columns]), tensor(DType::F32, &[columns]), tensor(DType::F32, &[columns]));
        let conv = Conv { input: x, weight: tensor(DType::F32, &[columns, 4]), bias: None };
        let befores = [
            (Before::Nothing, 1, 0),
            (Before::Norm { weight: norm, groups: 1, eps: 1e-5 }, 1, 0),
            (Before::Norm { weight: norm, groups: 4, eps: 1e-5 }, 4, 9),
            (Before::Conv(conv, x), 1, 0),
        ];
        for (before, groups, moving) in befores {
            let factor = if groups > 1 { 0.5 } else { 1.0 };
            let bias = (moving > 0).then_some(x);
            let args = RowProduct { before, factor, bias, add: moving == 0, ..RowProduct::new(weight, x) };
            let extra = Extra { conv: conv.params(x), norm: Some((1 << 20, groups, 1e-5)), width: 4, moving };
            let kernel =
                row_product::kernel(&args, &Rows::of("op", "weight", &weight).unwrap(), &extra, 0, Numbers::H200).unwrap();
            suite.add(&ROW_PRODUCT, &kernel.config, kernel.launch.shared as usize);
        }
    }
    suite.compile();
}

#[test]
fn steps_and_the_rest_compile() {
    let Some(mut suite) = Suite::new() else { return };
    let of = |shape: &[usize]| tensor(DType::F32, shape);
    for (dtype, rank, states, norms) in [(DType::BF16, 48, 16, false), (DType::F16, 256, 16, true), (DType::F32, 3, 256, true)] {
        let conv = Conv { input: of(&[96]), weight: of(&[96, 4]), bias: Some(of(&[96])) };
        let args = MambaStep {
            conv,
            maps: of(&[rank + 2 * states]),
            norms: norms.then_some(1e-6),
            dt_weight: tensor(dtype, &[96, rank]),
            dt_bias: of(&[96]),
            dt_limit: if norms { (0.1, 1.0) } else { (0.0, f64::INFINITY) },
            a: of(&[96, states]),
            d: of(&[96]),
            z: of(&[96]),
        };
        let kernel = mamba_step::kernel(&args, [96, 4, rank, states], [of(&[96, 3]), of(&[96, states]), of(&[96])]).unwrap();
        suite.add(&mamba_step::MAMBA_STEP, &kernel.config, 0);
    }
    for (headdim, states) in [(64, 128), (80, 256), (4, 8)] {
        let (heads, groups) = (6, 2);
        let (inner, heads_of) = (heads * headdim, of(&[heads]));
        let channels = inner + 2 * groups * states;
        let conv = Conv { input: of(&[channels]), weight: of(&[channels, 4]), bias: None };
        let conv_state = of(&[channels, 3]);
        let (dt_limit, z) = ((0.0, f64::INFINITY), of(&[inner]));
        let args =
            Mamba2Step { conv, conv_state, dt: heads_of, dt_bias: heads_of, dt_limit, a: heads_of, d: heads_of, z, groups };
        let kernel = mamba2_step::kernel(&args, [inner, 4, states], [of(&[inner, states]), z]).unwrap();
        suite.add(&mamba2_step::MAMBA2_STEP, &kernel.config, 0);
    }
    for dtype in TYPES {
        let rows = Rows { address: 1 << 20, dtype, rows: 100, columns: 768, pitch: 768 };
        suite.add(&embedding::EMBEDDING, &embedding::kernel(&rows, 0, 7, 0).unwrap().config, 0);
        suite.add(&largest::LARGEST, &largest::kernel(&rows, 0).unwrap().config, 0);
    }
    suite.compile();
}

/// An executor on the first GPU; without one the test says why it does nothing.
pub(super) fn gpu() -> Option<Exec> {
    match Exec::cuda(0) {
        Ok(exec) => Some(exec),
        Err(error @ Error::Unavailable { .. }) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A recording that begins again where other tests have ended it, as those do that compile a kernel meanwhile.
pub(super) fn recorded(exec: &Exec, mut work: impl FnMut() -> Result<()>) -> Result<Graph> {
    const INVALIDATED: u32 = 901;
    let attempts = (0..16).map(|_| Graph::record(exec, &mut work));
    attempts.into_iter().find(|made| !matches!(made, Err(Error::Cuda { code: INVALIDATED, .. }))).expect("one that nobody ends")
}

/// Numbers between -1 and 1 that a tensor of a type has, on the host and on the device.
pub(super) fn random(exec: &Exec, dtype: DType, shape: &[usize], seed: u64) -> (Vec<f64>, Tensor) {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f64 / (1u64 << 23) as f64 - 1.0
    };
    let mut host = Tensor::host(dtype, shape).unwrap();
    host.fill_with(|| next().into());
    let numbers = host.to_dense().data().iter().map(|x| x.re).collect();
    (numbers, host.to(exec).unwrap())
}

pub(super) fn check(what: &str, got: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!((f64::from(*got) - expected).abs() <= bound * largest, "{what}[{i}]: {got} instead of {expected}");
    }
}

/// The numbers of a tensor of a real type.
pub(super) fn numbers(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.to_host()?.to_dense().data().iter().map(|x| x.re as f32).collect())
}

/// The error of a number that was rounded to a type.
pub(super) fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 3e-6,
        DType::F16 => 1e-3,
        _ => 8e-3,
    }
}

pub(super) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Groups of a row divided by the roots of their mean squares.
fn normed(x: &[f64], weight: &[f64], groups: usize, eps: f64) -> Vec<f64> {
    let group = x.len() / groups;
    let factor = |of: &[f64]| 1.0 / (of.iter().map(|x| x * x).sum::<f64>() / group as f64 + eps).sqrt();
    x.chunks(group).flat_map(|of| of.iter().map(move |x| x * factor(of))).zip(weight).map(|(x, w)| x * w).collect()
}

fn times(weight: &[f64], x: &[f64]) -> Vec<f64> {
    weight.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

#[test]
fn products_of_a_row_are_those_of_a_plain_loop() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    for dtype in TYPES {
        for (outputs, inputs) in [(1, 8), (80, 1536), (3072, 768), (9001, 2560), (24, 12), (37, 259)] {
            let (weight, of_weight) = random(&exec, dtype, &[outputs, inputs], 1);
            let (x, of_x) = random(&exec, DType::F32, &[inputs], 2);
            let (norm, of_norm) = random(&exec, DType::F32, &[inputs], 3);
            let (bias, of_bias) = random(&exec, dtype, &[outputs], 4);
            let (filters, of_filters) = random(&exec, DType::F32, &[inputs, 4], 5);
            let (past, of_past) = random(&exec, DType::F32, &[inputs, 3], 6);
            let conv = Conv { input: of_x.view(), weight: of_filters.view(), bias: Some(of_norm.view()) };
            let convolved: Vec<f64> = (0..inputs)
                .map(|i| {
                    silu(norm[i] + filters[4 * i + 3] * x[i] + (0..3).map(|k| filters[4 * i + k] * past[3 * i + k]).sum::<f64>())
                })
                .collect();
            let groups = if inputs % 4 == 0 { 4 } else { 1 };
            let (eps, wide) = (1e-5f32, 1e-5f32 as f64);
            let befores = [
                (Before::Nothing, x.clone()),
                (Before::Norm { weight: of_norm.view(), groups: 1, eps }, normed(&x, &norm, 1, wide)),
                (Before::Norm { weight: of_norm.view(), groups, eps }, normed(&x, &norm, groups, wide)),
                (Before::Conv(conv, of_past.view()), convolved),
            ];
            for (i, (before, row)) in befores.into_iter().enumerate() {
                let (add, has_bias) = (i % 2 == 0, i > 1);
                let (first, mut y) = random(&exec, DType::F32, &[outputs], 7);
                let mut state = of_past.to(&exec)?;
                let moved = (i == 2).then(|| (of_x.view(), state.view_mut()));
                let bias_view = has_bias.then(|| of_bias.view());
                let factor = if i % 2 == 0 { 1.0 } else { 0.5 };
                let args = RowProduct { before, factor, bias: bias_view, add, ..RowProduct::new(of_weight.view(), of_x.view()) };
                match moved {
                    Some((input, mut state)) => row_product(&exec, &args, Some((input, &mut state)), &mut y.view_mut())?,
                    None => row_product(&exec, &args, None, &mut y.view_mut())?,
                }
                let mut expected = times(&weight, &row);
                for (o, y) in expected.iter_mut().enumerate() {
                    *y = *y * f64::from(factor) + if add { first[o] } else { 0.0 } + if has_bias { bias[o] } else { 0.0 };
                }
                check(&format!("{dtype} {outputs} x {inputs}, {i}"), &y.to_vec()?, &expected, 3e-6);
                let shifted: Vec<f64> = past.chunks(3).zip(&x).flat_map(|(past, x)| [past[1], past[2], *x]).collect();
                check("state", &state.to_vec()?, if i == 2 { &shifted } else { &past }, 0.0);
            }
        }
    }
    Ok(())
}

#[test]
fn products_of_matrices_norms_and_embeddings_are_those_of_plain_loops() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    let products = Products::new(&exec)?;
    for dtype in TYPES {
        for (rows, inputs, outputs) in [(1, 12, 24), (7, 64, 80), (130, 768, 96), (33, 24, 3)] {
            let (x, of_x) = random(&exec, dtype, &[rows, inputs], 1);
            let (weight, of_weight) = random(&exec, dtype, &[outputs, inputs], 2);
            for (result, add) in [(dtype, false), (DType::F32, true)] {
                let (first, mut y) = random(&exec, result, &[rows, outputs], 3);
                let (bias, of_bias) = random(&exec, result, &[outputs], 4);
                products.multiply(of_x.view(), of_weight.view(), Some(of_bias.view()), &mut y.view_mut(), add)?;
                let mut expected: Vec<f64> = x.chunks(inputs).flat_map(|row| times(&weight, row)).collect();
                for (i, y) in expected.iter_mut().enumerate() {
                    *y += bias[i % outputs] + if add { first[i] } else { 0.0 };
                }
                let bound = match result {
                    DType::F32 => 2e-6,
                    DType::F16 => 1e-3,
                    _ => 8e-3,
                };
                check(&format!("{dtype} {rows} {inputs} {outputs}"), &numbers(&y)?, &expected, bound);
            }
        }
        let (x, of_x) = random(&exec, dtype, &[2, 5, 24], 5);
        let tokens = Tensor::from_slice(&exec, &[3i32, 0, 9, 3, -1, 10], &[6])?;
        let table = of_x.view();
        let mut rows = Tensor::zeros(&exec, DType::F32, &[6, 24])?;
        // SAFETY: ten rows of the same memory.
        let flat = unsafe { View::from_raw_parts(table.as_ptr(), dtype, table.device(), &[10, 24], &[24, 1])? };
        embedding(&exec, flat, tokens.view(), 0.5, &mut rows.view_mut())?;
        let row = |i: i64| {
            if (0..10).contains(&i) { x[i as usize * 24..][..24].iter().map(|x| 0.5 * x).collect() } else { vec![0.0; 24] }
        };
        check("embedding", &rows.to_vec()?, &[3, 0, 9, 3, -1, 10].into_iter().flat_map(row).collect::<Vec<_>>(), 0.0);
    }
    Ok(())
}

#[test]
fn the_first_of_the_largest_is_found() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    for columns in [1, 2, 31, 1000, 50280] {
        let (x, of_x) = random(&exec, DType::F32, &[3, columns], 1);
        let mut x: Vec<f32> = x.into_iter().map(|x| x as f32).collect();
        // equals at several places of the second row
        (0..3).for_each(|i| x[columns + columns * (i + 1) / 4] = 2.0);
        let mut at = Tensor::zeros(&exec, DType::I32, &[3])?;
        let changed = Tensor::from_slice(&exec, &x, &of_x.shape())?;
        largest(&exec, changed.view(), &mut at.view_mut())?;
        let best = |row: &[f32]| (0..columns).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0) as i32;
        assert_eq!(at.to_vec::<i32>()?, x.chunks(columns).map(best).collect::<Vec<_>>());
    }
    Ok(())
}

#[test]
fn rows_that_are_not_finite_have_no_largest() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    for columns in [1, 31, 1000, 50280] {
        for value in [f32::NAN, -f32::NAN, f32::INFINITY] {
            for place in [0, columns / 3, columns - 1] {
                let mut x = vec![1.0f32; 2 * columns];
                x[columns + place] = value;
                let mut at = Tensor::zeros(&exec, DType::I32, &[2])?;
                largest(&exec, Tensor::from_slice(&exec, &x, &[2, columns])?.view(), &mut at.view_mut())?;
                assert_eq!(at.to_vec::<i32>()?, [0, -1], "{value} at {place} of {columns}");
            }
        }
    }
    Ok(())
}

#[test]
fn what_a_graph_sends_lands_on_the_host() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    let (mut landing, mut token) = (Landing::<i32>::new(&exec, 1)?, Tensor::zeros(&exec, DType::I32, &[1])?);
    assert_eq!(landing.wait()?, [0]);
    // SAFETY: nothing is kept of what landed before.
    let graph = Graph::record(&exec, || unsafe { landing.send(&exec, &token.view()) })?;
    for value in [7, -1] {
        set_token(&exec, &mut token.view_mut(), value)?;
        // SAFETY: as above, and the tensor is alive.
        unsafe { graph.launch()? };
        assert_eq!(landing.wait()?, [value]);
    }
    let (wide, pair) = (Tensor::zeros(&exec, DType::F32, &[1])?, Tensor::zeros(&exec, DType::I32, &[2])?);
    for (view, says) in [(wide.view(), "must be of the type of the landing"), (pair.view(), "must have shape (1,)")] {
        // SAFETY: nothing is sent.
        let error = unsafe { landing.send(&exec, &view) }.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    Ok(())
}

/// Computes a step of Mamba in plain loops; x is the row of the convolution's results.
fn scanned(
    x: &[f64],
    dt: &[f64],
    a: impl Fn(usize, usize) -> f64,
    [b, c, d, z]: [&dyn Fn(usize, usize) -> f64; 4],
    state: &mut [f64],
) -> Vec<f64> {
    let states = state.len() / x.len();
    (0..x.len())
        .map(|i| {
            let mut y = d(i, 0) * x[i];
            for n in 0..states {
                let h = &mut state[i * states + n];
                *h = (dt[i] * a(i, n)).exp() * *h + dt[i] * b(i, n) * x[i];
                y += c(i, n) * *h;
            }
            y * silu(z(i, 0))
        })
        .collect()
}

#[test]
fn steps_recorded_and_repeated_are_those_of_plain_loops() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    for (channels, rank, states, norms) in [(96, 48, 16, None), (130, 3, 8, Some(1e-6f32)), (33, 70, 40, None)] {
        let single = |shape: &[usize], seed| random(&exec, DType::F32, shape, seed);
        let ((input, of_input), (filters, of_filters)) = (single(&[channels], 1), single(&[channels, 4], 2));
        let ((maps, of_maps), (dt_weight, of_dt)) =
            (single(&[rank + 2 * states], 3), random(&exec, DType::BF16, &[channels, rank], 4));
        let ((bias, of_bias), (a, of_a)) = (single(&[channels], 5), single(&[channels, states], 6));
        let ((d, of_d), (z, of_z)) = (single(&[channels], 7), single(&[channels], 8));
        let ((mut past, mut of_past), (mut state, mut of_state)) = (single(&[channels, 3], 9), single(&[channels, states], 10));
        let mut y = Tensor::zeros(&exec, DType::F32, &[channels])?;
        let conv = Conv { input: of_input.view(), weight: of_filters.view(), bias: None };
        let args = MambaStep {
            conv,
            maps: of_maps.view(),
            norms,
            dt_weight: of_dt.view(),
            dt_bias: of_bias.view(),
            dt_limit: (0.0, 1.5),
            a: of_a.view(),
            d: of_d.view(),
            z: of_z.view(),
        };
        let (mut past_view, mut state_view) = (of_past.view_mut(), of_state.view_mut());
        let graph = recorded(&exec, || mamba_step(&exec, &args, &mut past_view, &mut state_view, &mut y.view_mut()))?;
        // SAFETY: the tensors are alive, and nobody reads them meanwhile.
        (0..2).try_for_each(|_| unsafe { graph.launch() })?;
        let mut expected = Vec::new();
        for _ in 0..2 {
            let x: Vec<f64> = (0..channels)
                .map(|i| silu(filters[4 * i + 3] * input[i] + (0..3).map(|k| filters[4 * i + k] * past[3 * i + k]).sum::<f64>()))
                .collect();
            past = past.chunks(3).zip(&input).flat_map(|(past, x)| [past[1], past[2], *x]).collect();
            let part = |range: std::ops::Range<usize>| match norms {
                Some(eps) => normed(&maps[range.clone()], &vec![1.0; range.len()], 1, eps.into()),
                None => maps[range].to_vec(),
            };
            let (low, b, c) = (part(0..rank), part(rank..rank + states), part(rank + states..rank + 2 * states));
            let dt: Vec<f64> =
                times(&dt_weight, &low).iter().zip(&bias).map(|(dt, b)| (1.0 + (dt + b).exp()).ln().clamp(0.0, 1.5)).collect();
            expected =
                scanned(&x, &dt, |i, n| a[i * states + n], [&|_, n| b[n], &|_, n| c[n], &|i, _| d[i], &|i, _| z[i]], &mut state);
        }
        check("y", &y.to_vec()?, &expected, 5e-6);
        check("state", &of_state.to_vec()?, &state, 5e-6);
        check("past", &of_past.to_vec()?, &past, 0.0);
    }
    Ok(())
}

#[test]
fn a_step_of_mamba2_is_that_of_a_plain_loop() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    for (heads, headdim, groups, states) in [(6, 4, 2, 8), (24, 64, 1, 128), (4, 37, 4, 70)] {
        let (inner, maps) = (heads * headdim, groups * states);
        let channels = inner + 2 * maps;
        let single = |shape: &[usize], seed| random(&exec, DType::F32, shape, seed);
        let ((input, of_input), (filters, of_filters)) = (single(&[channels], 1), single(&[channels, 4], 2));
        let ((bias, of_bias), (past, of_past)) = (single(&[channels], 3), single(&[channels, 3], 4));
        let ((dt, of_dt), (dt_bias, of_dt_bias)) = (single(&[heads], 5), single(&[heads], 6));
        let ((a, of_a), (d, of_d), (z, of_z)) = (single(&[heads], 7), single(&[heads], 8), single(&[inner], 9));
        let (mut state, mut of_state) = single(&[inner, states], 10);
        let mut y = Tensor::zeros(&exec, DType::F32, &[inner])?;
        let args = Mamba2Step {
            conv: Conv { input: of_input.view(), weight: of_filters.view(), bias: Some(of_bias.view()) },
            conv_state: of_past.view(),
            dt: of_dt.view(),
            dt_bias: of_dt_bias.view(),
            dt_limit: (0.01, 0.9),
            a: of_a.view(),
            d: of_d.view(),
            z: of_z.view(),
            groups,
        };
        mamba2_step(&exec, &args, &mut of_state.view_mut(), &mut y.view_mut())?;
        let x: Vec<f64> = (0..channels)
            .map(|i| {
                silu(bias[i] + filters[4 * i + 3] * input[i] + (0..3).map(|k| filters[4 * i + k] * past[3 * i + k]).sum::<f64>())
            })
            .collect();
        let dt: Vec<f64> =
            (0..inner).map(|i| (1.0 + (dt[i / headdim] + dt_bias[i / headdim]).exp()).ln().clamp(0.01, 0.9)).collect();
        let group = |i: usize| i / headdim / (heads / groups) * states;
        let expected = scanned(
            &x[..inner],
            &dt,
            |i, _| a[i / headdim],
            [&|i, n| x[inner + group(i) + n], &|i, n| x[inner + maps + group(i) + n], &|i, _| d[i / headdim], &|i, _| z[i]],
            &mut state,
        );
        check("y", &y.to_vec()?, &expected, 5e-6);
        check("state", &of_state.to_vec()?, &state, 5e-6);
    }
    Ok(())
}
