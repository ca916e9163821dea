//! `selective_scan` by names.

use super::common::{carried, planned, sequences, setting};
use crate::call::{Call, Exact, Operation, Planned};
use crate::packing::{Packing, pairs};
use crate::tensors::{Tensors, WORKSPACE, real};

use crate::error::Result;
use crate::features::Features;
use crate::rng::Rng;
use crate::sizes::Sizes;
use crate::table::{Argument, Named, Setting};
use crate::work::Work;
use statescan::ops::selective_scan::{self as op, Args, Cotangents, Gradients, Outputs, reference};
use statescan::tensor::Tensor;
use statescan::{DType, Discretization, Exec};

/// The adapter.
pub(crate) struct SelectiveScan;

const MAPS: &[&str] = &["DN", "BNL", "BGNL"];

static ARGUMENTS: [Argument; 12] = [
    Argument::activation("x", &["BDL"]).alias(&["u"]).required(),
    Argument::activation("dt", &["BDL"]).alias(&["delta"]).required(),
    Argument::parameter("A", &["DN"]).alias(&["a"]).required().or_complex(),
    Argument::activation("B", MAPS).alias(&["b"]).required().or_complex(),
    Argument::activation("C", MAPS).alias(&["c"]).required().or_complex(),
    Argument::parameter("D", &["D"]).alias(&["d"]),
    Argument::activation("z", &["BDL"]),
    Argument::parameter("dt_bias", &["D"]).alias(&["delta_bias"]),
    Argument::activation("deltaA", &["BDL"]).alias(&["dt_a", "delta_a"]),
    Argument::state("initial_state", &["BDN", "BSDN"]).alias(&["initial_states"]).or_complex(),
    Argument::index("cu_seqlens", &["K"]),
    Argument::index("seq_idx", &["BL"]),
];

static RESULTS: [Named; 2] = [
    Named { name: "y", aliases: &["out"], layouts: &["BDL"] },
    Named { name: "final_state", aliases: &["last_state", "final_states"], layouts: &["BDN", "BSDN"] },
];

static SETTINGS: [Setting; 5] = [
    Setting { name: "dt_softplus", aliases: &["delta_softplus"] },
    setting("dt_limit"),
    setting("discretization"),
    setting("reverse"),
    // every result is computed anyway
    Setting { name: "return_last_state", aliases: &["return_final_state"] },
];

fn args(call: &Call) -> Result<Args<'_>> {
    let mut args = Args::new(call.need("x")?, call.need("dt")?, call.need("A")?, call.need("B")?, call.need("C")?);
    args.d = call.view("D");
    args.z = call.view("z");
    args.dt_bias = call.view("dt_bias");
    args.dt_a = call.view("deltaA");
    args.initial_state = call.view("initial_state");
    args.sequences = sequences(call)?;
    args.dt_softplus = call.flag("dt_softplus")?;
    args.reverse = call.flag("reverse")?;
    args.dt_limit = call.interval("dt_limit")?.unwrap_or(args.dt_limit);
    args.discretization = call.parsed("discretization", "one of mamba, zoh, bilinear, dirac", Discretization::Mamba)?;
    Ok(args)
}

fn cotangents(tensors: &Tensors) -> Cotangents<'_> {
    Cotangents { y: tensors.view("y"), final_state: tensors.view("final_state") }
}

