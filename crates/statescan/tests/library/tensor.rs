//! Owned tensors: what goes in comes out, on the host and on a GPU.

use crate::common::device::gpu;
use crate::common::{Layout, Rng, normal};
use half::{bf16, f16};
use num_complex::Complex;
use statescan::ops::linear_scan::{self, Args, Outputs};
use statescan::tensor::{Dense, Element, Workspace};
use statescan::{DType, Device, Error, Exec, Tensor, View};

const ALL: [DType; 8] =
    [DType::F32, DType::F64, DType::BF16, DType::F16, DType::Complex64, DType::Complex128, DType::I32, DType::I64];

/// One executor of each device.
fn devices() -> impl Iterator<Item = Exec> {
    [Exec::cpu(1)].into_iter().chain(gpu())
}

#[test]
fn zeros_are_zero_everywhere() {
    for exec in devices() {
        for dtype in ALL {
            for shape in [&[][..], &[5], &[2, 3, 7], &[1000, 1001], &[3, 0, 2]] {
                let tensor = Tensor::zeros(&exec, dtype, shape).unwrap();
                assert_eq!((tensor.dtype(), &tensor.shape()[..], tensor.device()), (dtype, shape, exec.device()));
                let view = tensor.view();
                assert_eq!(
                    (view.device(), view.shape(), view.strides()),
                    (exec.device(), tensor.shape(), view.shape().row_major())
                );
                assert!(tensor.to_host().unwrap().bytes().iter().all(|&byte| byte == 0));
            }
        }
    }
}

#[test]
fn empty_tensors_show_what_was_not_written() {
    for exec in devices() {
        let tensor = Tensor::empty(&exec, DType::F32, &[3, 4]).unwrap();
        let values = tensor.to_vec::<f32>().unwrap();
        assert_eq!(values.len(), 12);
        assert!(!cfg!(debug_assertions) || values.iter().all(|value| value.is_nan()));
        let like = Tensor::like(&exec, &Tensor::host(DType::BF16, &[2, 5]).unwrap().view()).unwrap();
        assert_eq!((like.dtype(), &like.shape()[..], like.device()), (DType::BF16, &[2, 5][..], exec.device()));
    }
}

fn round_trip<T: Element + PartialEq + core::fmt::Debug>(values: &[T]) {
    for exec in devices() {
        let tensor = Tensor::from_slice(&exec, values, &[values.len() / 2, 2]).unwrap();
        assert_eq!((tensor.dtype(), tensor.device()), (T::DTYPE, exec.device()));
        assert_eq!(tensor.to_vec::<T>().unwrap(), values);
        assert_eq!(tensor.clone().to_vec::<T>().unwrap(), values);
    }
}

#[test]
fn slices_come_back_as_they_were() {
    round_trip(&[1.5f32, -2.0, 0.0, 3e38]);
    round_trip(&[1.5f64, -2.0, 1e300, 4.0]);
    round_trip(&[1.5, -2.0, 0.25, 64.0].map(bf16::from_f64));
    round_trip(&[1.5, -2.0, 0.25, 64.0].map(f16::from_f64));
    round_trip(&[Complex::new(1f32, 2.0), Complex::new(-3.0, 4.5)]);
    round_trip(&[Complex::new(1f64, 2.0), Complex::new(-3.0, 4.5)]);
    round_trip(&[1i32, i32::MIN, i32::MAX, 0]);
    round_trip(&[1i64, i64::MIN, i64::MAX, 0]);
    round_trip::<f32>(&[]);
}

#[test]
fn the_first_elements_are_written_in_place() {
    for exec in devices() {
        let mut tensor = Tensor::from_slice(&exec, &[1i32, 2, 3, 4, 5, 6], &[2, 3]).unwrap();
        let place = tensor.view().as_ptr();
        tensor.write(&[7i32, 8, 9, 10]).unwrap();
        tensor.write::<i32>(&[]).unwrap();
        assert_eq!(tensor.to_vec::<i32>().unwrap(), [7, 8, 9, 10, 5, 6]);
        assert_eq!(tensor.view().as_ptr(), place);
        assert!(matches!(tensor.write(&[1f32]), Err(Error::DType { got: DType::I32, .. })));
        assert!(matches!(tensor.write(&[0i32; 7]), Err(Error::Bounds { available: 6, .. })));
        assert_eq!(tensor.to_vec::<i32>().unwrap(), [7, 8, 9, 10, 5, 6]);
    }
    let mut apart = Tensor::strided(DType::I32, &[2, 2], &[4, 1], 0, 8).unwrap();
    assert!(matches!(apart.write(&[1i32]), Err(Error::Presence { argument: "tensor", .. })));
}

#[test]
fn views_become_dense_and_tensors_keep_their_strides() {
    let rng = &mut Rng::new(1);
    for exec in devices() {
        for dtype in ALL {
            for layout in [Layout::Dense, Layout::Scattered] {
                let host = normal(rng, dtype, &[3, 4, 5], layout, 10.0);
                let dense = Tensor::from_host(&exec, &host.view()).unwrap();
                assert_eq!(dense.view().strides(), dense.shape().row_major());
                assert_eq!(dense.to_host().unwrap().to_dense(), host.to_dense());
                // turned round, every other index, repeated
                let odd = host.view().permute(&[2, 0, 1]).flip(1).slice(2, 1..3).expand(0, 2);
                let copy = Tensor::from_host(&exec, &odd).unwrap();
                assert_eq!(copy.to_host().unwrap().to_dense(), Dense::from_view(&odd));
                let same = host.to(&exec).unwrap();
                assert_eq!((same.device(), same.view().strides()), (exec.device(), host.view().strides()));
                assert_eq!(same.to(&exec).unwrap().clone().to_host().unwrap().bytes(), host.bytes());
            }
        }
    }
}

