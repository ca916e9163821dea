//! [`S5`]: the layer of Smith, Warrington and Linderman.

use super::{Layer, LayerGradients, Part, check};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::kernels::training::scale_by;
use crate::mixer::Host;
use crate::model::whole::Trains as _;
use crate::random::Random;
use crate::tensors::{Array, Tensors};
use bytemuck::cast_slice;
use num_complex::Complex32;
use statescan::ops::simplified_scan::{Args, Cotangents, Gradients, Outputs, prepare};
use statescan::tensor::{Device, Workspace};
use statescan::{DType, Discretization, Exec, Tensor, View, ViewMut};

const NAME: &str = "s5";

/// Sizes and options of a layer of S5.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq)]
pub struct S5Config {
    /// Width of the rows.
    pub dim: usize,
    /// Complex states.
    pub dstate: usize,
    /// How the continuous system becomes a recurrence.
    pub discretization: Discretization,
    /// Whether the states stand for conjugate pairs, of which one each is kept.
    pub conj_sym: bool,
    /// Multiplies step sizes.
    pub step_rescale: f32,
}

impl S5Config {
    /// Zero-order hold, conjugate pairs.
    pub fn new(dim: usize, dstate: usize) -> Self {
        S5Config { dim, dstate, discretization: Discretization::Zoh, conj_sym: true, step_rescale: 1.0 }
    }

    /// The names and shapes of the weights; a last axis of 2 has real and imaginary parts.
    pub fn tensors(&self) -> [(&'static str, Vec<usize>); 5] {
        let (dim, dstate) = (self.dim, self.dstate);
        [
            ("A", vec![dstate, 2]),
            ("B", vec![dstate, dim, 2]),
            ("C", vec![dim, dstate, 2]),
            ("D", vec![dim]),
            ("log_dt", vec![dstate]),
        ]
    }
}

/// The layer of S5, `y = f Re(C x) + D u` of a scan whose inputs and outputs are all channels, with f = 2 for conjugate pairs. Step sizes are
/// `exp(log_dt) step_rescale`. Names and shapes of weights are those of `statescan.nn.S5` in Python; gradients of A, B and C are complex, without the last
/// axis of two.
pub struct S5 {
    exec: Exec,
    config: S5Config,
    /// A, B and C, and D.
    maps: [Tensor; 3],
    d: Tensor,
    dt: Tensor,
}

impl S5 {
    /// A layer of weights that the process has; they are copied.
    ///
    /// # Errors
    /// Sizes of zero, tensors or shapes that are not those of the configuration, weights that are NaN or infinite; errors of the device.
    pub fn new(exec: &Exec, config: S5Config, weights: &Tensors) -> Result<Self> {
        if config.dim == 0 || config.dstate == 0 {
            return Err(Error::Size { layer: NAME, argument: "config", shape: "of sizes above zero", expected: 1, got: 0 });
        }
        let mut from = Checkpoint::of(weights)?;
        for (name, shape) in config.tensors() {
            from.take(name, &shape)?;
        }
        from.finish(NAME)?;
        let complex = |name: &str| {
            let Array { shape, data } = &weights[name];
            Tensor::from_slice(exec, cast_slice::<f32, Complex32>(data), &shape[..shape.len() - 1])
        };
        let dt: Vec<f32> = weights["log_dt"].data.iter().map(|log| log.exp() * config.step_rescale).collect();
        let maps = [complex("A")?, complex("B")?, complex("C")?];
        let d = Tensor::from_slice(exec, &weights["D"].data, &[config.dim])?;
        Ok(S5 { exec: exec.clone(), dt: Tensor::from_slice(exec, &dt, &[config.dstate])?, config, maps, d })
    }

    /// A layer of random weights: decays of a half with the frequencies 0, 1, .. times pi, step sizes between 0.001 and 0.1.
    ///
    /// # Errors
    /// Sizes of zero.
    pub fn random(exec: &Exec, config: S5Config, seed: u64) -> Result<Self> {
        let mut random = Random::new(seed);
        let weight = |(name, shape): (&str, Vec<usize>)| {
            let (len, bound) = (shape.iter().product::<usize>(), (shape.get(1).copied().unwrap_or(1) as f64).sqrt().recip());
            let element = |i: usize| match name {
                "A" if i.is_multiple_of(2) => -0.5,
                "A" => std::f64::consts::PI * (i / 2) as f64,
                "log_dt" => random.uniform(0.001f64.ln(), 0.1f64.ln()),
                "D" => 0.1 * random.normal(),
                _ => random.uniform(-bound, bound),
            };
            let data = (0..len).map(element).map(|x| x as f32).collect();
            (name.to_owned(), Array { shape, data })
        };
        let weights = config.tensors().map(weight);
        Self::new(exec, config, &Tensors::from(weights))
    }

