//! The targets on an H200, and how they are measured there: kernel time alone, from graphs of launches.

use super::list::{Measure, Run, Target};
use super::outcome::{Outcome, Round};
use super::variation::{Layout, Variation};

use statescan::cuda::Ceilings;
use statescan::{DType, Exec};
use statescan_cases::Result;
use statescan_cases::measure::device::{self, repeated};
use statescan_cases::measure::turns::Turn;
use statescan_cases::ops;
use statescan_cases::samples;
use statescan_cases::work;
use std::collections::HashMap;

/// Every target.
pub(super) fn all() -> Vec<Target> {
    let on = |op, sizes: &[(char, usize)]| Run { cuda: true, ..Run::forward(op, sizes) };
    let mamba = |[batch, dim, seqlen, dstate]: [usize; 4]| {
        on("selective_scan", &[('B', batch), ('D', dim), ('L', seqlen), ('N', dstate)]).with(Variation::Bare)
    };

    let mut all = Vec::new();
    for (shape, forward, backward) in [
        ([8, 2048, 2048, 16], (180.0, 140.0), (600.0, 380.0)),
        ([1, 5120, 4096, 16], (140.0, 100.0), (400.0, 260.0)),
        ([1, 1536, 65536, 16], (650.0, 480.0), (1900.0, 1200.0)),
        ([64, 2048, 512, 16], (340.0, 285.0), (1050.0, 650.0)),
    ] {
        let (wide, run) = (mamba(shape), mamba(shape).stored_as(DType::BF16));
        all.push(micros(&run, forward.0, Some(forward.1)));
        all.push(ratio(&wide, "of bf16", &run, 1.15, Some(1.05)));
        all.push(ratio(&run.with(Variation::Plain), "without gate, bias, softplus", &run, 1.15, Some(1.1)));
        all.push(micros(&run.backward(), backward.0, Some(backward.1)));
    }
    for shape in [[1, 1536, 256, 16], [2, 192, 100, 16]] {
        all.push(micros(&mamba(shape), 12.0, Some(6.0)));
    }
    all.extend(selective_scans_of_models());
    for dstate in [64, 128] {
        let run = |dstate| mamba([2, 2048, 2048, dstate]).stored_as(DType::BF16);
        all.push(ratio(&run(dstate), "of N = 16", &run(16), 1.0, None));
    }
    // states in f32, inputs and outputs in bf16; the last ones are at nine tenths of the rate of copying the states alone
    for (batch, must, aim) in [(1, 4.0, None), (64, 14.0, Some(11.0)), (512, 90.0, Some(88.0))] {
        let step = on("selective_state_update", &[('B', batch), ('D', 5120), ('N', 16)]);
        all.push(micros(&step.stored_as(DType::BF16), must, aim));
    }
    let ssd = |[batch, seqlen, heads, headdim, groups, dstate]: [usize; 6]| {
        let sizes = [('B', batch), ('L', seqlen), ('H', heads), ('P', headdim), ('G', groups), ('N', dstate)];
        on("ssd", &sizes).with(Variation::Bare).stored_as(DType::BF16)
    };
    for (shape, forward, backward) in [
        ([8, 2048, 80, 64, 1, 128], (170.0, 115.0), (640.0, 420.0)),
        ([1, 8192, 80, 64, 1, 128], (125.0, 85.0), (480.0, 280.0)),
        ([1, 65536, 24, 64, 1, 128], (260.0, 190.0), (880.0, 600.0)),
        ([8, 4096, 128, 64, 8, 128], (450.0, 380.0), (2100.0, 1300.0)),
    ] {
        all.push(micros(&ssd(shape), forward.0, Some(forward.1)));
        all.push(micros(&ssd(shape).backward(), backward.0, Some(backward.1)));
    }
    let run = ssd([8, 2048, 80, 64, 1, 128]);
    let whole = "without gate, bias, softplus";
    all.push(ratio(&run.with(Variation::Plain), whole, &run, 1.12, None));
    all.push(ratio(&run.with(Variation::Plain).backward(), whole, &run.backward(), 1.2, None));
    for (seqlen, other) in [(2047, 2048), (2049, 2112), (1000, 1024)] {
        let of = |seqlen| ssd([8, seqlen, 80, 64, 1, 128]);
        all.push(ratio(&of(seqlen), "of the next multiple of 64", &of(other), 1.1, None));
    }
    all.push(ratio(&ssd([8, 2048, 80, 80, 1, 128]), "of P = 64", &run, 1.5, None));
    all.push(ratio(&ssd([8, 2048, 80, 64, 1, 256]), "of N = 128", &run, 1.5, None));
    for shape in [[1, 256, 24, 64, 1, 128], [2, 100, 24, 64, 1, 128]] {
        all.push(micros(&ssd(shape), 15.0, None));
        all.push(micros(&ssd(shape).backward(), 40.0, None));
    }
    all.extend(ssd_of_models());
    all.push(ratio(&run.stored_as(DType::F32), "of bf16", &run, 3.5, None));
    all.push(ratio(&run.stored_as(DType::F32).in_tf32(), "of bf16", &run, 1.5, None));
    let filter = on("causal_conv1d", &[('B', 8), ('D', 2048), ('L', 2048), ('W', 4)]).stored_as(DType::BF16);
    all.push(micros(&filter, 40.0, Some(37.0)));
    all.push(micros(&filter.backward(), 110.0, Some(56.0)));
    for run in [&filter, &filter.backward()] {
        all.push(ratio(&run.with(Variation::Large), "of usual inputs", run, 1.05, None));
    }
    let linear = on("linear_scan", &[('B', 8), ('D', 1536), ('L', 16384)]);
    all.push(target(&linear, Measure::ShareOfCopy, 0.80, Some(0.90)));
    for (sizes, forward, backward, tf32, scan) in [
        ([8, 512, 256, 4096], (680.0, 450.0), (1700.0, 1100.0), [480.0, 1200.0], 70.0),
        ([1, 256, 128, 65536], (500.0, 330.0), (1300.0, 850.0), [400.0, 1050.0], 80.0),
        ([32, 256, 128, 1024], (260.0, 170.0), (650.0, 430.0), [210.0, 520.0], 35.0),
    ] {
        let [batch, dim, dstate, seqlen] = sizes;
        let of = |op| on(op, &[('B', batch), ('H', dim), ('P', dstate), ('L', seqlen)]);
        let (layer, inner) = (of("simplified_scan").with(Variation::Complex), of("s5_inner"));
        all.push(micros(&layer, forward.0, Some(forward.1)));
        all.push(micros(&layer.backward(), backward.0, Some(backward.1)));
        all.push(micros(&layer.in_tf32(), tf32[0], None));
        all.push(micros(&layer.in_tf32().backward(), tf32[1], None));
        all.push(micros(&layer.kernel("simplified_scan"), scan, None));
        let plain = layer.with(Variation::Plain);
        for run in [&plain, &plain.backward()] {
            all.push(ratio(&run.with(Variation::Strong), "with decays as initialised", run, 1.05, None));
        }
        all.push(ratio(&inner, "of the complex operation", &layer, 0.6, None));
        all.push(ratio(&inner.backward(), "of the complex operation", &layer.backward(), 0.6, None));
    }
    all
}

