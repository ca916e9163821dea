//! `run` and `gradients`, whose results are tensors of their own, against the calls that write into memory that is there.

use crate::common::{self, Layout, Rng};
use statescan::ops::{causal_conv1d, gated_delta_rule, linear_scan, norm, selective_scan, simplified_scan, ssd};
use statescan::{DType, Exec, Tensor};

fn executors() -> Vec<Exec> {
    common::executors().into_iter().take(1).chain(common::device::gpu()).collect()
}

fn random(exec: &Exec, seed: u64, dtype: DType, shape: &[usize]) -> Tensor {
    common::device::on(exec, &common::uniform(&mut Rng::new(seed), dtype, shape, Layout::Dense, 0.05, 0.6))
}

fn same(name: &str, owned: &Tensor, written: &Tensor) {
    let [owned, written] = [owned, written].map(|tensor| common::device::home(tensor).to_dense());
    assert_eq!(owned.data(), written.data(), "{name}");
}

#[test]
fn results_and_gradients_are_those_of_written_ones() {
    for exec in executors() {
        let of = |seed, shape: &[usize]| random(&exec, seed, DType::F32, shape);
        let (x, dt, z) = (of(1, &[2, 6, 33]), of(2, &[2, 6, 33]), of(3, &[2, 6, 33]));
        let (a, map) = (of(4, &[6, 5]), of(5, &[2, 5, 33]));
        let args = selective_scan::Args::new(&x, &dt, &a, &map, &map).z(&z).dt_softplus(true);
        let results = selective_scan::run(&exec, &args).unwrap();
        let mut y = Tensor::like(&exec, &x.view()).unwrap();
        selective_scan::forward(&exec, &args, &mut selective_scan::Outputs::default().y(&mut y)).unwrap();
        same("y", &results.y, &y);
        assert_eq!(results.final_state.shape()[..], [2, 6, 5]);

        let cotangents = selective_scan::Cotangents::default().y(&z);
        let owned = selective_scan::gradients(&exec, &args, &cotangents).unwrap();
        let (mut da, mut dz) = (Tensor::like(&exec, &a.view()).unwrap(), Tensor::like(&exec, &z.view()).unwrap());
        let len = selective_scan::backward_workspace_len(&exec, &args, false).unwrap();
        let mut workspace = Tensor::zeros(&exec, DType::F32, &[len]).unwrap();
        let mut written = selective_scan::Gradients::default().a(&mut da).z(&mut dz).workspace(&mut workspace);
        selective_scan::backward(&exec, &args, None, &cotangents, &mut written).unwrap();
        same("gradient by A", &owned.a, &da);
        same("gradient by z", owned.z.as_ref().unwrap(), &dz);
        assert!(owned.d.is_none() && owned.dt_bias.is_none());
    }
}

#[test]
fn every_operation_has_them() {
    for exec in executors() {
        let of = |seed, shape: &[usize]| random(&exec, seed, DType::F32, shape);
        let heads = (of(1, &[1, 20, 2, 4]), of(2, &[1, 20, 2]), of(3, &[2]), of(4, &[1, 20, 8]));
        let args = ssd::Args::new(&heads.0, &heads.1, &heads.2, &heads.3, &heads.3);
        assert_eq!(ssd::run(&exec, &args).unwrap().final_state.shape()[..], [1, 2, 4, 8]);
        let by = ssd::gradients(&exec, &args, &ssd::Cotangents::default().y(&heads.0)).unwrap();
        assert_eq!(by.b.shape()[..], [1, 20, 8]);

        let (q, v) = (of(5, &[1, 20, 2, 8]), of(6, &[1, 20, 2, 4]));
        let args = gated_delta_rule::Args::new(&q, &q, &v);
        assert_eq!(gated_delta_rule::run(&exec, &args).unwrap().final_state.shape()[..], [1, 2, 8, 4]);
        gated_delta_rule::gradients(&exec, &args, &gated_delta_rule::Cotangents::default().y(&v)).unwrap();

        let (u, delta) = (of(7, &[1, 3, 20]), of(8, &[4]));
        let complex = |seed, shape: &[usize]| random(&exec, seed, DType::Complex64, shape);
        let (a, b, c, d) = (complex(9, &[4]), complex(10, &[4, 3]), complex(11, &[3, 4]), of(12, &[3]));
        let args = simplified_scan::Args::inner((&u).into(), (&delta).into(), (&a).into(), (&b).into(), (&c).into(), (&d).into());
        assert_eq!(simplified_scan::run(&exec, &args).unwrap().y.dtype(), DType::F32);
        let by = simplified_scan::gradients(&exec, &args, &simplified_scan::Cotangents::default().y(&u)).unwrap();
        assert_eq!(by.a.dtype(), DType::Complex64);

        let args = linear_scan::Args::new(&u, &u);
        assert_eq!(linear_scan::run(&exec, &args).unwrap().h.shape()[..], [1, 3, 20]);
        linear_scan::gradients(&exec, &args, &linear_scan::Cotangents::default().h(&u)).unwrap();

        let weight = of(13, &[3, 4]);
        let args = causal_conv1d::Args::new(&u, &weight);
        assert_eq!(causal_conv1d::run(&exec, &args).unwrap().final_states.shape()[..], [1, 3, 3]);
        causal_conv1d::gradients(&exec, &args, &causal_conv1d::Cotangents::default().y(&u)).unwrap();

        let args = norm::Args::new(&u).residual(&u);
        same("sum", &norm::run(&exec, &args).unwrap().sum, &{
            let doubled: Vec<f32> = u.to_vec::<f32>().unwrap().iter().map(|x| x + x).collect();
            Tensor::from_slice(&exec, &doubled, &[1, 3, 20]).unwrap()
        });
        norm::gradients(&exec, &args, &norm::Cotangents::default().y(&u)).unwrap();
    }
}
