//! Tensors of more than 2^31 elements on a GPU. Rows repeat with a period that divides no power of two, so that an index that wraps around
//! reads or writes a row that should look different. Run one at a time, as each needs about 20 GB on the GPU and on the host:
//! `cargo test --release -p statescan --test cuda_large -- --ignored --test-threads 1`.

mod common;

use common::device::{Placed, PlacedMut, gpu};
use common::{Layout, Rng, assert_close, normal, uniform};
use statescan::ops::{causal_conv1d, linear_scan, selective_scan};
use statescan::tensor::{ErrorBound, Tensor};
use statescan::{DType, Exec};

/// Rows that differ, and all rows.
const PERIOD: usize = 7;
const ROWS: usize = (1 << 15) + 9;
/// Channels and steps of a row.
const DIM: usize = 64;
const STEPS: usize = 1024;

/// The rows of a tensor over and over.
fn repeated(few: &Tensor) -> Tensor {
    let mut many = Tensor::host(few.dtype(), &[&[ROWS], &few.shape()[1..]].concat()).unwrap();
    many.bytes_mut().chunks_mut(few.bytes().len()).for_each(|rows| rows.copy_from_slice(&few.bytes()[..rows.len()]));
    many
}

/// Room for a result with the rows of `like`.
fn room(like: &Tensor) -> Tensor {
    Tensor::host(like.dtype(), &like.shape()).unwrap()
}

/// Computes few rows, then many: these repeat, and the first of them are the few.
fn check(rows: &Tensor, compute: impl Fn(&Exec, &Tensor) -> Vec<Tensor>) {
    let Some(exec) = gpu() else { return };
    let few = compute(&exec, rows);
    let many = compute(&exec, &repeated(rows));
    for (i, (few, many)) in few.iter().zip(&many).enumerate() {
        assert!(many.bytes().len() / many.dtype().size() > 1 << 31);
        let (first, row) = (&many.bytes()[..few.bytes().len()], few.bytes().len() / PERIOD);
        let wrong = many.bytes().chunks_exact(row).enumerate().find(|(b, bytes)| *bytes != &first[b % PERIOD * row..][..row]);
        assert!(wrong.is_none(), "result {i}: row {:?}", wrong.map(|(b, _)| b));
        let mut beginning = room(few);
        beginning.bytes_mut().copy_from_slice(first);
        assert_close(&format!("result {i}"), &beginning, &few.to_dense(), ErrorBound::for_gradient(few.dtype(), STEPS));
    }
}

fn numbers(shape: &[usize]) -> Tensor {
    normal(&mut Rng::new(shape.len() as u64), DType::BF16, shape, Layout::Dense, 1.0)
}

fn workspace(len: usize) -> Tensor {
    Tensor::host(DType::F32, &[len]).unwrap()
}

#[test]
#[ignore = "needs 20 GB on the GPU and on the host"]
fn convolution() {
    use causal_conv1d::{Activation, Args, Cotangents, Gradients, Outputs, backward, forward};
    let weight = normal(&mut Rng::new(1), DType::F32, &[DIM, 4], Layout::Dense, 0.5);
    check(&numbers(&[PERIOD, DIM, STEPS]), |exec, x| {
        let (on_x, on_weight) = (Placed::new(exec, x), Placed::new(exec, &weight));
        let args = Args { activation: Activation::Silu, ..Args::new(on_x.view(), on_weight.view()) };
        let mut results = [x, x].map(room);
        let [mut y, mut dx] = results.each_mut().map(|buffer| PlacedMut::new(exec, buffer));
        forward(exec, &args, &mut Outputs { y: Some(y.view_mut()), ..Default::default() }).unwrap();
        let mut grads = Gradients { x: Some(dx.view_mut()), ..Default::default() };
        backward(exec, &args, &Cotangents { y: Some(on_x.view()), final_states: None }, &mut grads).unwrap();
        [y, dx].into_iter().for_each(PlacedMut::finish);
        results.into()
    });
}

