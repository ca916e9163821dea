//! Norms on CUDA: a checked problem becomes a plan, a configuration and the parameters of a launch.

mod plan;
#[cfg(all(test, feature = "cuda"))]
mod tests;

use super::{GradientTargets, OP, Problem, Sources, Targets};
use crate::cuda::{
    Address, COMMON, Config, Header, Kernel, Numbers, Program, Queue, STEP_SIZE, Stream, Strided, Sum, header, neighbours,
    params, sum_terms,
};
use crate::error::{Error, Result};
use crate::ops::checked::needed;
use crate::ops::on_cuda::{dtype, read, single_only};
use crate::tensor::View;
use plan::{Plan, Preference};

const ROWS: Header = header!("rows.cuh");
static FORWARD_PASS: Program<ForwardParams> =
    Program::new("norm_forward", &[COMMON, STEP_SIZE], include_str!("forward.cu")).including(&[ROWS]);
static BACKWARD_PASS: Program<BackwardParams> =
    Program::new("norm_backward", &[COMMON, STEP_SIZE], include_str!("backward.cu")).including(&[ROWS]);

/// The forward pass of a gated RMS norm of (16384, 5120) in bf16 takes 204 us on an H100 with 16 channels a thread, 264 with 8.
const FORWARD: Preference = Preference { narrow: 96, kept: 16, threads: 2048 };
/// The backward pass takes 376 us with 8 channels, 437 with 16, which wider groups need.
const BACKWARD: Preference = Preference { narrow: 640, kept: 16, threads: 1280 };
/// One with a mean, a gate behind the norm or wider numbers has registers for fewer.
const BACKWARD_WITH_MORE: Preference = Preference { narrow: 512, kept: 8, ..BACKWARD };

params! {
    /// The rows of a call.
    struct Shape {
        rows: i64,
        /// Sizes of the second and the third axis of rows.
        second: i64,
        third: i64,
        groups: u32,
        group: u32,
        eps: f32,
    }
}

params! {
    /// The inputs of both passes.
    struct Inputs(shape: Shape) {
        x: Strided,
        residual: Strided,
        residual_scale: Strided,
        z: Strided,
        weight: Strided,
        bias: Strided,
    }
}

params! {
    /// Parameters of `norm_forward`.
    struct ForwardParams(inputs: Inputs) {
        y: Strided,
        sum: Strided,
    }
}

params! {
    /// Parameters of `norm_backward`.
    struct BackwardParams(inputs: Inputs) {
        dy: Strided,
        dsum: Strided,
        dx: Strided,
        dz: Strided,
        dresidual: Strided,
        dscale: Strided,
        /// Dense (team, channel).
        of_weight: Address<f32>,
        of_bias: Address<f32>,
    }
}

pub(super) fn forward(stream: &Queue<'_>, problem: &Problem<'_>, targets: &Targets) -> Result<()> {
    if targets.y.is_none() && targets.sum.is_none() {
        return Ok(());
    }
    let Some(kernel) = Call::new(problem)?.forward(targets, stream.numbers())? else { return Ok(()) };
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the configuration
    // describes their types and layouts.
    unsafe { kernel.launch(stream, &FORWARD_PASS) }.map_err(Into::into)
}

pub(super) fn backward(
    stream: &Queue<'_>,
    problem: &Problem<'_>,
    sources: &Sources<'_>,
    targets: &GradientTargets,
) -> Result<()> {
    let call = Call::new(problem)?;
    if targets.weight.is_some() || targets.bias.is_some() {
        needed(OP, &targets.workspace)?;
    }
    let Some((plan, kernel)) = call.backward(sources, targets, stream.numbers())? else {
        return add_up(stream, [0; 2], targets, 0);
    };
    // SAFETY: as in `forward`; the workspace has the elements that the plan needs.
    unsafe { kernel.launch(stream, &BACKWARD_PASS)? };
    add_up(stream, call.terms(&plan, targets), targets, plan.teams())
}

