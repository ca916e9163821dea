//! `causal_conv1d_update` by names.

use super::causal_conv1d::activation;
use super::common::{no_gradients, planned, setting, start_state};
use crate::call::{Call, Exact, Operation, Planned};
use crate::error::Result;
use crate::features::Features;
use crate::rng::Rng;
use crate::sizes::Sizes;
use crate::table::{Argument, Named, Setting};
use crate::tensors::{Tensors, real};
use crate::work::Work;
use statescan::ops::causal_conv1d::update::{Args, reference, update};
use statescan::{DType, Exec};

/// The adapter.
pub(crate) struct CausalConv1dUpdate;

static ARGUMENTS: [Argument; 6] = [
    Argument::activation("x", &["BD", "BDT"]).required(),
    Argument::state("conv_state", &["BDM"]).alias(&["state"]).required(),
    Argument::parameter("weight", &["DW"]).required(),
    Argument::parameter("bias", &["D"]),
    Argument::index("cache_seqlens", &["B"]),
    Argument::index("conv_state_indices", &["B"]),
];

static RESULTS: [Named; 2] = [
    Named { name: "y", aliases: &["out"], layouts: &["BD", "BDT"] },
    Named { name: "conv_state", aliases: &["state"], layouts: &["BDM"] },
];

static SETTINGS: [Setting; 1] = [setting("activation")];

fn args(call: &Call) -> Result<Args<'_>> {
    let mut args = Args::new(call.need("x")?, call.need("weight")?);
    args.bias = call.view("bias");
    args.cache_seqlens = call.view("cache_seqlens");
    args.conv_state_indices = call.view("conv_state_indices");
    args.activation = activation(call)?;
    Ok(args)
}

impl Operation for CausalConv1dUpdate {
    fn name(&self) -> &'static str {
        "causal_conv1d_update"
    }
    fn about(&self) -> &'static str {
        "one or a few steps of the causal convolution, its last inputs kept in place"
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
    fn time(&self) -> Option<char> {
        None
    }
    fn differentiable(&self) -> bool {
        false
    }

    fn plan(&self, call: &Call, _save: bool) -> Result<Vec<Planned>> {
        let (x, state) = (call.need("x")?, call.need("conv_state")?);
        Ok(vec![planned("y", x.dtype(), &x.shape())?, planned("conv_state", state.dtype(), &state.shape())?])
    }

    fn prepare(&self, call: &Call, out: &mut Tensors) -> Result<()> {
        start_state("conv_state", call, out)
    }

    fn forward(&self, exec: &Exec, call: &Call, out: &mut Tensors) -> Result<()> {
        let mut out = out.writers();
        if let (Some(mut state), Some(mut y)) = (out.take("conv_state"), out.take("y")) {
            update(exec, &args(call)?, &mut state, &mut y)?;
        }
        Ok(())
    }

    fn backward(&self, _: &Exec, _: &Call, _: &Tensors, _: &Tensors, _: &mut Tensors) -> Result<()> {
        no_gradients(self)
    }

    fn reference(&self, call: &Call) -> Result<Exact> {
        let (y, state) = reference::update(&args(call)?, &call.need("conv_state")?)?;
        Ok(vec![("y", y), ("conv_state", state)])
    }

    fn reference_backward(&self, _: &Call, _: &Tensors) -> Result<Exact> {
        no_gradients(self)
    }

    fn work(&self, sizes: &Sizes) -> Work {
        let outputs = sizes.product("BDT");
        Work { state_steps: outputs * sizes.product("W"), flops: outputs * 2.0 * sizes.product("W"), exps: outputs }
    }
    fn work_backward(&self, _: &Sizes) -> Work {
        Work::default()
    }

    fn sample(&self) -> Result<Call> {
        let (inner, taps) = (128, 4);
        let x = Features::of_text(64).linear(1, inner);
        let mut weights = x.conv_weights(2, taps).into_iter();
        let before = x.clone().first(x.len() - 1).channels_first()?.to_dense();
        let mut rng = Rng::new(3);
        let mut at = (0..inner).flat_map(|d| (x.len() - taps..x.len() - 1).map(move |t| (d, t)));
        let state = real(DType::F32, &[1, inner, taps - 1], || at.next().map_or(0.0, |(d, t)| before.at(&[0, d, t]).re))?;
        let call = Call::new(&CausalConv1dUpdate)
            .with("x", x.last(&[1, inner])?)
            .with("conv_state", state)
            .with("weight", real(DType::F32, &[inner, taps], || weights.next().unwrap_or(0.0).into())?)
            .with("bias", real(DType::F32, &[inner], || rng.uniform(-0.5, 0.5))?);
        Ok(call.set("activation", "silu"))
    }

    fn random(&self, sizes: &Sizes, dtype: DType) -> Result<Call> {
        let mut rng = Rng::new(32);
        let parameter = if dtype.is_double() { DType::F64 } else { DType::F32 };
        let call = Call::new(&CausalConv1dUpdate)
            .with("x", real(dtype, &sizes.shape("BD"), || rng.normal())?)
            .with("conv_state", real(parameter, &sizes.shape("BDM"), || rng.normal())?)
            .with("weight", real(parameter, &sizes.shape("DW"), || rng.uniform(-0.5, 0.5))?)
            .with("bias", real(parameter, &sizes.shape("D"), || rng.uniform(-0.5, 0.5))?);
        Ok(call.set("activation", "silu"))
    }

    fn bench(&self) -> Vec<(&'static str, Sizes)> {
        let step = |batch, dim| Sizes::of(&[('B', batch), ('D', dim), ('W', 4), ('M', 3)]);
        vec![("mamba-130m", step(1, 1536)), ("mamba-2.8b, batch 64", step(64, 5120))]
    }
}
