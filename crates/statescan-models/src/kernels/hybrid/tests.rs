//! Kernels of hybrids: compiled for every architecture, and on a GPU against plain loops in `f64`.

use super::super::rows::Rows;
use super::super::tests::{TYPES, check, gpu, numbers, random, recorded, rounding, silu, tensor};
use super::*;
use statescan::error::Result;
use statescan::tensor::{DType, Tensor};
use statescan::{Exec, View};
use statescan_cuda::testing::Suite;

#[test]
fn kernels_of_hybrids_compile() {
    let Some(mut suite) = Suite::new() else { return };
    let wide = Rows { address: 1 << 20, dtype: DType::F32, rows: 100, columns: 768, pitch: 768 };
    for dtype in TYPES {
        let own = Rows { dtype, ..wide };
        let heads = Heads { headdim: 64, angles: None, first: 0, back: false };
        for rows in [[own, wide], [wide, own]] {
            suite.add(&rope::ROPE, &rope::kernel(&rows, &heads, 0).unwrap().config, 0);
        }
        suite.add(&gate::GATE, &gate::kernel(&own, &own, None).unwrap().config, 0);
        suite.add(&gate::GATE_BACKWARD, &gate::kernel(&own, &own, Some(&own)).unwrap().config, 0);
        for back in [None, Some(&[own; 2])] {
            suite.add(&output_gate::OUTPUT_GATE, &output_gate::kernel(&own, &wide, 64, back).unwrap().config, 0);
        }
    }
    suite.add(&softmax::SOFTMAX, &softmax::kernel(&wide, 1, 1.0).unwrap().config, 0);
    suite.add(&softmax::SOFTMAX_BACKWARD, &softmax::backward_kernel(&[wide; 2], 1.0).unwrap().config, 0);
    suite.add(&accumulate::ACCUMULATE, &accumulate::kernel(0, [1, 100], &wide).unwrap().config, 0);
    for headdim in [4, 64, 128, 512] {
        let of = |shape: &[usize]| tensor(DType::F32, shape);
        let (projected, position) = (of(&[8 * headdim]), tensor(DType::I32, &[1]));
        let args = AttentionStep { projected, angles: None, position, headdim, scale: 1.0 };
        let all = [of(&[64, 2 * headdim]), of(&[64, 2 * headdim]), of(&[4 * headdim])];
        suite.add(&step::ATTENTION_STEP, &step::kernel(&args, 0, all).unwrap().config, 0);
    }
    suite.compile();
}

/// Radians for each position, of which all that are given are f32.
fn angles(exec: &Exec, pairs: usize) -> Result<(Vec<f32>, Tensor)> {
    let angles: Vec<f32> = (0..pairs).map(|pair| 10_000f64.powf(-(pair as f64) / pairs as f64) as f32).collect();
    let there = Tensor::from_slice(exec, &angles, &[pairs])?;
    Ok((angles, there))
}

/// Rows whose heads are turned, in a plain loop.
fn rotated(rows: &[f64], columns: usize, headdim: usize, angles: &[f32], first: usize) -> Vec<f64> {
    let turn = |at: usize| {
        let (position, d, pairs) = (first + at / columns, at % columns % headdim, angles.len());
        if d >= 2 * pairs {
            return rows[at];
        }
        let angle = f64::from(position as f32 * angles[d % pairs]);
        let other = if d < pairs { -rows[at + pairs] } else { rows[at - pairs] };
        rows[at] * angle.cos() + other * angle.sin()
    };
    (0..rows.len()).map(turn).collect()
}

/// The softmax of a row of scores over those that it sees.
fn shares(row: &[f64], seen: usize, scale: f64) -> Vec<f64> {
    let highest = row[..seen].iter().fold(f64::NEG_INFINITY, |most, &x| most.max(x * scale));
    let share = |i: usize| if i < seen { (row[i] * scale - highest).exp() } else { 0.0 };
    let whole: f64 = (0..seen).map(share).sum();
    (0..row.len()).map(|i| share(i) / whole).collect()
}