impl Operation for SelectiveScan {
    fn name(&self) -> &'static str {
        "selective_scan"
    }
    fn about(&self) -> &'static str {
        "Mamba's scan: h[t] = exp(dt A) h[t-1] + dt B x, y = <C, h> + D x, gated by silu(z)"
    }
    fn arguments(&self) -> &'static [Argument] {
        &ARGUMENTS
    }
    fn results(&self) -> &'static [Named] {
        &RESULTS
    }
    fn settings(&self) -> &'static [Setting] {
        &SETTINGS
    }
    fn independent(&self) -> &'static [(char, Option<char>)] {
        &[('B', None), ('D', Some('G'))]
    }

    /// Maps that vary and belong to a complex A may hold real and imaginary parts in turn along the last axis.
    fn normalise(&self, call: &mut Call) -> Result<()> {
        let complex = call.view("A").is_some_and(|a| a.dtype().is_complex());
        let Some(seqlen) = call.view("x").filter(|x| x.rank() == 3).map(|x| x.shape()[2]) else { return Ok(()) };
        for input in call.inputs.iter_mut().filter(|i| complex && matches!(i.argument.name, "B" | "C")) {
            let shape = input.buffer.shape();
            let varying = shape.len() >= 3 && seqlen > 0 && shape.last() == Some(&(2 * seqlen));
            if let Some(paired) = varying.then(|| pairs(&input.buffer, Packing::Interleaved)).flatten() {
                (input.buffer, input.packing) = (paired, Packing::Interleaved);
            }
        }
        Ok(())
    }

    fn plan(&self, call: &Call, save: bool) -> Result<Vec<Planned>> {
        let args = args(call)?;
        let dtype = args.x.dtype();
        let state = op::final_state_shape(&args)?;
        let mut results = vec![
            planned("y", dtype, &args.x.shape())?,
            planned("final_state", carried(dtype, args.a.dtype().is_complex()), &state)?,
        ];
        if save {
            results.push(planned("checkpoints", carried(dtype, false), &[op::checkpoints_len(&args)?])?);
        }
        Ok(results)
    }

    fn workspace(&self, exec: &Exec, call: &Call) -> Result<usize> {
        Ok(op::workspace_len(exec, &args(call)?)?)
    }

    fn workspace_backward(&self, exec: &Exec, call: &Call, saved: &Tensors) -> Result<usize> {
        Ok(op::backward_workspace_len(exec, &args(call)?, saved.view("checkpoints").is_some())?)
    }

    fn forward(&self, exec: &Exec, call: &Call, out: &mut Tensors) -> Result<()> {
        let mut out = out.writers();
        let mut outputs = Outputs {
            y: out.take("y"),
            final_state: out.take("final_state"),
            checkpoints: out.take("checkpoints"),
            workspace: out.take(WORKSPACE),
        };
        Ok(op::forward(exec, &args(call)?, &mut outputs)?)
    }

    fn backward(&self, exec: &Exec, call: &Call, saved: &Tensors, cotangents: &Tensors, grads: &mut Tensors) -> Result<()> {
        let mut grads = grads.writers();
        let mut gradients = Gradients {
            x: grads.take("x"),
            dt: grads.take("dt"),
            a: grads.take("A"),
            b: grads.take("B"),
            c: grads.take("C"),
            d: grads.take("D"),
            z: grads.take("z"),
            dt_bias: grads.take("dt_bias"),
            dt_a: grads.take("deltaA"),
            initial_state: grads.take("initial_state"),
            workspace: grads.take(WORKSPACE),
        };
        Ok(op::backward(exec, &args(call)?, saved.view("checkpoints"), &self::cotangents(cotangents), &mut gradients)?)
    }

    fn reference(&self, call: &Call) -> Result<Exact> {
        let exact = reference::forward(&args(call)?)?;
        Ok(vec![("y", exact.y), ("final_state", exact.final_state)])
    }

    fn reference_backward(&self, call: &Call, cotangents: &Tensors) -> Result<Exact> {
        let g = reference::backward(&args(call)?, &self::cotangents(cotangents))?;
        let mut all = vec![("x", g.x), ("dt", g.dt), ("A", g.a), ("B", g.b), ("C", g.c), ("initial_state", g.initial_state)];
        let optional = [("D", g.d), ("z", g.z), ("dt_bias", g.dt_bias), ("deltaA", g.dt_a)];
        all.extend(optional.into_iter().filter_map(|(name, grad)| Some((name, grad?))));
        Ok(all)
    }

    fn work(&self, sizes: &Sizes) -> Work {
        // dt A, the decayed state plus the input, the output's sum
        Work::per_state_step(sizes.product("BDLN"), 6.0, 1.0)
    }
    fn work_backward(&self, sizes: &Sizes) -> Work {
        // the states again, then the gradient of the state, of B, C, A, and the two sums over states
        Work::per_state_step(sizes.product("BDLN"), 22.0, 1.0)
    }

    fn sample(&self) -> Result<Call> {
        let (inner, dstate, rank) = (128, 16, 8);
        let text = Features::of_text(64);
        let x = text.linear(1, inner).conv(2, 4).silu();
        let z = text.linear(3, inner);
        let dt = x.linear(4, rank).linear(5, inner);
        let mut rng = Rng::new(6);
        let call = Call::new(&SelectiveScan)
            .with("x", x.channels_first()?)
            .with("dt", dt.channels_first()?)
            .with("A", Tensor::from_dense(&state_matrix(inner, dstate)?, DType::F32))
            .with("B", x.linear(7, dstate).channels_first()?)
            .with("C", x.linear(8, dstate).channels_first()?)
            .with("D", real(DType::F32, &[inner], || 1.0)?)
            .with("z", z.channels_first()?)
            .with("dt_bias", real(DType::F32, &[inner], || rng.step_bias())?);
        Ok(call.set("dt_softplus", true))
    }

    fn random(&self, sizes: &Sizes, dtype: DType) -> Result<Call> {
        let mut rng = Rng::new(11);
        let mut normal = |layout: &str, scale: f64| real(dtype, &sizes.shape(layout), || rng.normal() * scale);
        let (x, dt, b, c, z) =
            (normal("BDL", 1.0)?, normal("BDL", 0.5)?, normal("BGNL", 1.0)?, normal("BGNL", 1.0)?, normal("BDL", 1.0)?);
        let mut rng = Rng::new(12);
        let (dim, dstate) = (sizes.get('D'), sizes.get('N'));
        let parameter = if dtype.is_double() { DType::F64 } else { DType::F32 };
        let call = Call::new(&SelectiveScan)
            .with("x", x)
            .with("dt", dt)
            .with("A", Tensor::from_dense(&state_matrix(dim, dstate)?, parameter))
            .with("B", b)
            .with("C", c)
            .with("D", real(parameter, &[dim], || 1.0)?)
            .with("z", z)
            .with("dt_bias", real(parameter, &[dim], || rng.step_bias())?);
        Ok(call.set("dt_softplus", true))
    }

    fn bench(&self) -> Vec<(&'static str, Sizes)> {
        let mamba = |dim, seqlen| Sizes::of(&[('B', 1), ('D', dim), ('L', seqlen), ('N', 16), ('G', 1)]);
        vec![
            ("mamba-130m", mamba(1536, 1024)),
            ("mamba-370m", mamba(2048, 1024)),
            ("mamba-790m", mamba(3072, 1024)),
            ("mamba-1.4b", mamba(4096, 1024)),
            ("mamba-2.8b", mamba(5120, 1024)),
            ("mamba-130m, long", mamba(1536, 8192)),
            ("mamba-130m, batch 8", mamba(1536, 512).with('B', 8)),
        ]
    }
}

/// `A[d, n] = -(n + 1)`, Mamba's first value.
fn state_matrix(dim: usize, dstate: usize) -> Result<statescan::tensor::Dense> {
    let values: Vec<f64> = (0..dim * dstate).map(|i| -((i % dstate.max(1)) as f64 + 1.0)).collect();
    Ok(statescan::tensor::Dense::from_slice(&values, &[dim, dstate])?)
}
