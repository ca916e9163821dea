//! Options that are none, what is saved, memory that overlaps.

use super::*;
use crate::common::{Layout, broadcast};
use statescan::{Error, ViewMut};

#[test]
fn chunk_size_changes_nothing() {
    let case = Case::new(DType::F32, [1, 100, 4, 8, 1, 6], INITIAL);
    let inputs = Inputs::new(&case);
    let expected = run_forward(&case, &inputs, &Exec::cpu(1), true).unwrap();
    for chunk_size in [1, 5, 1000] {
        let args = inputs.args(&case).chunk_size(chunk_size);
        let mut y = Tensor::host(DType::F32, &inputs.x.shape()).unwrap();
        ssd::forward(&Exec::cpu(1), &args, &mut Outputs::default().y(y.view_mut())).unwrap();
        assert_eq!(y.bytes(), expected.y.bytes());
    }
}

#[test]
fn options_that_are_none_and_what_is_not_given_are_named() {
    let case = Case::new(DType::F32, [1, 70, 2, 3, 1, 5], INITIAL);
    let inputs = Inputs::new(&case);
    let (args, exec) = (inputs.args(&case), Exec::cpu(1));
    let fails = |args: &Args<'_>| ssd::forward(&exec, args, &mut Outputs::default()).unwrap_err();
    assert!(matches!(fails(&args.dt_limit((1.0, 0.0))), Error::Limits { argument: "dt_limit", .. }));
    assert!(matches!(fails(&args.dt_limit((f64::NAN, 0.0))), Error::Limits { argument: "dt_limit", .. }));
    assert!(matches!(fails(&args.chunk_size(0)), Error::Value { argument: "chunk_size", .. }));
    let mut memory = vec![0f32; 4000];
    let len = ssd::checkpoints_len(&args).unwrap();
    assert_eq!(len, 2 * 3 * 5);
    let saved = ViewMut::strided(&mut memory, 0, &[len], &[2]).unwrap();
    let error = ssd::forward(&exec, &args, &mut Outputs::default().checkpoints(saved)).unwrap_err();
    assert!(matches!(error, Error::Presence { argument: "checkpoints", .. }), "{error}");
    let one = [0.5f32];
    let [wide, steps, flat] = [&[1, 1 << 36, 1, 1][..], &[1, 1 << 36, 1], &[1]].map(|shape| broadcast(&one, shape));
    assert_eq!(ssd::checkpoints_len(&Args::new(wide, steps, flat, wide, wide)), Ok((1 << 30) - 1));
}

#[test]
fn a_result_over_an_argument_is_refused() {
    let case = Case::new(DType::F32, [1, 70, 2, 3, 1, 5], INITIAL);
    let inputs = Inputs::new(&case);
    let shape = inputs.x.shape();
    let mut same = poisoned(&mut Rng::new(1), DType::F32, &shape, Layout::Dense);
    // SAFETY: nothing is written, since the call refuses.
    let twice = unsafe {
        ViewMut::from_raw_parts(same.view_mut().as_mut_ptr(), DType::F32, statescan::Device::Cpu, &shape, &[420, 6, 3, 1])
    };
    let over = inputs.args(&case).x(same.view());
    let error = ssd::forward(&Exec::cpu(1), &over, &mut Outputs::default().y(twice.unwrap())).unwrap_err();
    assert!(matches!(error, Error::Overlap { argument: "y", other: "x", .. }), "{error}");
}