#[test]
fn rows_are_turned_and_gated_as_in_plain_loops() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    for dtype in TYPES {
        for (rows, heads, headdim, pairs, first) in
            [(1, 1, 2, 1, 0), (7, 3, 8, 2, 5), (130, 4, 64, 32, 100_000), (33, 2, 5, 0, 3)]
        {
            let (columns, (of_angles, angles)) = (heads * headdim, angles(&exec, pairs.max(1))?);
            let (x, on_x) = random(&exec, dtype, &[rows, columns + 3], 1);
            let (x, turned) = (x.chunks(columns + 3).flat_map(|row| &row[3..]).copied().collect::<Vec<_>>(), pairs > 0);
            let of = Heads { headdim, angles: turned.then(|| angles.view()), first, back: false };
            let expected = rotated(&x, columns, headdim, if turned { &of_angles } else { &[] }, first);
            for to in [DType::F32, dtype] {
                // rows of a wider tensor, whose other columns stay
                let (mut expected_all, mut y) = random(&exec, to, &[rows, columns + 2], 2);
                rope(&exec, on_x.view().slice(1, 3..columns + 3), &of, &mut y.view_mut().slice(1, 0..columns))?;
                expected_all
                    .chunks_mut(columns + 2)
                    .zip(expected.chunks(columns))
                    .for_each(|(to, from)| to[..columns].copy_from_slice(from));
                let bound = if turned { rounding(to) } else { 0.0 };
                check(&format!("{dtype} to {to}, {rows} x {columns}"), &numbers(&y)?, &expected_all, bound);
            }
            let (both, on_both) = random(&exec, dtype, &[rows, 2 * columns], 3);
            let mut y = Tensor::empty(&exec, dtype, &[rows, columns])?;
            gate(&exec, on_both.view(), &mut y.view_mut())?;
            let gated = both.chunks(2 * columns).flat_map(|row| (0..columns).map(|i| silu(row[i]) * row[columns + i]));
            check(&format!("gate {dtype}"), &numbers(&y)?, &gated.collect::<Vec<_>>(), rounding(dtype));
        }
    }
    Ok(())
}

#[test]
fn what_heads_attend_to_is_gated_there_and_back_as_in_a_plain_loop() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    for dtype in TYPES {
        for (rows, heads, headdim) in [(1, 1, 1), (7, 3, 5), (130, 4, 64)] {
            let columns = heads * headdim;
            // rows of wider tensors, whose other columns stay
            let (queries, on_queries) = random(&exec, dtype, &[rows, 2 * columns + 3], 1);
            let (y, mut on_y) = random(&exec, DType::F32, &[rows, columns + 1], 2);
            let (gated, on_gated) = random(&exec, dtype, &[rows, columns], 3);
            let (old, mut on_dqueries) = random(&exec, dtype, &[rows, 2 * columns + 3], 4);
            let own = |i: usize| (i / columns, i % columns / headdim * 2 * headdim + headdim + i % headdim);
            let share = |i: usize| (1.0 + (-queries[own(i).0 * (2 * columns + 3) + own(i).1]).exp()).recip();
            let of_queries = on_queries.view().slice(1, 0..2 * columns);
            let (mut expected, mut expected_back) = (y.clone(), old);
            for i in 0..rows * columns {
                let d = &mut expected[i / columns * (columns + 1) + i % columns];
                expected_back[own(i).0 * (2 * columns + 3) + own(i).1] = *d * gated[i] * (1.0 - share(i));
                *d *= share(i);
            }
            let before = on_y.to(&exec)?;
            output_gate(&exec, of_queries, headdim, &mut on_y.view_mut().slice(1, 0..columns))?;
            check(&format!("{dtype}"), &numbers(&on_y)?, &expected, 1e-6);
            on_y = before;
            let dqueries = &mut on_dqueries.view_mut().slice(1, 0..2 * columns);
            let from = [of_queries, on_gated.view()];
            output_gate_backward(&exec, from, headdim, &mut on_y.view_mut().slice(1, 0..columns), dqueries)?;
            check(&format!("{dtype}, back"), &numbers(&on_y)?, &expected, 1e-6);
            check(&format!("{dtype}, gates"), &numbers(&on_dqueries)?, &expected_back, rounding(dtype));
        }
    }
    Ok(())
}

