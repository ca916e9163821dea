//! `causal_conv1d` by names.

use super::common::{planned, sequences, setting};
use crate::call::{Call, Exact, Operation, Planned};
use crate::tensors::{Tensors, WORKSPACE, real};

use crate::error::Result;
use crate::features::Features;
use crate::rng::Rng;
use crate::sizes::Sizes;
use crate::table::{Argument, Named, Setting};
use crate::work::Work;
use statescan::ops::causal_conv1d::{self as op, Activation, Args, Cotangents, Gradients, Outputs, reference};
use statescan::{DType, Exec};
use std::str::FromStr;

/// The adapter.
pub(crate) struct CausalConv1d;

static ARGUMENTS: [Argument; 6] = [
    Argument::activation("x", &["BDL"]).alias(&["u"]).required(),
    Argument::parameter("weight", &["DW"]).required(),
    Argument::parameter("bias", &["D"]),
    Argument::state("initial_states", &["BDM", "BSDM"]).alias(&["initial_state"]),
    Argument::index("cu_seqlens", &["K"]),
    Argument::index("seq_idx", &["BL"]),
];

static RESULTS: [Named; 2] = [
    Named { name: "y", aliases: &["out"], layouts: &["BDL"] },
    Named { name: "final_states", aliases: &["final_state"], layouts: &["BDM", "BSDM"] },
];

static SETTINGS: [Setting; 3] = [
    setting("activation"),
    setting("reverse"),
    // every result is computed anyway
    setting("return_final_states"),
];

/// `none` and `silu`, with the other name that the latter has.
pub(super) struct ActivationName(pub(super) Activation);

impl FromStr for ActivationName {
    type Err = ();
    fn from_str(name: &str) -> std::result::Result<Self, ()> {
        match name {
            "none" => Ok(ActivationName(Activation::None)),
            "silu" | "swish" => Ok(ActivationName(Activation::Silu)),
            _ => Err(()),
        }
    }
}

pub(super) fn activation(call: &Call) -> Result<Activation> {
    Ok(call.parsed("activation", "none or silu", ActivationName(Activation::None))?.0)
}

fn args(call: &Call) -> Result<Args<'_>> {
    let mut args = Args::new(call.need("x")?, call.need("weight")?);
    args.bias = call.view("bias");
    args.initial_states = call.view("initial_states");
    args.sequences = sequences(call)?;
    args.activation = activation(call)?;
    args.reverse = call.flag("reverse")?;
    Ok(args)
}

fn cotangents(tensors: &Tensors) -> Cotangents<'_> {
    Cotangents { y: tensors.view("y"), final_states: tensors.view("final_states") }
}

impl Operation for CausalConv1d {
    fn name(&self) -> &'static str {
        "causal_conv1d"
    }
    fn about(&self) -> &'static str {
        "causal depthwise convolution over time, with silu if asked: the short filter in front of a scan"
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
        &[('B', None), ('D', None)]
    }

    fn plan(&self, call: &Call, _save: bool) -> Result<Vec<Planned>> {
        let args = args(call)?;
        let dtype = args.x.dtype();
        let state = op::final_states_shape(&args)?;
        Ok(vec![planned("y", dtype, &args.x.shape())?, planned("final_states", dtype, &state)?])
    }

    fn workspace_backward(&self, exec: &Exec, call: &Call, _saved: &Tensors) -> Result<usize> {
        Ok(op::backward_workspace_len(exec, &args(call)?)?)
    }

    fn forward(&self, exec: &Exec, call: &Call, out: &mut Tensors) -> Result<()> {
        let mut out = out.writers();
        let mut outputs = Outputs { y: out.take("y"), final_states: out.take("final_states") };
        Ok(op::forward(exec, &args(call)?, &mut outputs)?)
    }

    fn backward(&self, exec: &Exec, call: &Call, _saved: &Tensors, cotangents: &Tensors, grads: &mut Tensors) -> Result<()> {
        let mut grads = grads.writers();
        let mut gradients = Gradients {
            x: grads.take("x"),
            weight: grads.take("weight"),
            bias: grads.take("bias"),
            initial_states: grads.take("initial_states"),
            workspace: grads.take(WORKSPACE),
        };
        Ok(op::backward(exec, &args(call)?, &self::cotangents(cotangents), &mut gradients)?)
    }

    fn reference(&self, call: &Call) -> Result<Exact> {
        let exact = reference::forward(&args(call)?)?;
        Ok(vec![("y", exact.y), ("final_states", exact.final_states)])
    }

    fn reference_backward(&self, call: &Call, cotangents: &Tensors) -> Result<Exact> {
        let g = reference::backward(&args(call)?, &self::cotangents(cotangents))?;
        Ok(vec![("x", g.x), ("weight", g.weight), ("bias", g.bias), ("initial_states", g.initial_states)])
    }

    fn work(&self, sizes: &Sizes) -> Work {
        let outputs = sizes.product("BDL");
        Work { state_steps: outputs * sizes.product("W"), flops: outputs * 2.0 * sizes.product("W"), exps: outputs }
    }
    fn work_backward(&self, sizes: &Sizes) -> Work {
        let outputs = sizes.product("BDL");
        Work { state_steps: outputs * sizes.product("W"), flops: outputs * 6.0 * sizes.product("W"), exps: outputs }
    }

    fn sample(&self) -> Result<Call> {
        let (inner, taps) = (128, 4);
        let x = Features::of_text(64).linear(1, inner);
        let mut weights = x.conv_weights(2, taps).into_iter();
        let mut rng = Rng::new(3);
        let call = Call::new(&CausalConv1d)
            .with("x", x.channels_first()?)
            .with("weight", real(DType::F32, &[inner, taps], || weights.next().unwrap_or(0.0).into())?)
            .with("bias", real(DType::F32, &[inner], || rng.uniform(-0.5, 0.5))?);
        Ok(call.set("activation", "silu"))
    }

    fn random(&self, sizes: &Sizes, dtype: DType) -> Result<Call> {
        let mut rng = Rng::new(31);
        let parameter = if dtype.is_double() { DType::F64 } else { DType::F32 };
        let call = Call::new(&CausalConv1d)
            .with("x", real(dtype, &sizes.shape("BDL"), || rng.normal())?)
            .with("weight", real(parameter, &sizes.shape("DW"), || rng.uniform(-0.5, 0.5))?)
            .with("bias", real(parameter, &sizes.shape("D"), || rng.uniform(-0.5, 0.5))?);
        Ok(call.set("activation", "silu"))
    }

    fn bench(&self) -> Vec<(&'static str, Sizes)> {
        let filter = |dim, seqlen| Sizes::of(&[('B', 1), ('D', dim), ('L', seqlen), ('W', 4)]);
        vec![
            ("mamba-130m", filter(1536, 2048)),
            ("mamba-2.8b", filter(5120, 2048)),
            ("mamba-130m, batch 8", filter(1536, 512).with('B', 8)),
        ]
    }
}