fn target(run: &Run, measure: Measure, must: f64, aim: Option<f64>) -> Target {
    Target { run: run.clone(), measure, must, aim }
}
fn micros(run: &Run, must: f64, aim: Option<f64>) -> Target {
    target(run, Measure::Micros, must, aim)
}
fn ratio(run: &Run, of: &'static str, other: &Run, must: f64, aim: Option<f64>) -> Target {
    target(run, Measure::Ratio(of, other.clone()), must, aim)
}

/// Selective scans as models call them: with every option, of any length, in any layout, short, packed.
fn selective_scans_of_models() -> Vec<Target> {
    let wide = |[batch, dim, seqlen]: [usize; 3]| {
        let sizes = [('B', batch), ('D', dim), ('L', seqlen), ('N', 16)];
        Run { cuda: true, ..Run::forward("selective_scan", &sizes) }
    };
    let run = |shape| wide(shape).stored_as(DType::BF16);
    let mut all = Vec::new();
    for (shape, of_bf16, of_f32) in [
        ([8, 2048, 2048], 850.0, Some(1000.0)),
        ([1, 5120, 4096], 650.0, Some(780.0)),
        ([1, 1536, 65536], 3000.0, None),
        ([64, 2048, 512], 1650.0, None),
    ] {
        let (wide, run) = (wide(shape).backward(), run(shape).backward());
        all.push(micros(&run, of_bf16, None));
        all.push(ratio(&run, "without gate, bias, softplus", &run.with(Variation::Bare), 1.2, None));
        all.extend(of_f32.map(|must| micros(&wide, must, None)));
    }
    for (seqlen, other) in [(2047, 2048), (2049, 2064), (1001, 1008), (333, 336)] {
        for of in [&run as &dyn Fn([usize; 3]) -> Run, &wide] {
            let (odd, even) = (of([8, 2048, seqlen]), of([8, 2048, other]));
            all.push(ratio(&odd, "of the next multiple of 16", &even, 1.15, None));
            all.push(ratio(&odd.backward(), "of the next multiple of 16", &even.backward(), 1.15, None));
        }
    }
    all.push(micros(&run([2, 1536, 333]), 30.0, None));
    all.push(micros(&run([2, 1536, 333]).backward(), 110.0, None));
    for run in [run([8, 2048, 2048]), run([8, 2048, 2048]).backward(), wide([8, 2048, 2048])] {
        all.push(ratio(&run.with(Variation::Strong), "with decays as initialised", &run, 1.05, None));
    }
    for layout in [Layout::Sliced, Layout::StepsFirst] {
        let run = run([1, 5120, 4096]);
        for run in [&run, &run.backward()] {
            all.push(ratio(&run.laid_out(layout), "of dense rows", run, 1.15, None));
        }
    }
    for shape in [[1, 1536, 1], [1, 1536, 16], [1, 1536, 64], [1, 1536, 256], [1, 768, 64]] {
        all.push(micros(&run(shape), 8.0, None));
        all.push(micros(&run(shape).backward(), 25.0, None));
    }
    for (variation, must) in [(Variation::Complex, 4.5), (Variation::Zoh, 2.5), (Variation::ComplexZoh, 12.0)] {
        let run = wide([8, 2048, 2048]);
        for run in [&run, &run.backward()] {
            all.push(ratio(&run.with(variation), "of the real scan", run, must, None));
        }
    }
    for variation in [Variation::Packed, Variation::Indexed] {
        let run = run([1, 5120, 4096]);
        for run in [&run, &run.backward()] {
            all.push(ratio(&run.with(variation), "of one sequence", run, 1.15, None));
        }
    }
    all
}

