//! Wall time of every pass on one thread, by criterion: `cargo bench --bench time -p statescan-benches --features criterion`, with `-- --quick` for a first look and a name to
//! choose. Whole models' shapes are what `statescan bench` is for.

#![allow(missing_docs)] // criterion's macros make public functions

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use statescan::Exec;

fn passes(criterion: &mut Criterion) {
    let exec = Exec::cpu(1);
    for case in statescan_benches::all() {
        let mut group = criterion.benchmark_group(case.op());
        group.throughput(Throughput::Elements(case.state_steps()));
        case.verify(&exec).expect("arguments that the operation takes");
        group.bench_function(case.pass(), |bencher| {
            let mut prepared = case.prepare(&exec).expect("arguments that the operation takes");
            bencher.iter(|| prepared.run(&exec));
        });
        group.finish();
    }
}

criterion_group!(benches, passes);
criterion_main!(benches);