#[test]
fn shares_are_those_of_a_plain_loop() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    for (rows, columns, seen) in [(1, 1, 1), (1, 64, 33), (5, 300, 2), (70, 1000, 931), (3, 5003, 4001)] {
        let (scores, mut on) = random(&exec, DType::F32, &[rows, columns], 1);
        softmax(&exec, &mut on.view_mut(), seen, 9.0)?;
        let expected = scores.chunks(columns).enumerate().flat_map(|(i, row)| shares(row, seen + i, 9.0));
        check(&format!("{rows} x {columns}"), &on.to_vec()?, &expected.collect::<Vec<_>>(), 3e-6);
    }
    for (value, spoils) in [(f32::NAN, true), (f32::NEG_INFINITY, false)] {
        let mut scores = vec![1f32; 600];
        scores[401] = value;
        let mut on = Tensor::from_slice(&exec, &scores, &[2, 300])?;
        softmax(&exec, &mut on.view_mut(), 200, 1.0)?;
        let got: Vec<f32> = on.to_vec()?;
        assert!(got[..300].iter().all(|x| x.is_finite()), "another row");
        assert_eq!(got[300..501].iter().all(|x| x.is_nan()), spoils, "{value}");
    }
    let mut scores = Tensor::zeros(&exec, DType::F32, &[4, 10])?;
    for seen in [0, 8] {
        let error = softmax(&exec, &mut scores.view_mut(), seen, 1.0).unwrap_err().to_string();
        assert!(error.contains("softmax: `seen`"), "{error}");
    }
    Ok(())
}

#[test]
fn gradients_are_those_of_plain_loops() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    for (rows, columns) in [(1, 1), (7, 24), (130, 300)] {
        for dtype in TYPES {
            let (both, on_both) = random(&exec, dtype, &[rows, 2 * columns], 1);
            let (dy, on_dy) = random(&exec, dtype, &[rows, columns], 2);
            let mut dboth = Tensor::empty(&exec, dtype, &[rows, 2 * columns])?;
            gate_backward(&exec, on_both.view(), on_dy.view(), &mut dboth.view_mut())?;
            let by_gate = |x: f64| (1.0 + x * (1.0 - silu(x) / x)) * silu(x) / x;
            let expected = both.chunks(2 * columns).zip(dy.chunks(columns)).flat_map(|(both, dy)| {
                let (gates, ups) = both.split_at(columns);
                let by_gates = (0..columns).map(|i| dy[i] * ups[i] * by_gate(gates[i]));
                by_gates.chain((0..columns).map(|i| dy[i] * silu(gates[i]))).collect::<Vec<_>>()
            });
            check(&format!("gate {dtype}"), &numbers(&dboth)?, &expected.collect::<Vec<_>>(), rounding(dtype));
        }
        let (scores, mut on_shares) = random(&exec, DType::F32, &[rows, columns + rows], 3);
        softmax(&exec, &mut on_shares.view_mut(), columns, 0.7)?;
        let (by_shares, mut gradients) = random(&exec, DType::F32, &[rows, columns + rows], 4);
        softmax_backward(&exec, &mut gradients.view_mut(), on_shares.view(), 0.7)?;
        let all = scores.chunks(columns + rows).zip(by_shares.chunks(columns + rows)).enumerate();
        let expected = all.flat_map(|(row, (scores, gradients))| {
            let shares = shares(scores, columns + row, f64::from(0.7f32));
            let mean: f64 = shares.iter().zip(gradients).map(|(share, g)| share * g).sum();
            shares.iter().zip(gradients).map(|(share, g)| share * (g - mean) * f64::from(0.7f32)).collect::<Vec<_>>()
        });
        check("softmax", &numbers(&gradients)?, &expected.collect::<Vec<_>>(), 5e-6);
        let (x, on_x) = random(&exec, DType::F32, &[columns, rows], 5);
        let (mut expected, mut y) = random(&exec, DType::F32, &[rows, columns + 5], 6);
        accumulate(&exec, on_x.view().permute(&[1, 0]), &mut y.view_mut().slice(1, 2..columns + 2))?;
        for (at, x) in x.iter().enumerate() {
            expected[at % rows * (columns + 5) + at / rows + 2] += x;
        }
        check("sum", &numbers(&y)?, &expected, 1e-7);
    }
    let (_, angles) = angles(&exec, 16)?;
    let (x, on_x) = random(&exec, DType::F32, &[50, 3 * 40], 7);
    let heads = Heads { headdim: 40, angles: Some(angles.view()), first: 1000, back: false };
    let [mut turned, mut again] = [Tensor::empty(&exec, DType::F32, &[50, 120])?, Tensor::empty(&exec, DType::F32, &[50, 120])?];
    rope(&exec, on_x.view(), &heads, &mut turned.view_mut())?;
    rope(&exec, turned.view(), &Heads { back: true, ..heads }, &mut again.view_mut())?;
    check("turned back", &numbers(&again)?, &x, 1e-6);
    Ok(())
}