/// SSD as models call it, with every option: for three kinds of decays, few heads, and short rows.
fn ssd_of_models() -> Vec<Target> {
    let run = |[batch, seqlen, heads, headdim, groups, dstate]: [usize; 6]| {
        let sizes = [('B', batch), ('L', seqlen), ('H', heads), ('P', headdim), ('G', groups), ('N', dstate)];
        Run { cuda: true, ..Run::forward("ssd", &sizes) }.stored_as(DType::BF16)
    };
    let mut all = Vec::new();
    for (shape, forward, backward) in [
        ([8, 2048, 80, 64, 1, 128], (310.0, 250.0), (1300.0, 1050.0)),
        ([1, 8192, 80, 64, 1, 128], (215.0, 160.0), (800.0, 600.0)),
        ([1, 65536, 24, 64, 1, 128], (400.0, 320.0), (1800.0, 1400.0)),
        ([8, 4096, 128, 64, 8, 128], (850.0, 700.0), (4000.0, 3200.0)),
        ([4, 2048, 24, 64, 1, 128], (75.0, 55.0), (250.0, 200.0)),
        ([2, 333, 24, 64, 1, 128], (22.0, 16.0), (60.0, 45.0)),
        ([1, 32, 80, 64, 1, 128], (13.0, 9.0), (40.0, 30.0)),
        ([2, 2048, 128, 64, 8, 256], (230.0, 190.0), (1250.0, 1000.0)),
    ] {
        let run = run(shape);
        for (run, (must, aim), strong) in [(run.clone(), forward, 1.35), (run.backward(), backward, 1.25)] {
            all.push(micros(&run, must, Some(aim)));
            for (variation, must) in [(Variation::Trained, 1.1), (Variation::Strong, strong)] {
                all.push(ratio(&run.with(variation), "with decays as initialised", &run, must, None));
            }
        }
    }
    // the kernels on `mma.sync`
    let run = run([4, 2048, 24, 64, 1, 128]);
    for run in [run.stored_as(DType::F16), run.stored_as(DType::F32), run.stored_as(DType::F32).in_tf32()] {
        for run in [&run, &run.backward()] {
            all.push(ratio(&run.with(Variation::Strong), "with decays as initialised", run, 1.1, None));
        }
    }
    all
}