/// Elements of the workspace that a backward pass needs: sums for weight and bias of each team, however rows are read.
pub(super) fn backward_workspace_len(stream: &Stream, problem: &Problem<'_>) -> usize {
    sums_len(problem, stream.numbers())
}

fn sums_len(problem: &Problem<'_>, numbers: Numbers) -> usize {
    if problem.weight.is_none() && problem.bias.is_none() {
        return 0;
    }
    let sizes = [problem.count(), problem.groups, problem.group];
    let preference = backward_preference(problem, 2);
    let teams = [1, 2, 4, 8].map(|vector| {
        let of = [preference, BACKWARD_WITH_MORE].map(|preference| Plan::new(sizes, [vector, 4], preference, numbers).teams());
        of[0].max(of[1])
    });
    2 * problem.dim() * teams.into_iter().max().unwrap_or(0)
}

/// Returns the preference of a backward pass over rows of numbers of so many bytes.
fn backward_preference(problem: &Problem<'_>, size: usize) -> Preference {
    let more = size > 2 || problem.layer || problem.norm_before_gate && problem.z.is_some();
    if more { BACKWARD_WITH_MORE } else { BACKWARD }
}

/// A call as the kernels see it.
struct Call<'p, 'a> {
    problem: &'p Problem<'a>,
}

impl<'p, 'a> Call<'p, 'a> {
    fn new(problem: &'p Problem<'a>) -> Result<Self> {
        single_only(problem.double, "norm in f64")?;
        if problem.count() > i32::MAX as usize {
            let why = "kernels for CUDA count 2^31 - 1 of them";
            return Err(Error::Unavailable { what: "norm of so many rows", why });
        }
        Ok(Call { problem })
    }

