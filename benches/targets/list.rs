//! The targets: what is measured, in which unit, what must be reached and what is aimed at.

use super::variation::{Layout, Variation};
use statescan::{DType, Level};
use statescan_cases::ops;
use statescan_cases::sizes::Sizes;

/// One pass of one operation, somewhere.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub op: &'static str,
    pub sizes: Sizes,
    pub dtype: DType,
    pub variation: Variation,
    pub layout: Layout,
    pub backward: bool,
    pub threads: usize,
    pub level: Option<Level>,
    /// Whether it runs on the GPU.
    pub cuda: bool,
    /// Whether products of f32 may round their factors to tf32 there.
    pub tf32: bool,
    /// The kernel that is timed there, if it is not the whole pass.
    pub kernel: Option<&'static str>,
}

/// How two figures become one.
#[derive(Debug, Clone)]
pub(super) enum Measure {
    /// Nanoseconds for each state-step: at most.
    Time,
    /// Microseconds: at most.
    Micros,
    /// Time for each state-step as a multiple of another run's: at most.
    Ratio(&'static str, Run),
    /// How many times faster than another run: at least.
    Speedup(&'static str, Run),
    /// Speed as a share of that of copying as many bytes: at least.
    ShareOfCopy,
    /// Speed as a share of that of the operation's two matrix products by the `gemm` crate: at least.
    ShareOfProducts,
}

/// A line of the table.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub run: Run,
    pub measure: Measure,
    pub must: f64,
    pub aim: Option<f64>,
}

impl Run {
    pub fn forward(op: &'static str, sizes: &[(char, usize)]) -> Self {
        Run {
            op,
            sizes: Sizes::of(sizes),
            dtype: DType::F32,
            variation: Variation::Plain,
            layout: Layout::Dense,
            backward: false,
            threads: 1,
            level: None,
            cuda: false,
            tf32: false,
            kernel: None,
        }
    }
    pub fn backward(&self) -> Self {
        Run { backward: true, ..self.clone() }
    }
    pub fn with(&self, variation: Variation) -> Self {
        Run { variation, ..self.clone() }
    }
    pub fn laid_out(&self, layout: Layout) -> Self {
        Run { layout, ..self.clone() }
    }
    pub fn stored_as(&self, dtype: DType) -> Self {
        Run { dtype, ..self.clone() }
    }
    pub fn in_tf32(&self) -> Self {
        Run { tf32: true, ..self.clone() }
    }
    pub fn kernel(&self, name: &'static str) -> Self {
        Run { kernel: Some(name), ..self.clone() }
    }
    fn on_two_threads(&self) -> Self {
        Run { threads: 2, ..self.clone() }
    }
    fn at(&self, level: Level) -> Self {
        Run { level: Some(level), ..self.clone() }
    }

    /// Operation, pass, sizes, and what differs from the usual case.
    pub fn describe(&self) -> String {
        let pass = match (self.backward, ops::find(self.op).ok().and_then(ops::time)) {
            (true, _) => " backward",
            (false, Some(_)) => " forward",
            (false, None) => "",
        };
        let mut text = format!("{}{pass} {}", self.op, self.sizes);
        let differences = [
            (self.variation != Variation::Plain).then(|| self.variation.name().to_string()),
            self.layout.name().map(str::to_string),
            (self.dtype != DType::F32).then(|| self.dtype.to_string()),
            (self.threads > 1).then(|| format!("{} threads", self.threads)),
            self.level.map(|level| level.to_string()),
            self.tf32.then(|| "tf32".to_string()),
            self.kernel.map(|name| format!("{name} alone")),
            self.cuda.then(|| "cuda".to_string()),
        ];
        for difference in differences.into_iter().flatten() {
            text += ", ";
            text += &difference;
        }
        text
    }
}

impl Measure {
    /// The unit, in words.
    pub fn unit(&self) -> String {
        match self {
            Measure::Time => "ns per state-step".to_string(),
            Measure::Micros => "us".to_string(),
            Measure::Ratio(of, _) => format!("x the time {of}"),
            Measure::Speedup(than, _) => format!("x as fast as {than}"),
            Measure::ShareOfCopy => "of a copy's rate".to_string(),
            Measure::ShareOfProducts => "of its products' rate".to_string(),
        }
    }