/// A GPU, what it can do, and what was measured on it before: targets have runs in common.
pub(super) struct Bench {
    exec: Exec,
    ceilings: Ceilings,
    known: HashMap<String, (f64, usize)>,
}

impl Bench {
    pub fn new(ordinal: usize) -> Result<Self> {
        let exec = Exec::cuda(ordinal)?;
        let ceilings = Ceilings::measure(&exec)?;
        Ok(Bench { exec, ceilings, known: HashMap::new() })
    }

    /// What the device can do at most, in words.
    pub fn rates(&self) -> String {
        device::rates(&self.exec, &self.ceilings)
    }

    /// Measures a target.
    pub fn measure(&mut self, target: &Target) -> Result<Round> {
        self.figure(target).or_else(|error| device::missing(&error).map(Outcome::NotHere).ok_or(error))
    }

    fn figure(&mut self, target: &Target) -> Result<Round> {
        let (time, bytes) = match self.timed(&target.run)? {
            Ok(timed) => timed,
            Err(wrong) => return Ok(wrong),
        };
        let figure = match &target.measure {
            Measure::Micros => time / 1e3,
            Measure::Time => time / state_steps(&target.run)?,
            Measure::ShareOfCopy => bytes as f64 / time / self.ceilings.bytes,
            Measure::Ratio(_, other) | Measure::Speedup(_, other) => {
                let reference = match self.timed(other)? {
                    Ok((time, _)) => time,
                    Err(wrong) => return Ok(wrong),
                };
                let ratio = (time / state_steps(&target.run)?) / (reference / state_steps(other)?);
                if matches!(target.measure, Measure::Speedup(..)) { 1.0 / ratio } else { ratio }
            }
            Measure::ShareOfProducts => return Ok(Outcome::NotHere("no library of matrix products to compare with")),
        };
        Ok(Outcome::Measured(vec![Turn::alone(figure)]))
    }

    /// Nanoseconds and bytes of a run whose results are right. Numbers are drawn for one row of the batch.
    fn timed(&mut self, run: &Run) -> Result<std::result::Result<(f64, usize), Round>> {
        let name = run.describe();
        if let Some(&known) = self.known.get(&name) {
            return Ok(Ok(known));
        }
        let op = ops::find(run.op)?;
        let row = run.variation.apply(samples::random(op, &run.sizes.clone().with('B', 1), run.dtype)?)?;
        let exec = self.exec.clone().with_tf32(run.tf32);
        if let Some(wrong) = device::wrong(&exec, &run.layout.apply(row.clone())?, run.backward)?.into_iter().next() {
            return Ok(Err(Outcome::Wrong(wrong)));
        }
        let call = run.layout.apply(repeated(&row, run.sizes.get('B'))?)?;
        let (time, bytes) = device::time(&exec, &call, run.backward, run.kernel)?;
        let timed = (time.as_nanos() as f64, bytes);
        self.known.insert(name, timed);
        Ok(Ok(timed))
    }
}

fn state_steps(run: &Run) -> Result<f64> {
    Ok(work::forward(ops::find(run.op)?, &run.sizes).state_steps)
}
