//! Peak memory of forward and backward, counted by the allocator.

use statescan::ops::selective_scan::{self, Args, Cotangents, Gradients, Outputs};
use statescan::{DType, Exec, Tensor};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counting.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every request is passed on unchanged; counting has no effect on it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn tensor(shape: &[usize], value: f64) -> Tensor {
    let mut buffer = Tensor::host(DType::F32, shape).unwrap();
    let mut i = 0u32;
    buffer.fill_with(|| {
        i = i.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (value * f64::from(i >> 8) / f64::from(1u32 << 24)).into()
    });
    buffer
}

/// (batch, dim, seqlen, dstate) of a 130M Mamba layer over 8192 tokens: nothing of the size of (B, L, D, N) may exist.
#[test]
fn forward_and_backward_stay_near_the_tensors_of_the_call() {
    let (b, d, l, n) = (1, 1536, 8192, 16);
    let (x, dt, a) = (tensor(&[b, d, l], 1.0), tensor(&[b, d, l], 0.1), tensor(&[d, n], -1.0));
    let (bb, c, dy) = (tensor(&[b, n, l], 1.0), tensor(&[b, n, l], 1.0), tensor(&[b, d, l], 1.0));
    let args = Args::new(x.view(), dt.view(), a.view(), bb.view(), c.view());
    let zeros = |like: &Tensor| Tensor::host(DType::F32, &like.shape()).unwrap();
    let [mut y, mut dx, mut ddt, mut da, mut db, mut dc] = [&x, &x, &dt, &a, &bb, &c].map(zeros);
    let mut saved = Tensor::host(DType::F32, &[selective_scan::checkpoints_len(&args).unwrap()]).unwrap();
    assert!(saved.shape()[0] <= d * n * l.div_ceil(64), "at most one state for each 64 steps and channel");
    let tensors = LIVE.load(Ordering::Relaxed);
    PEAK.store(tensors, Ordering::Relaxed);
    for threads in [1, 2] {
        let exec = Exec::cpu(threads);
        let mut out = Outputs::default().y(y.view_mut()).checkpoints(saved.view_mut());
        selective_scan::forward(&exec, &args, &mut out).unwrap();
        let mut grads =
            Gradients::default().x(dx.view_mut()).dt(ddt.view_mut()).a(da.view_mut()).b(db.view_mut()).c(dc.view_mut());
        let cotangents = Cotangents::default().y(dy.view());
        selective_scan::backward(&exec, &args, Some(saved.view()), &cotangents, &mut grads).unwrap();
    }
    let peak = PEAK.load(Ordering::Relaxed);
    let ratio = peak as f64 / tensors as f64;
    println!("peak {:.1} MB, tensors {:.1} MB, ratio {ratio:.3}", peak as f64 / 1e6, tensors as f64 / 1e6);
    assert!(ratio <= 1.3, "peak {peak} bytes is {ratio:.3} times the tensors' {tensors}");
}