    /// Whether a smaller figure is a better one.
    pub fn smaller_is_better(&self) -> bool {
        matches!(self, Measure::Time | Measure::Micros | Measure::Ratio(..))
    }
}

impl Target {
    /// Whether a figure is good enough.
    pub fn reached(&self, figure: f64, bound: f64) -> bool {
        if self.measure.smaller_is_better() { figure <= bound } else { figure >= bound }
    }
}

/// Every target on the CPU.
pub(super) fn all() -> Vec<Target> {
    let target = |run: &Run, measure, must, aim| Target { run: run.clone(), measure, must, aim };
    let time = |run: &Run, must, aim| target(run, Measure::Time, must, aim);
    let ratio = |run: &Run, of, other: &Run, must, aim| target(run, Measure::Ratio(of, other.clone()), must, aim);
    let on_two = |run: &Run| target(&run.on_two_threads(), Measure::Speedup("one thread", run.clone()), 1.75, Some(1.95));

    let mamba =
        |batch, dim, seqlen, dstate| Run::forward("selective_scan", &[('B', batch), ('D', dim), ('L', seqlen), ('N', dstate)]);
    let (scan, batched, few) = (mamba(1, 1536, 1024, 16), mamba(8, 768, 512, 16), mamba(1, 16, 100_000, 16));
    let s5 = Run::forward("simplified_scan", &[('B', 1), ('H', 512), ('P', 256), ('L', 4096)]).with(Variation::Complex);
    let ssd = Run::forward("ssd", &[('B', 1), ('L', 1024), ('H', 24), ('P', 64), ('N', 128)]);
    let filter = |batch, dim, seqlen| Run::forward("causal_conv1d", &[('B', batch), ('D', dim), ('L', seqlen), ('W', 4)]);
    // one that caches share out among them, and one that only memory holds
    let (convolution, large) = (filter(1, 1536, 2048), filter(8, 2048, 2048));
    let step = Run::forward("selective_state_update", &[('B', 1), ('D', 5120), ('N', 16)]);

    let mut all = Vec::new();
    for run in [&scan, &batched] {
        all.push(time(&run.with(Variation::Bare), 0.25, Some(0.17)));
        all.push(time(run, 0.25, Some(0.17)));
        all.push(ratio(&run.backward(), "of its forward pass", run, 4.5, Some(3.0)));
    }
    all.extend([64, 128].map(|dstate| time(&mamba(1, 1536, 1024, dstate), 0.25, None)));
    // gate, bias and softplus are work of a channel, which so few states do not hide
    all.push(time(&mamba(1, 1536, 1024, 3).with(Variation::Bare), 0.6, None));
    // S5's discretizations too: its own operation has matrix products around the scan
    for (complex, real) in [
        (Variation::Complex, Variation::Plain),
        (Variation::ComplexZoh, Variation::Zoh),
        (Variation::ComplexBilinear, Variation::Bilinear),
    ] {
        all.push(ratio(&scan.with(complex), "of the real scan", &scan.with(real), 4.0, Some(2.5)));
    }
    all.push(time(&ssd, 0.060, Some(0.040)));
    all.push(ratio(&ssd.backward(), "of its forward pass", &ssd, 4.0, Some(3.0)));
    all.push(target(&s5, Measure::ShareOfProducts, 0.70, Some(0.85)));
    all.extend([&convolution, &large].map(|run| target(run, Measure::ShareOfCopy, 0.60, Some(0.80))));
    all.push(time(&step, 0.3, None));
    for dtype in [DType::BF16, DType::F16] {
        for run in [&scan, &scan.backward(), &ssd, &convolution] {
            all.push(ratio(&run.stored_as(dtype), "of f32", run, 1.3, Some(1.0)));
        }
    }
    // no kernel's time depends on its numbers
    for run in [&scan, &scan.backward(), &ssd, &ssd.backward(), &s5.with(Variation::Plain)] {
        all.push(ratio(&run.with(Variation::Strong), "with decays as initialised", run, 1.1, None));
    }
    all.push(ratio(&convolution.with(Variation::Large), "of usual inputs", &convolution, 1.1, None));
    for run in [&scan, &scan.backward(), &few, &few.backward(), &ssd] {
        all.push(on_two(run));
    }
    for run in [&scan, &scan.backward()] {
        all.push(ratio(&run.at(Level::Avx2), "on AVX-512", &run.at(Level::Avx512), 2.2, None));
    }
    all
}
