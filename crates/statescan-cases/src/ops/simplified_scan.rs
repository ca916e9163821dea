//! `simplified_scan` and `s5_inner` by names.

use super::common::{carried, planned, sequences, setting};
use crate::call::{Call, Exact, Operation, Planned};
use crate::error::Result;
use crate::features::Features;
use crate::rng::Rng;
use crate::sizes::Sizes;
use crate::table::{Argument, Named, Setting};
use crate::tensors::{Tensors, real};
use crate::work::Work;
use num_complex::Complex64;
use statescan::ops::simplified_scan::{self as op, Args, Cotangents, Gradients, Head, Outputs, reference};
use statescan::tensor::Tensor;
use statescan::{DType, Discretization, Exec};

/// The adapter of `simplified_scan`, or with a real output of `s5_inner`.
pub(crate) struct SimplifiedScan {
    pub(crate) inner: bool,
}

static COMPLEX: SimplifiedScan = SimplifiedScan { inner: false };
static INNER: SimplifiedScan = SimplifiedScan { inner: true };

static ARGUMENTS: [Argument; 10] = [
    Argument::activation("u", &["BHL"]).alias(&["x"]).required().or_complex(),
    Argument::activation("delta", &["P", "BPL"]).alias(&["dt"]).required(),
    Argument::parameter("A", &["P", "P1"]).alias(&["a"]).required().or_complex(),
    Argument::parameter("B", &["PH"]).alias(&["b"]).required().or_complex(),
    Argument::parameter("C", &["HP"]).alias(&["c"]).required().or_complex(),
    Argument::activation("deltaA", &["P", "BPL"]).alias(&["delta_a", "dt_a"]),
    Argument::state("initial_state", &["BP", "BSP"]).alias(&["initial_states"]).or_complex(),
    Argument::index("cu_seqlens", &["K"]),
    Argument::index("seq_idx", &["BL"]),
    Argument::parameter("D", &["H"]).alias(&["d"]),
];

static RESULTS: [Named; 2] = [
    Named { name: "y", aliases: &["out"], layouts: &["BHL"] },
    Named { name: "last_state", aliases: &["final_state", "final_states"], layouts: &["BP", "BSP"] },
];

static SETTINGS: [Setting; 4] = [
    setting("discretization"),
    setting("reverse"),
    // every result is computed anyway
    Setting { name: "return_last_state", aliases: &["return_final_state"] },
    setting("conj_sym"),
];

impl SimplifiedScan {
    fn args<'a>(&self, call: &'a Call) -> Result<Args<'a>> {
        let mut args = Args::new(call.need("u")?, call.need("delta")?, call.need("A")?, call.need("B")?, call.need("C")?);
        args.delta_a = call.view("deltaA");
        args.initial_state = call.view("initial_state");
        args.sequences = sequences(call)?;
        args.reverse = call.flag("reverse")?;
        args.discretization = call.parsed("discretization", "one of bilinear, zoh, dirac, mamba", Discretization::Bilinear)?;
        if self.inner {
            args.head = Head::Real { conj_sym: call.flag_or("conj_sym", true)?, d: call.view("D") };
        }
        Ok(args)
    }

    /// HiPPO's diagonal, `-1/2 + i pi n`, and maps of unit gain.
    pub(super) fn with_parameters(&self, call: Call, sizes: &Sizes, complex: DType, seed: u64) -> Result<Call> {
        let mut rng = Rng::new(seed);
        let mut matrix = |layout: &str, scale: f64| -> Result<Tensor> {
            let mut buffer = Tensor::host(complex, &sizes.shape(layout))?;
            buffer.fill_with(|| Complex64::new(rng.normal(), rng.normal()) * scale);
            Ok(buffer)
        };
        let (states, dim) = (sizes.get('P') as f64, sizes.get('H') as f64);
        let (b, c) = (matrix("PH", (0.5 / dim).sqrt())?, matrix("HP", (0.5 / states).sqrt())?);
        let mut n = -1.0;
        let mut a = Tensor::host(complex, &sizes.shape("P"))?;
        a.fill_with(|| {
            n += 1.0;
            Complex64::new(-0.5, std::f64::consts::PI * n)
        });
        let call = call.with("A", a).with("B", b).with("C", c);
        if self.inner { Ok(call.with("D", real(complex.real(), &sizes.shape("H"), || 1.0)?)) } else { Ok(call) }
    }
}

impl SimplifiedScan {
    fn this(&self) -> &'static dyn Operation {
        if self.inner { &INNER } else { &COMPLEX }
    }
}

/// As `f32` or `f64` pairs, whatever the type of the other arguments.
fn complex_of(dtype: DType) -> DType {
    if dtype.is_double() { DType::Complex128 } else { DType::Complex64 }
}

fn cotangents(tensors: &Tensors) -> Cotangents<'_> {
    Cotangents { y: tensors.view("y"), last_state: tensors.view("last_state") }
}

