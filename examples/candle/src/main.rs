//! A linear scan as an operation of candle, with its gradient: `cargo run --release` in this folder.

use candle_core::{CpuStorage, CustomOp2, DType, Device, Layout, Result, Shape, Tensor, Var, bail};
use statescan::ops::linear_scan::{self, Args, Cotangents, Gradients, Outputs};
use statescan::{Exec, View, ViewMut};

/// `h[t] = a[t] h[t-1] + b[t]` along the last axis of two tensors of f32 on the CPU.
struct LinearScan;

fn other(error: statescan::Error) -> candle_core::Error {
    candle_core::Error::wrap(error)
}

/// A tensor where it lies, whatever its strides are.
fn view<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<View<'a>> {
    let strides: Vec<isize> = layout.stride().iter().map(|&stride| stride as isize).collect();
    View::strided(storage.as_slice::<f32>()?, layout.start_offset(), layout.dims(), &strides).map_err(other)
}

impl CustomOp2 for LinearScan {
    fn name(&self) -> &'static str {
        "linear_scan"
    }

    fn cpu_fwd(&self, a: &CpuStorage, of_a: &Layout, b: &CpuStorage, of_b: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut h = vec![0f32; of_b.shape().elem_count()];
        let out = ViewMut::new(&mut h, of_b.dims()).map_err(other)?;
        let args = Args::new(view(a, of_a)?, view(b, of_b)?);
        linear_scan::forward(&Exec::cpu(0), &args, &mut Outputs::default().h(out)).map_err(other)?;
        Ok((CpuStorage::F32(h), of_b.shape().clone()))
    }

    fn bwd(&self, a: &Tensor, b: &Tensor, h: &Tensor, by_h: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let dims = b.dims();
        let flat = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<f32>();
        let [a, b, h, by_h] = [flat(a)?, flat(b)?, flat(h)?, flat(by_h)?];
        let (mut by_a, mut by_b) = (vec![0f32; a.len()], vec![0f32; b.len()]);
        let of = |values| View::new(values, dims).map_err(other);
        let gradients = Gradients::default().a(ViewMut::new(&mut by_a, dims).map_err(other)?);
        let mut gradients = gradients.b(ViewMut::new(&mut by_b, dims).map_err(other)?);
        let cotangents = Cotangents::default().h(of(&by_h)?);
        let args = Args::new(of(&a)?, of(&b)?);
        linear_scan::backward(&Exec::cpu(0), &args, Some(of(&h)?), &cotangents, &mut gradients).map_err(other)?;
        let made = |values| Tensor::from_vec(values, dims, &Device::Cpu).map(Some);
        Ok((made(by_a)?, made(by_b)?))
    }
}

fn scan(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.dims() != b.dims() || a.dtype() != DType::F32 {
        bail!("a and b must be of f32, and of one shape, got {:?} and {:?}", a.shape(), b.shape());
    }
    a.apply_op2(b, LinearScan)
}

/// A decay is learned from what it does to ones: errors, and the decay in the end.
fn learned(steps: usize) -> Result<(Vec<f32>, f32)> {
    let ones = Tensor::ones((3, 40), DType::F32, &Device::Cpu)?;
    let target = scan(&ones.affine(0.8, 0.0)?, &ones)?;
    let (decay, mut errors) = (Var::new(&[[0.5f32]], &Device::Cpu)?, Vec::new());
    for _ in 0..steps {
        let error = (scan(&decay.broadcast_as(ones.shape())?, &ones)? - &target)?.sqr()?.mean_all()?;
        let gradients = error.backward()?;
        let Some(by_decay) = gradients.get(&decay) else { bail!("the decay has no gradient") };
        decay.set(&(decay.as_tensor() - (by_decay * 2e-3)?)?)?;
        errors.push(error.to_scalar()?);
    }
    Ok((errors, decay.as_tensor().flatten_all()?.to_vec1::<f32>()?[0]))
}

fn main() -> Result<()> {
    let (errors, decay) = learned(200)?;
    println!("mean square error: {:.3} at first, {:.1e} at last; the decay is {decay:.4}", errors[0], errors[errors.len() - 1]);
    Ok(())
}

#[test]
fn it_learns() {
    let (errors, decay) = learned(20).unwrap();
    assert!(errors[19] < errors[0] && (decay - 0.8).abs() < 0.3, "{errors:?} {decay}");
}
