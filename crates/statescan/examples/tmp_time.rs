//! timing
use statescan::ops::selective_scan::{self, *};
use statescan::tensor::Buffer;
use statescan::{DType, Exec};
use std::time::Instant;
fn main() {
    let back = std::env::args().any(|a| a == "back");
    let only: usize = std::env::args().nth(1).and_then(|v| v.parse().ok()).unwrap_or(0);
    for (i, (b, d, l, n)) in [(1usize, 1536usize, 1024usize, 16usize), (8, 768, 512, 16), (1, 1536, 1024, 64), (1, 1536, 1024, 3)]
        .into_iter()
        .enumerate()
    {
        if only > 0 && only != i + 1 {
            continue;
        }
        for opt in [false, true] {
            let mk = |shape: &[usize], lo: f64, hi: f64| {
                let mut x = Buffer::zeros(DType::F32, shape).unwrap();
                let mut s = 12345u64;
                x.fill_with(|| {
                    s = s.wrapping_mul(6364136223846793005).wrapping_add(1);
                    (lo + (hi - lo) * ((s >> 40) as f64 / (1u64 << 24) as f64)).into()
                });
                x
            };
            let (x, dt, a, bb, c) = (
                mk(&[b, d, l], -1., 1.),
                mk(&[b, d, l], 0.001, 0.1),
                mk(&[d, n], -16., -1.),
                mk(&[b, n, l], -1., 1.),
                mk(&[b, n, l], -1., 1.),
            );
            let (z, bias, sk) = (mk(&[b, d, l], -1., 1.), mk(&[d], -1., 1.), mk(&[d], -1., 1.));
            let mut args = Args::new(x.view(), dt.view(), a.view(), bb.view(), c.view());
            if opt {
                args.z = Some(z.view());
                args.dt_bias = Some(bias.view());
                args.dt_softplus = true;
                args.d = Some(sk.view());
            }
            let mut y = Buffer::zeros(DType::F32, &[b, d, l]).unwrap();
            let mut sv = Buffer::zeros(DType::F32, &[checkpoints_len(&args).unwrap()]).unwrap();
            for threads in [1, 2] {
                let exec = Exec::cpu(threads);
                let mut best = f64::MAX;
                let mut bestb = f64::MAX;
                for _ in 0..5 {
                    let t = Instant::now();
                    selective_scan::forward(
                        &exec,
                        &args,
                        &mut Outputs { y: Some(y.view_mut()), checkpoints: Some(sv.view_mut()), ..Default::default() },
                    )
                    .unwrap();
                    best = best.min(t.elapsed().as_secs_f64());
                }
                if back {
                    let mut g: Vec<Buffer> = vec![
                        mk(&[b, d, l], 0., 0.),
                        mk(&[b, d, l], 0., 0.),
                        mk(&[d, n], 0., 0.),
                        mk(&[b, n, l], 0., 0.),
                        mk(&[b, n, l], 0., 0.),
                    ];
                    for _ in 0..3 {
                        let t = Instant::now();
                        let [gx, gdt, ga, gb, gc] = &mut g[..] else { panic!() };
                        let mut grads = Gradients {
                            x: Some(gx.view_mut()),
                            dt: Some(gdt.view_mut()),
                            a: Some(ga.view_mut()),
                            b: Some(gb.view_mut()),
                            c: Some(gc.view_mut()),
                            ..Default::default()
                        };
                        selective_scan::backward(
                            &exec,
                            &args,
                            Some(sv.view()),
                            &Cotangents { y: Some(x.view()), final_state: None },
                            &mut grads,
                        )
                        .unwrap();
                        bestb = bestb.min(t.elapsed().as_secs_f64());
                    }
                }
                let e = (b * d * l * n) as f64;
                println!(
                    "{:?} opt {opt} threads {threads}: fwd {:.3} bwd {:.3} ns/state-step",
                    (b, d, l, n),
                    best * 1e9 / e,
                    bestb * 1e9 / e
                );
            }
        }
    }
}