#[test]
fn elements_are_in_row_major_order_whatever_the_strides() {
    for exec in devices() {
        let mut tensor = Tensor::strided(DType::I32, &[2, 3], &[-1, 2], 1, 7).unwrap();
        let mut next = 0;
        tensor.fill_with(|| {
            next += 1;
            f64::from(next).into()
        });
        assert_eq!(bytemuck::cast_slice::<u8, i32>(tensor.bytes())[..7], [4, 1, 5, 2, 6, 3, 0]);
        assert_eq!(tensor.to(&exec).unwrap().to_vec::<i32>().unwrap(), [1, 2, 3, 4, 5, 6]);
    }
}

#[test]
fn wrong_requests_are_named() {
    for exec in devices() {
        let zeros = |shape: &[usize]| Tensor::zeros(&exec, DType::F64, shape).map(drop);
        assert!(matches!(zeros(&[usize::MAX, 3]), Err(Error::Bounds { .. })));
        assert!(matches!(zeros(&[isize::MAX as usize / 8]), Err(Error::Bounds { .. })));
        assert!(matches!(zeros(&[1; 7]), Err(Error::TooManyAxes { .. })));
        assert!(matches!(Tensor::from_slice(&exec, &[1f32; 5], &[2, 3]), Err(Error::Bounds { available: 5, .. })));
        let broadcast = View::strided(&[1f32], 0, &[1 << 40, 1 << 22], &[0, 0]).unwrap();
        assert!(matches!(Tensor::from_host(&exec, &broadcast), Err(Error::Bounds { .. })));
        let tensor = Tensor::zeros(&exec, DType::F32, &[2]).unwrap();
        assert!(matches!(tensor.to_vec::<i32>(), Err(Error::DType { op: "to_vec", got: DType::F32, .. })));
        // SAFETY: never read, the device is refused first.
        let elsewhere = unsafe { View::from_raw_parts(core::ptr::dangling(), DType::F32, Device::Cuda(9), &[2], &[1]) };
        let error = Tensor::from_host(&exec, &elsewhere.unwrap()).err();
        assert!(matches!(error, Some(Error::Device { op: "from_host", got: Device::Cuda(9), .. })), "{error:?}");
    }
    assert!(matches!(Tensor::strided(DType::F32, &[2, 3], &[3, 1], 0, 5), Err(Error::Bounds { .. })));
    assert!(matches!(Tensor::strided(DType::F32, &[2, 3], &[3], 0, 6), Err(Error::Bounds { .. })));
}

#[test]
fn bytes_of_a_gpu_cannot_be_read_in_place() {
    let Some(exec) = gpu() else { return };
    let one = Tensor::zeros(&exec, DType::F32, &[1]).unwrap();
    assert_eq!(one.to_vec::<f32>().unwrap(), [0.0]);
    let elements = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| one.bytes().len()));
    assert!(elements.is_err(), "bytes of a GPU cannot be read");
}

#[test]
fn a_workspace_grows_and_keeps_its_memory() {
    for exec in devices() {
        let mut workspace = Workspace::default();
        let mut address = |len| {
            let mut view = workspace.view_mut(&exec, len).unwrap();
            assert_eq!((view.dtype(), &view.shape()[..], view.as_view().device()), (DType::F32, &[len][..], exec.device()));
            view.as_mut_ptr()
        };
        address(0);
        let first = address(100);
        assert!(address(7) == first && address(100) == first);
        let second = address(1 << 20);
        assert!(address(100) == second && address(1 << 20) == second);
    }
    // and follows the executor
    let mut workspace = Workspace::default();
    for exec in devices().chain(devices()) {
        assert_eq!(workspace.view_mut(&exec, 5).unwrap().as_view().device(), exec.device());
    }
}

/// Long rows of few channels, which a GPU cuts where it has a workspace: results are those of a call of its own each time.
#[test]
fn a_workspace_serves_one_call_after_the_other() {
    for exec in devices() {
        let mut workspace = Workspace::default();
        for length in [20_000, 3000, 40_000] {
            let rng = &mut Rng::new(length as u64);
            let decay: Vec<f32> = (0..length).map(|_| rng.uniform(0.9, 1.0) as f32).collect();
            let (a, b) =
                (Tensor::from_slice(&exec, &decay, &[length]), Tensor::from_slice(&exec, &vec![1f32; length], &[length]));
            let (a, b) = (a.unwrap(), b.unwrap());
            let args = Args::new(a.view(), b.view());
            let run = |scratch| {
                let mut h = Tensor::like(&exec, &b.view()).unwrap();
                let mut out = Outputs::default().h(h.view_mut()).workspace(scratch);
                linear_scan::forward(&exec, &args, &mut out).unwrap();
                h.to_vec::<f32>().unwrap()
            };
            let len = linear_scan::workspace_len(&exec, &args).unwrap();
            let mut fresh = Tensor::empty(&exec, DType::F32, &[len]).unwrap();
            let expected = run(Some(fresh.view_mut()));
            assert_eq!(run(Some(workspace.view_mut(&exec, len).unwrap())), expected);
            assert!(expected.iter().all(|value| value.is_finite()));
        }
    }
}