#[test]
#[ignore = "needs 25 GB on the GPU and on the host"]
fn selective_scan_of_many_rows() {
    use selective_scan::{
        Args, Cotangents, Gradients, Outputs, backward, backward_workspace_len, checkpoints_len, forward, workspace_len,
    };
    let rng = &mut Rng::new(2);
    let dt = uniform(rng, DType::F32, &[DIM, STEPS], Layout::Dense, 0.01, 0.2);
    let a = uniform(rng, DType::F32, &[DIM, 4], Layout::Dense, -4.0, -0.1);
    let [b, c] = [0; 2].map(|_| normal(rng, DType::F32, &[4, STEPS], Layout::Dense, 1.0));
    check(&numbers(&[PERIOD, DIM, STEPS]), |exec, x| {
        let [on_x, dt, a, b, c] = [x, &dt, &a, &b, &c].map(|buffer| Placed::new(exec, buffer));
        let [dt, b, c] = [&dt, &b, &c].map(|tensor| tensor.view().expand(0, x.shape()[0]));
        let args = Args::new(on_x.view(), dt, a.view(), b, c);
        let mut results = [x, x, x].map(room);
        let mut scratch = [checkpoints_len(&args), workspace_len(exec, &args), backward_workspace_len(exec, &args, true)]
            .map(|len| workspace(len.unwrap()));
        let [mut y, mut dx, mut ddt] = results.each_mut().map(|buffer| PlacedMut::new(exec, buffer));
        let [mut saved, mut forwards, mut backwards] = scratch.each_mut().map(|buffer| PlacedMut::new(exec, buffer));
        let mut out = Outputs {
            y: Some(y.view_mut()),
            checkpoints: Some(saved.view_mut()),
            workspace: Some(forwards.view_mut()),
            ..Default::default()
        };
        forward(exec, &args, &mut out).unwrap();
        let mut grads = Gradients {
            x: Some(dx.view_mut()),
            dt: Some(ddt.view_mut()),
            workspace: Some(backwards.view_mut()),
            ..Default::default()
        };
        let cotangents = Cotangents { y: Some(on_x.view()), final_state: None };
        backward(exec, &args, Some(saved.view_mut().as_view()), &cotangents, &mut grads).unwrap();
        [y, dx, ddt].into_iter().for_each(PlacedMut::finish);
        results.into()
    });
}

#[test]
#[ignore = "needs 20 GB on the GPU and on the host"]
fn linear_scan_of_many_rows() {
    use linear_scan::{Args, Cotangents, Gradients, Outputs, backward, backward_workspace_len, forward, workspace_len};
    let b = normal(&mut Rng::new(3), DType::F32, &[DIM, STEPS], Layout::Dense, 1.0);
    check(&uniform(&mut Rng::new(4), DType::BF16, &[PERIOD, DIM, STEPS], Layout::Dense, 0.5, 1.0), |exec, a| {
        let (on_a, on_b) = (Placed::new(exec, a), Placed::new(exec, &b));
        let inputs = on_b.view().expand(0, a.shape()[0]);
        let args = Args::new(on_a.view(), inputs);
        let mut results = [a, a].map(room);
        let mut scratch =
            [workspace_len(exec, &args), backward_workspace_len(exec, &args, true)].map(|len| workspace(len.unwrap()));
        let [mut h, mut da] = results.each_mut().map(|buffer| PlacedMut::new(exec, buffer));
        let [mut forwards, mut backwards] = scratch.each_mut().map(|buffer| PlacedMut::new(exec, buffer));
        let mut out = Outputs { h: Some(h.view_mut()), workspace: Some(forwards.view_mut()), ..Default::default() };
        forward(exec, &args, &mut out).unwrap();
        let mut grads = Gradients { a: Some(da.view_mut()), workspace: Some(backwards.view_mut()), ..Default::default() };
        let cotangents = Cotangents { h: Some(inputs), final_state: None };
        backward(exec, &args, Some(h.view_mut().as_view()), &cotangents, &mut grads).unwrap();
        [h, da].into_iter().for_each(PlacedMut::finish);
        results.into()
    });
}

#[test]
#[ignore = "needs 10 GB on the GPU and on the host"]
fn states_of_many_rows() {
    use selective_scan::update::{Args, update};
    // a state as large as a row of the others
    let (dim, dstate) = (DIM * STEPS / 16, 16);
    let rng = &mut Rng::new(5);
    let x = normal(rng, DType::BF16, &[dim], Layout::Dense, 1.0);
    let dt = uniform(rng, DType::F32, &[dim], Layout::Dense, 0.01, 0.2);
    let a = uniform(rng, DType::F32, &[dim, dstate], Layout::Dense, -4.0, -0.1);
    let map = normal(rng, DType::F32, &[dstate], Layout::Dense, 1.0);
    check(&numbers(&[PERIOD, dim, dstate]), |exec, before| {
        let rows = before.shape()[0];
        let [x, dt, a, map] = [&x, &dt, &a, &map].map(|buffer| Placed::new(exec, buffer));
        let map = map.view().expand(0, rows);
        let args = Args::new(x.view().expand(0, rows), dt.view().expand(0, rows), a.view(), map, map);
        let (mut after, mut y) = (before.clone(), Tensor::host(DType::F32, &[rows, dim]).unwrap());
        let (mut state, mut on_y) = (PlacedMut::new(exec, &mut after), PlacedMut::new(exec, &mut y));
        update(exec, &args, &mut state.view_mut(), &mut on_y.view_mut()).unwrap();
        [state, on_y].into_iter().for_each(PlacedMut::finish);
        vec![after]
    });
}