    /// The plan for the arguments and these tensors of rows; none where there are no numbers.
    fn plan(&self, others: &[Option<View<'_>>], preference: impl Fn(usize) -> Preference, numbers: Numbers) -> Option<Plan> {
        let p = self.problem;
        if p.count() == 0 || p.dim() == 0 {
            return None;
        }
        let rows = [Some(p.x), p.z, p.residual].into_iter().chain(others.iter().copied()).flatten();
        let (vector, size) =
            rows.fold((8, 1), |(vector, size), view| (neighbours(&view, 3, 8).min(vector), view.dtype().size().max(size)));
        Some(Plan::new([p.count(), p.groups, p.group], [vector, size], preference(size), numbers))
    }

    /// The constants of `rows.cuh`.
    fn config(&self, plan: &Plan) -> Config {
        let p = self.problem;
        Config::default()
            .dtype("X", p.x.dtype())
            .dtype("RESIDUAL", dtype(&p.residual))
            .dtype("SCALE", dtype(&p.residual_scale))
            .dtype("Z", dtype(&p.z))
            .dtype("WEIGHT", dtype(&p.weight))
            .dtype("BIAS", dtype(&p.bias))
            .flag("HAS_RESIDUAL", p.residual.is_some())
            .flag("HAS_SCALE", p.residual_scale.is_some())
            .flag("HAS_Z", p.z.is_some())
            .flag("HAS_WEIGHT", p.weight.is_some())
            .flag("HAS_BIAS", p.bias.is_some())
            .flag("NORMED", p.normed)
            .flag("LAYER", p.layer)
            .flag("GATE_LAST", p.norm_before_gate)
            .int("LANES", plan.lanes)
            .int("ITEMS", plan.items)
            .flag("HOLDS", plan.holds)
            .flag("FULL", plan.lanes * plan.items * plan.vector == p.group)
            .int("VECTOR", plan.vector)
            .int("ROWS", plan.rows)
    }

    fn inputs(&self) -> Inputs {
        let p = self.problem;
        let shape = Shape {
            rows: p.count() as i64,
            second: p.leading[1] as i64,
            third: p.leading[2] as i64,
            groups: p.groups as u32,
            group: p.group as u32,
            eps: p.eps as f32,
        };
        let of_rows = [&p.residual, &p.residual_scale, &p.z].map(Strided::of_option);
        let ([residual, residual_scale, z], [weight, bias]) = (of_rows, [&p.weight, &p.bias].map(Strided::of_option));
        Inputs { shape, x: Strided::of(&p.x), residual, residual_scale, z, weight, bias }
    }

    fn forward(&self, targets: &Targets, numbers: Numbers) -> Result<Option<Kernel<ForwardParams>>> {
        let written = [read(&targets.y), read(&targets.sum)];
        let Some(plan) = self.plan(&written, |_| FORWARD, numbers) else { return Ok(None) };
        let [y, sum] = written;
        let config = self
            .config(&plan)
            .dtype("Y", dtype(&y))
            .dtype("SUM", dtype(&sum))
            .flag("HAS_Y", y.is_some())
            .flag("HAS_SUM", sum.is_some());
        let params = ForwardParams { inputs: self.inputs(), y: Strided::of_option(&y), sum: Strided::of_option(&sum) };
        Ok(Some(Kernel { config, launch: plan.launch(OP)?, params }))
    }

    fn backward(
        &self,
        sources: &Sources<'_>,
        targets: &GradientTargets,
        numbers: Numbers,
    ) -> Result<Option<(Plan, Kernel<BackwardParams>)>> {
        let [dx, dz, dresidual, dscale] = [&targets.x, &targets.z, &targets.residual, &targets.residual_scale].map(read);
        let p = self.problem;
        let others = [sources.y, sources.sum, dx, dz, dresidual];
        let Some(plan) = self.plan(&others, |size| backward_preference(p, size), numbers) else { return Ok(None) };
        let config = self
            .config(&plan)
            .dtype("DY", dtype(&sources.y))
            .dtype("DSUM", dtype(&sources.sum))
            .dtype("DX", dtype(&dx))
            .dtype("DZ", dtype(&dz))
            .dtype("DRESIDUAL", dtype(&dresidual))
            .dtype("DSCALE", dtype(&dscale))
            .flag("HAS_DY", sources.y.is_some())
            .flag("HAS_DSUM", sources.sum.is_some())
            .flag("HAS_DX", dx.is_some())
            .flag("HAS_DZ", dz.is_some())
            .flag("HAS_DRESIDUAL", dresidual.is_some())
            .flag("HAS_DSCALE", dscale.is_some())
            .flag("HAS_DWEIGHT", targets.weight.is_some())
            .flag("HAS_DBIAS", targets.bias.is_some());
        let [of_weight, of_bias] = self.terms(&plan, targets).map(Address::new);
        let params = BackwardParams {
            inputs: self.inputs(),
            dy: Strided::of_option(&sources.y),
            dsum: Strided::of_option(&sources.sum),
            dx: Strided::of_option(&dx),
            dz: Strided::of_option(&dz),
            dresidual: Strided::of_option(&dresidual),
            dscale: Strided::of_option(&dscale),
            of_weight,
            of_bias,
        };
        let launch = plan.launch(OP)?;
        Ok(Some((plan, Kernel { config, launch, params })))
    }

    /// Returns the addresses where the teams leave their sums for weight and bias.
    fn terms(&self, plan: &Plan, targets: &GradientTargets) -> [u64; 2] {
        let terms = targets.workspace.as_ref().map_or(0, |workspace| workspace.as_mut_ptr() as u64);
        [terms, terms + 4 * (plan.teams() * self.problem.dim()) as u64]
    }
}

/// Adds the sums of so many teams.
fn add_up(stream: &Queue<'_>, terms: [u64; 2], targets: &GradientTargets, count: usize) -> Result<()> {
    let targets = [targets.weight, targets.bias].into_iter().zip(terms);
    let sums: Vec<_> = targets.filter_map(|(to, terms)| Some(Sum { to: to?, terms, count })).collect();
    if sums.is_empty() {
        return Ok(());
    }
    // SAFETY: every team has left its terms, dense; the targets were checked.
    unsafe { sum_terms(stream, &sums) }.map_err(Into::into)
}
