//! The CUDA kernel against the oracle, by the same body as the CPU's. Without a GPU the test says so and passes.

use super::common::device::gpu;
use super::*;

#[test]
fn cuda_agrees_with_the_oracle() {
    let Some(exec) = gpu() else { return };
    let mut rng = Rng::new(1);
    for size in [[1, 1, 1], [2, 5, 7], [1, 64, 33], [70, 3, 16], [3, 130, 65], [0, 3, 4], [2, 0, 4], [2, 3, 0]] {
        let cases = core::iter::from_fn(|| Some(Case::random(&mut rng, size))).filter(|case| !case.u.dtype().is_double());
        for case in cases.take(8).collect::<Vec<_>>() {
            case.check(&exec, &mut rng);
            let [first, second] = [5, 5].map(|seed| case.update(&exec, &mut Rng::new(seed)));
            assert!(first.0.bytes() == second.0.bytes() && first.1.bytes() == second.1.bytes(), "two runs differ");
        }
    }
}