impl Operation for SimplifiedScan {
    fn name(&self) -> &'static str {
        if self.inner { "s5_inner" } else { "simplified_scan" }
    }
    fn about(&self) -> &'static str {
        match self.inner {
            true => "S5's layer: y = 2 Re(C x) + D Re(u) over conjugate pairs of diagonal complex states",
            false => "S5's scan: x[t] = Abar x[t-1] + Bbar (B u[t]), y = C x, all complex",
        }
    }
    fn arguments(&self) -> &'static [Argument] {
        // the skip belongs to the real output
        if self.inner { &ARGUMENTS } else { &ARGUMENTS[..9] }
    }
    fn results(&self) -> &'static [Named] {
        &RESULTS
    }
    fn settings(&self) -> &'static [Setting] {
        if self.inner { &SETTINGS } else { &SETTINGS[..3] }
    }
    fn independent(&self) -> &'static [(char, Option<char>)] {
        &[('B', None)]
    }

    fn plan(&self, call: &Call, save: bool) -> Result<Vec<Planned>> {
        let args = self.args(call)?;
        let dtype = args.u.dtype();
        let state = op::last_state_shape(&args)?;
        let y = if self.inner { dtype.real() } else { complex_of(dtype) };
        let mut results = vec![planned("y", y, &args.u.shape())?, planned("last_state", complex_of(dtype), &state)?];
        if save {
            results.push(planned("checkpoints", carried(dtype, false), &[op::checkpoints_len(&args)?])?);
        }
        Ok(results)
    }

    fn forward(&self, exec: &Exec, call: &Call, out: &mut Tensors) -> Result<()> {
        let mut out = out.writers();
        let mut outputs = Outputs { y: out.take("y"), last_state: out.take("last_state"), checkpoints: out.take("checkpoints") };
        Ok(op::forward(exec, &self.args(call)?, &mut outputs)?)
    }

    fn backward(&self, exec: &Exec, call: &Call, saved: &Tensors, cotangents: &Tensors, grads: &mut Tensors) -> Result<()> {
        let mut grads = grads.writers();
        let mut gradients = Gradients {
            u: grads.take("u"),
            delta: grads.take("delta"),
            a: grads.take("A"),
            b: grads.take("B"),
            c: grads.take("C"),
            d: grads.take("D"),
            delta_a: grads.take("deltaA"),
            initial_state: grads.take("initial_state"),
        };
        let cotangents = self::cotangents(cotangents);
        Ok(op::backward(exec, &self.args(call)?, saved.view("checkpoints"), &cotangents, &mut gradients)?)
    }

    fn reference(&self, call: &Call) -> Result<Exact> {
        let exact = reference::forward(&self.args(call)?)?;
        Ok(vec![("y", exact.y), ("last_state", exact.last_state)])
    }

    fn reference_backward(&self, call: &Call, cotangents: &Tensors) -> Result<Exact> {
        let g = reference::backward(&self.args(call)?, &self::cotangents(cotangents))?;
        let mut all =
            vec![("u", g.u), ("delta", g.delta), ("A", g.a), ("B", g.b), ("C", g.c), ("initial_state", g.initial_state)];
        all.extend([("D", g.d), ("deltaA", g.delta_a)].into_iter().filter_map(|(name, grad)| Some((name, grad?))));
        Ok(all)
    }

    fn oracle_cost(&self, sizes: &Sizes) -> f64 {
        // two dense products for each step
        sizes.product("BPL") * (1.0 + sizes.product("H") / 2.0)
    }
    fn work(&self, sizes: &Sizes) -> Work {
        let states = sizes.product("BPL");
        Work {
            state_steps: states,
            flops: states * (14.0 + if self.inner { 8.0 } else { 12.0 } * sizes.product("H")),
            exps: 3.0 * states,
        }
    }
    fn work_backward(&self, sizes: &Sizes) -> Work {
        let states = sizes.product("BPL");
        Work {
            state_steps: states,
            flops: states * (50.0 + if self.inner { 20.0 } else { 28.0 } * sizes.product("H")),
            exps: 3.0 * states,
        }
    }

    fn sample(&self) -> Result<Call> {
        let sizes = Sizes::of(&[('P', 32), ('H', 32)]);
        let text = Features::of_text(64);
        let u = text.linear(1, sizes.get('H'));
        // steps of about a hundredth, as S5 starts with
        let delta = text.linear(2, sizes.get('P')).map(|v| (v - 4.0).exp().ln_1p());
        let call = Call::new(self.this()).with("u", u.channels_first()?).with("delta", delta.channels_first()?);
        self.with_parameters(call, &sizes, DType::Complex64, 3)
    }

    fn random(&self, sizes: &Sizes, dtype: DType) -> Result<Call> {
        let mut rng = Rng::new(51);
        let u = real(dtype, &sizes.shape("BHL"), || rng.normal())?;
        let delta = real(dtype, &sizes.shape("BPL"), || rng.uniform(0.001, 0.1))?;
        let call = Call::new(self.this()).with("u", u).with("delta", delta);
        let call = self.with_parameters(call, sizes, complex_of(dtype), 52)?;
        Ok(call.set("discretization", "zoh"))
    }

    fn bench(&self) -> Vec<(&'static str, Sizes)> {
        let layer = |batch, dim, states, seqlen| Sizes::of(&[('B', batch), ('H', dim), ('P', states), ('L', seqlen)]);
        vec![
            ("s5 listops", layer(1, 128, 128, 2048)),
            ("s5 text", layer(1, 256, 192, 4096)),
            ("s5 long", layer(1, 64, 64, 65536)),
            ("s5 batch 8", layer(8, 256, 128, 1024)),
        ]
    }
}