/// Returns the attention of the last of some rows, from rotated queries and all keys and values.
fn attended(query: &[f64], keys: &[f64], values: &[f64], [headdim, share]: [usize; 2], scale: f64) -> Vec<f64> {
    let (count, width) = (keys.len() / (query.len() / share), query.len() / share);
    let of_head = |head: usize| {
        let (own, shared) = (head * headdim, head / share * headdim);
        let score = |at: usize| (0..headdim).map(|d| query[own + d] * keys[at * width + shared + d]).sum();
        let shares = shares(&(0..count).map(score).collect::<Vec<_>>(), count, scale);
        (0..headdim).map(|d| (0..count).map(|at| shares[at] * values[at * width + shared + d]).sum()).collect::<Vec<f64>>()
    };
    (0..query.len() / headdim).flat_map(of_head).collect()
}

#[test]
fn steps_of_attention_recorded_once_are_those_of_a_plain_loop() -> Result<()> {
    let Some(exec) = gpu() else { return Ok(()) };
    for (heads, shared, headdim, pairs) in [(3, 1, 4, 1), (4, 4, 37, 0), (8, 2, 64, 32), (2, 1, 200, 100)] {
        let (wide, width, room, before) = (heads * headdim, shared * headdim, 96, 67);
        let (of_angles, angles) = angles(&exec, pairs.max(1))?;
        let (projected, on_projected) = random(&exec, DType::F32, &[wide + 2 * width], 1);
        let ((keys, mut on_keys), (values, mut on_values)) =
            (random(&exec, DType::F32, &[room, width], 2), random(&exec, DType::F32, &[room, width], 3));
        let mut y = Tensor::zeros(&exec, DType::F32, &[wide])?;
        let mut position = Tensor::zeros(&exec, DType::I32, &[1])?;
        let given = position.view();
        // SAFETY: the tensor outlives the graph; it is written between launches alone, in the order of the stream.
        let given = unsafe { View::from_raw_parts(given.as_ptr(), DType::I32, given.device(), &[1], &[1])? };
        let of_angles = if pairs > 0 { &of_angles[..] } else { &[] };
        let on_angles = (pairs > 0).then(|| angles.view());
        let args = AttentionStep { projected: on_projected.view(), angles: on_angles, position: given, headdim, scale: 0.7 };
        let graph = {
            let [keys, values, y] = &mut [on_keys.view_mut(), on_values.view_mut(), y.view_mut()];
            recorded(&exec, || attention_step(&exec, &args, [keys, values], y))?
        };
        let (mut all_keys, mut all_values) = (keys.clone(), values.clone());
        // positions without room change nothing
        for at in [0, 1, before, 7, room - 1, room, usize::MAX] {
            super::super::set_token(&exec, &mut position.view_mut(), at as i32)?;
            // SAFETY: the tensors are alive, and nobody reads them meanwhile.
            unsafe { graph.launch()? };
            if at < room {
                let rows = at * width..(at + 1) * width;
                let key = rotated(&projected[wide..wide + width], width, headdim, of_angles, at);
                all_keys[rows.clone()].copy_from_slice(&key);
                all_values[rows.clone()].copy_from_slice(&projected[wide + width..]);
                let query = rotated(&projected[..wide], wide, headdim, of_angles, at);
                let sizes = [headdim, heads / shared];
                let expected = attended(&query, &all_keys[..rows.end], &all_values[..rows.end], sizes, f64::from(0.7f32));
                check(&format!("y, {heads} heads at {at}"), &y.to_vec()?, &expected, 5e-6);
            }
            check("keys", &on_keys.to_vec()?, &all_keys, 2e-6);
            check("values", &on_values.to_vec()?, &all_values, 0.0);
        }
    }
    Ok(())
}
