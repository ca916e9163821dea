//! Tiny problems through every operation that needs no matrix product, for Miri: every pointer of the scalar kernels is inside its tensor.

use statescan::ops::{causal_conv1d, linear_scan, selective_scan};
use statescan::{DType, Exec, Sequences, Tensor, View};

fn ones(dtype: DType, shape: &[usize]) -> Tensor {
    let mut buffer = Tensor::host(dtype, shape).unwrap();
    buffer.fill_with(|| 0.5.into());
    buffer
}

#[test]
fn selective_scan_reads_and_writes_inside_its_tensors() {
    for (dtype, dim, seqlen) in [(DType::F32, 3, 5), (DType::BF16, 1, 3), (DType::F64, 2, 66)] {
        let (b, n) = (2, 2);
        let (x, dt, a) = (ones(dtype, &[b, dim, seqlen]), ones(dtype, &[b, dim, seqlen]), ones(DType::F32, &[dim, n]));
        let (map, z) = (ones(dtype, &[b, n, seqlen]), ones(dtype, &[b, dim, seqlen]));
        let args = selective_scan::Args::new(x.view(), dt.view(), a.view(), map.view(), map.view())
            .z(z.view())
            .dt_softplus(true)
            .reverse(true);
        let zeros = |like: &Tensor| Tensor::host(like.dtype(), &like.shape()).unwrap();
        let [mut y, mut dx, mut ddt, mut da, mut db] = [&x, &x, &dt, &a, &map].map(zeros);
        let mut last = Tensor::host(DType::F32, &[b, dim, n]).unwrap();
        let mut out = selective_scan::Outputs::default().y(y.view_mut()).final_state(last.view_mut());
        selective_scan::forward(&Exec::cpu(1), &args, &mut out).unwrap();
        let mut grads =
            selective_scan::Gradients::default().x(dx.view_mut()).dt(ddt.view_mut()).a(da.view_mut()).b(db.view_mut());
        let cotangents = selective_scan::Cotangents::default().y(x.view());
        selective_scan::backward(&Exec::cpu(1), &args, None, &cotangents, &mut grads).unwrap();
        assert!(dx.to_dense().data().iter().all(|v| v.re.is_finite()));
    }
}

#[test]
fn packed_sequences_stay_inside() {
    let (x, a, map) = (ones(DType::F32, &[1, 2, 7]), ones(DType::F32, &[2, 1]), ones(DType::F32, &[1, 1, 7]));
    let bounds = [0i32, 2, 2, 7];
    let args = selective_scan::Args::new(x.view(), x.view(), a.view(), map.view(), map.view())
        .sequences(Sequences::CuSeqlens(View::new(&bounds, &[4]).unwrap()));
    let mut last = Tensor::host(DType::F32, &[3, 2, 1]).unwrap();
    let mut out = selective_scan::Outputs::default().final_state(last.view_mut());
    selective_scan::forward(&Exec::cpu(1), &args, &mut out).unwrap();
}

#[test]
fn linear_scan_and_convolution_stay_inside() {
    let (a, b) = (ones(DType::F32, &[3, 5]), ones(DType::F32, &[3, 5]));
    let mut h = Tensor::host(DType::F32, &[3, 5]).unwrap();
    let mut out = linear_scan::Outputs::default().h(h.view_mut());
    linear_scan::forward(&Exec::cpu(1), &linear_scan::Args::new(a.view(), b.view()), &mut out).unwrap();
    let (x, weight) = (ones(DType::F32, &[1, 3, 5]), ones(DType::F32, &[3, 4]));
    let mut y = Tensor::host(DType::F32, &[1, 3, 5]).unwrap();
    let mut out = causal_conv1d::Outputs::default().y(y.view_mut());
    causal_conv1d::forward(&Exec::cpu(1), &causal_conv1d::Args::new(x.view(), weight.view()), &mut out).unwrap();
    assert_eq!(y.view().at(&[0, 0, 4]).re, 1.0);
}
