//! Tensors of more than 2^31 elements on a GPU. Rows repeat with a period that divides no power of two, so that an index that wraps around
//! reads or writes a row that should look different. Run one at a time, as each needs about 20 GB on the GPU and on the host:
//! `cargo test --release -p statescan --test cuda_large -- --ignored --test-threads 1`.

mod common;

use common::device::{gpu, home, on};
use common::{Layout, Rng, assert_close, normal, uniform};
use statescan::ops::{causal_conv1d, linear_scan, selective_scan, simplified_scan};
use statescan::tensor::{ErrorBound, Workspace};
use statescan::{DType, Exec, Tensor};

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

/// Computes few rows, then many: these repeat, and the first of them are the few. The inputs and results of `compute` are on the device.
fn check(rows: &Tensor, compute: impl Fn(&Exec, Tensor) -> Vec<Tensor>) {
    let Some(exec) = gpu() else { return };
    let few = compute(&exec, on(&exec, rows));
    let many = compute(&exec, on(&exec, &repeated(rows)));
    for (i, (few, many)) in few.iter().zip(&many).enumerate() {
        let (few, many) = (home(few), home(many));
        assert!(many.bytes().len() / many.dtype().size() > 1 << 31);
        let (first, row) = (&many.bytes()[..few.bytes().len()], few.bytes().len() / PERIOD);
        let wrong = many.bytes().chunks_exact(row).enumerate().find(|(b, bytes)| *bytes != &first[b % PERIOD * row..][..row]);
        assert!(wrong.is_none(), "result {i}: row {:?}", wrong.map(|(b, _)| b));
        let mut beginning = few.clone();
        beginning.bytes_mut().copy_from_slice(first);
        assert_close(&format!("result {i}"), &beginning, &few.to_dense(), ErrorBound::for_gradient(few.dtype(), STEPS));
    }
}

fn numbers(shape: &[usize]) -> Tensor {
    normal(&mut Rng::new(shape.len() as u64), DType::BF16, shape, Layout::Dense, 1.0)
}

/// Room for a result that looks like `tensor`.
fn room(exec: &Exec, tensor: &Tensor) -> Tensor {
    Tensor::zeros(exec, tensor.dtype(), &tensor.shape()).unwrap()
}

#[test]
#[ignore = "needs 20 GB on the GPU and on the host"]
fn convolution() {
    use causal_conv1d::{Activation, Args, Cotangents, Gradients, Outputs, backward, forward};
    let weight = normal(&mut Rng::new(1), DType::F32, &[DIM, 4], Layout::Dense, 0.5);
    check(&numbers(&[PERIOD, DIM, STEPS]), |exec, x| {
        let weight = on(exec, &weight);
        let args = Args::new(x.view(), weight.view()).activation(Activation::Silu);
        let [mut y, mut dx] = [&x, &x].map(|like| room(exec, like));
        forward(exec, &args, &mut Outputs::default().y(y.view_mut())).unwrap();
        let mut grads = Gradients::default().x(dx.view_mut());
        backward(exec, &args, &Cotangents::default().y(x.view()), &mut grads).unwrap();
        vec![y, dx]
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
        let [dt, a, b, c] = [&dt, &a, &b, &c].map(|tensor| on(exec, tensor));
        let [dt, b, c] = [&dt, &b, &c].map(|tensor| tensor.view().expand(0, x.shape()[0]));
        let args = Args::new(x.view(), dt, a.view(), b, c);
        let [mut y, mut dx, mut ddt] = [&x, &x, &x].map(|like| room(exec, like));
        let mut saved = Tensor::empty(exec, DType::F32, &[checkpoints_len(&args).unwrap()]).unwrap();
        let mut workspace = Workspace::default();
        let mut out = Outputs::default()
            .y(y.view_mut())
            .checkpoints(saved.view_mut())
            .workspace(workspace.view_mut(exec, workspace_len(exec, &args).unwrap()).unwrap());
        forward(exec, &args, &mut out).unwrap();
        let mut grads = Gradients::default()
            .x(dx.view_mut())
            .dt(ddt.view_mut())
            .workspace(workspace.view_mut(exec, backward_workspace_len(exec, &args, true).unwrap()).unwrap());
        let cotangents = Cotangents::default().y(x.view());
        backward(exec, &args, Some(saved.view()), &cotangents, &mut grads).unwrap();
        vec![y, dx, ddt]
    });
}