    /// Sizes and options.
    pub fn config(&self) -> &S5Config {
        &self.config
    }

    /// The call for rows of sequences and a state.
    fn args<'a>(&'a self, batch: usize, x: View<'a>, initial: Option<View<'a>>) -> Args<'a> {
        let S5Config { discretization, conj_sym, .. } = self.config;
        let [a, b, c] = self.maps.each_ref().map(Tensor::view);
        let args = Args::new(channels(batch, x), self.dt.view(), a, b, c);
        args.discretization(discretization).d(self.d.view()).conj_sym(conj_sym).initial_state(initial)
    }
}

/// Rows (batch x seqlen, dim) as (batch, dim, seqlen).
fn channels(batch: usize, rows: View<'_>) -> View<'_> {
    rows.split(0, batch).permute(&[0, 2, 1])
}

impl Layer for S5 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn exec(&self) -> &Exec {
        &self.exec
    }

    fn dim(&self) -> usize {
        self.config.dim
    }

    fn dtype(&self) -> DType {
        DType::F32
    }

    fn state_parts(&self) -> Vec<Part> {
        vec![Part { name: "scan", dtype: DType::Complex64, shape: vec![self.config.dstate] }]
    }

    fn weights(&self) -> Vec<Part> {
        let part = |(name, shape): (&'static str, Vec<usize>)| match shape[..] {
            [ref complex @ .., 2] if ["A", "B", "C"].contains(&name) => {
                Part { name, dtype: DType::Complex64, shape: complex.to_vec() }
            }
            _ => Part { name, dtype: DType::F32, shape },
        };
        self.config.tensors().into_iter().map(part).collect()
    }

    fn forward(&self, batch: usize, x: View<'_>, initial: &[Tensor], y: ViewMut<'_>, last: &mut [Tensor]) -> Result<()> {
        check(self, batch, [("x", x); 2], &[("initial", initial)], (Some(&y), &mut *last))?;
        let args = self.args(batch, x, initial.first().map(Tensor::view));
        let (call, mut workspace) = (prepare(&self.exec, &args)?, Workspace::default());
        let scratch = workspace.view_mut(&self.exec, call.workspace_len()?)?;
        let y = y.split(0, batch).permute(&[0, 2, 1]);
        let last = last.first_mut().map(Tensor::view_mut);
        call.forward(&mut Outputs::default().y(y).last_state(last).workspace(scratch))?;
        Ok(self.exec.synchronize()?)
    }

    fn backward(&self, batch: usize, x: View<'_>, initial: &[Tensor], dy: View<'_>, dlast: &[Tensor]) -> Result<LayerGradients> {
        check(self, batch, [("x", x), ("dy", dy)], &[("initial", initial), ("dlast", dlast)], (None, &mut []))?;
        let mut found = LayerGradients::new(self, batch, x.shape()[0])?;
        let LayerGradients { x: dx, initial: first, weights } = &mut found;
        let args = self.args(batch, x, initial.first().map(Tensor::view));
        let (call, mut workspace) = (prepare(&self.exec, &args)?, Workspace::default());
        let cotangents = Cotangents::default().y(channels(batch, dy)).last_state(dlast.first().map(Tensor::view));
        let mut all = weights.values_mut().map(Tensor::view_mut);
        let mut next = || all.next().expect("a gradient by every weight");
        let mut grads = Gradients::default()
            .u(dx.view_mut().split(0, batch).permute(&[0, 2, 1]))
            .initial_state(first.first_mut().map(Tensor::view_mut))
            // in the order of names
            .a(next())
            .b(next())
            .c(next())
            .d(next())
            .delta(next())
            .workspace(workspace.view_mut(&self.exec, call.backward_workspace_len(false)?)?);
        call.backward(None, &cotangents, &mut grads)?;
        // dt = exp(log_dt) step_rescale is its own derivative
        let (of_dt, dt) = (&mut weights.get_mut("log_dt").expect("it is one of them").view_mut(), self.dt.view());
        match self.exec.device() {
            Device::Cpu => Host(&self.exec).scale(of_dt, dt)?,
            _ => scale_by(&self.exec, of_dt, dt)?,
        }
        self.exec.synchronize()?;
        Ok(found)
    }
}