#[test]
#[ignore = "needs 20 GB on the GPU and on the host"]
fn linear_scan_of_many_rows() {
    use linear_scan::{Args, Cotangents, Gradients, Outputs, backward, backward_workspace_len, forward, workspace_len};
    let b = normal(&mut Rng::new(3), DType::F32, &[DIM, STEPS], Layout::Dense, 1.0);
    check(&uniform(&mut Rng::new(4), DType::BF16, &[PERIOD, DIM, STEPS], Layout::Dense, 0.5, 1.0), |exec, a| {
        let b = on(exec, &b);
        let inputs = b.view().expand(0, a.shape()[0]);
        let args = Args::new(a.view(), inputs);
        let [mut h, mut da] = [&a, &a].map(|like| room(exec, like));
        let mut workspace = Workspace::default();
        let scratch = workspace.view_mut(exec, workspace_len(exec, &args).unwrap()).unwrap();
        let mut out = Outputs::default().h(h.view_mut()).workspace(scratch);
        forward(exec, &args, &mut out).unwrap();
        let scratch = workspace.view_mut(exec, backward_workspace_len(exec, &args, true).unwrap()).unwrap();
        let mut grads = Gradients::default().a(da.view_mut()).workspace(scratch);
        let cotangents = Cotangents::default().h(inputs);
        backward(exec, &args, Some(h.view()), &cotangents, &mut grads).unwrap();
        vec![h, da]
    });
}

#[test]
#[ignore = "needs 20 GB on the GPU and on the host"]
fn simplified_scan_of_many_rows() {
    use simplified_scan::{Args, Cotangents, Gradients, Outputs, backward, backward_workspace_len, forward, workspace_len};
    let rng = &mut Rng::new(6);
    let states = 4;
    let delta = uniform(rng, DType::F32, &[states], Layout::Dense, 0.01, 0.2);
    let a = uniform(rng, DType::Complex64, &[states], Layout::Dense, -2.0, -0.1);
    let [b, c] = [[states, DIM], [DIM, states]].map(|shape| normal(rng, DType::Complex64, &shape, Layout::Dense, 0.3));
    let d = normal(rng, DType::F32, &[DIM], Layout::Dense, 1.0);
    check(&numbers(&[PERIOD, DIM, STEPS]), |exec, u| {
        let [delta, a, b, c, d] = [&delta, &a, &b, &c, &d].map(|tensor| on(exec, tensor));
        let args = Args::inner(u.view(), delta.view(), a.view(), b.view(), c.view(), d.view());
        let [mut y, mut du] = [&u, &u].map(|like| room(exec, like));
        let mut workspace = Workspace::default();
        let scratch = workspace.view_mut(exec, workspace_len(exec, &args).unwrap()).unwrap();
        forward(exec, &args, &mut Outputs::default().y(y.view_mut()).workspace(scratch)).unwrap();
        let scratch = workspace.view_mut(exec, backward_workspace_len(exec, &args).unwrap()).unwrap();
        let mut grads = Gradients::default().u(du.view_mut()).workspace(scratch);
        backward(exec, &args, None, &Cotangents::default().y(u.view()), &mut grads).unwrap();
        vec![y, du]
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
    check(&numbers(&[PERIOD, dim, dstate]), |exec, mut state| {
        let rows = state.shape()[0];
        let [x, dt, a, map] = [&x, &dt, &a, &map].map(|tensor| on(exec, tensor));
        let map = map.view().expand(0, rows);
        let args = Args::new(x.view().expand(0, rows), dt.view().expand(0, rows), a.view(), map, map);
        let mut y = Tensor::zeros(exec, DType::F32, &[rows, dim]).unwrap();
        update(exec, &args, &mut state.view_mut(), &mut y.view_mut()).unwrap();
        vec![state]
    });
}
