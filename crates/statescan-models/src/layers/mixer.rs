//! [`Mixer`]: the layers of Mamba, FalconMamba, Mamba-2 and the gated delta rule.

use super::{Layer, LayerGradients, Part, check};
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::device::{Gpu, Upload};
use crate::error::Result;
use crate::mixer::{self, Back, BackEnds, Host, Mixer as Weights, Named, Role, Rooms, Run, Steps};
use crate::model::whole::Trains;
use crate::state::StateShape;
use crate::tensors::Tensors;
use statescan::tensor::Device;
use statescan::{DType, Exec, Tensor, View, ViewMut};

/// The layer of Mamba, of FalconMamba (norms on step sizes, B and C), of Mamba-2 or of the gated delta rule, as the kind of its configuration says: `in_proj`,
/// convolution, scan, gate, `out_proj`. Vocabulary, number of blocks and head of the configuration do not matter.
///
/// Weights have their names in checkpoints, `in_proj.weight`, `conv1d.weight`, `A_log`, ..; their shapes are those that
/// [`Config::tensors`] gives for a block. On the CPU rows are f32, and a row's results depend on its sequence alone, bit by bit, however it is divided among
/// calls; on a GPU rows have the type of the weights.
pub struct Mixer {
    exec: Exec,
    config: Config,
    dtype: DType,
    held: Held,
}

/// Weights where they are.
enum Held {
    Host(Weights),
    Gpu { gpu: Box<Gpu>, weights: Vec<Tensor>, derived: Vec<Tensor> },
}

impl Mixer {
    /// A layer of weights that the process has; they are copied.
    ///
    /// # Errors
    /// Sizes that do not fit together, tensors or shapes that are not those of the configuration, weights that are NaN or infinite; errors of the device.
    pub fn new(exec: &Exec, config: Config, weights: &Tensors) -> Result<Self> {
        Self::take(exec, config, DType::F32, Checkpoint::of(weights)?)
    }

    /// A layer of random weights of a type (f32, bf16 or f16), as training begins with.
    ///
    /// # Errors
    /// Sizes that do not fit together; errors of the device.
    pub fn random(exec: &Exec, config: Config, dtype: DType, seed: u64) -> Result<Self> {
        config.check()?;
        let names = config.family.scan().weights(&config).into_iter().map(|weight| (weight.name.to_owned(), weight.shape));
        let weights = Checkpoint::random(&config, names, dtype, seed)?;
        Self::take(exec, config, dtype, weights)
    }

    fn take(exec: &Exec, config: Config, dtype: DType, mut from: Checkpoint) -> Result<Self> {
        config.check()?;
        let kind = config.family.scan();
        let host = Weights::take(&config, kind, &mut from, "")?;
        from.finish(config.family.name())?;
        let (exec, held) = match exec.device() {
            Device::Cpu => (exec.clone(), Held::Host(host)),
            _ => {
                let [weights, derived] = Upload { exec, dtype }.mixer(&config, kind, &host)?;
                (exec.clone(), Held::Gpu { gpu: Box::new(Gpu::new(exec)?), weights, derived })
            }
        };
        let dtype = if matches!(held, Held::Host(_)) { DType::F32 } else { dtype };
        Ok(Mixer { exec, config, dtype, held })
    }

    /// Sizes and options.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The mixer on its device.
    fn with<T>(&self, call: impl FnOnce(&dyn Trains, &Run<'_>) -> Result<T>) -> Result<T> {
        let (config, kind, host) = (&self.config, self.config.family.scan(), Host(&self.exec));
        match &self.held {
            Held::Host(weights) => call(&host, &weights.run(config, &host)),
            Held::Gpu { gpu, weights, derived } => {
                let [weights, derived] = [weights, derived].map(|all| all.iter().map(Tensor::view).collect());
                call(&**gpu, &Run { device: &**gpu, config, kind, weights, derived })
            }
        }
    }
}

impl Layer for Mixer {
    fn name(&self) -> &'static str {
        self.config.family.scan().name()
    }

    fn exec(&self) -> &Exec {
        &self.exec
    }

    fn dim(&self) -> usize {
        self.config.dim
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn state_parts(&self) -> Vec<Part> {
        let part = |state: StateShape| Part { name: state.name, dtype: DType::F32, shape: state.shape.to_vec() };
        self.config.family.scan().states(&self.config).into_iter().map(part).collect()
    }

    fn weights(&self) -> Vec<Part> {
        let part = |Named { name, shape, .. }| Part { name, dtype: DType::F32, shape };
        self.config.family.scan().weights(&self.config).into_iter().map(part).collect()
    }

    fn forward(&self, batch: usize, x: View<'_>, initial: &[Tensor], mut y: ViewMut<'_>, last: &mut [Tensor]) -> Result<()> {
        let steps = check(self, batch, [("x", x); 2], &[("initial", initial)], (Some(&y), &mut *last))?;
        let (steps, rows) = (Steps { sequences: batch, steps }, batch * steps);
        let carries = !initial.is_empty() || !last.is_empty();
        // zeros for a state that is not given, and room for one that nobody asks for
        let (zeros, mut spare) = if carries { (self.state(batch)?, self.state(batch)?) } else { (Vec::new(), Vec::new()) };
        let initial = if initial.is_empty() { &zeros } else { initial };
        let last = if last.is_empty() { &mut spare } else { last };
        let states = initial.iter().zip(last).map(|(initial, last)| Some((initial.view(), last.view_mut()))).collect();
        self.with(|device, run| {
            let mut rooms = Rooms::default();
            let last = run.forward(x, vec![mixer::Part { states, ..mixer::Part::whole(steps) }], &mut rooms, false)?;
            device.product(rooms.mixed.of(rows), last, &mut y)?;
            Ok(self.exec.synchronize()?)
        })
    }

    fn backward(&self, batch: usize, x: View<'_>, initial: &[Tensor], dy: View<'_>, dlast: &[Tensor]) -> Result<LayerGradients> {
        let steps = check(self, batch, [("x", x), ("dy", dy)], &[("initial", initial), ("dlast", dlast)], (None, &mut []))?;
        let (steps, kind) = (Steps { sequences: batch, steps }, self.config.family.scan());
        let mut found = LayerGradients::new(self, batch, steps.rows())?;
        // nobody asks for the states after the last step
        let mut after = self.state(batch)?;
        let states = initial.iter().zip(&mut after).map(|(initial, after)| Some((initial.view(), after.view_mut())));
        let whole = mixer::Part { states: states.collect(), ..mixer::Part::whole(steps) };
        let LayerGradients { x: dx, initial: first, weights } = &mut found;
        let ends = first.iter_mut().enumerate().map(|(i, first)| BackEnds {
            initial: initial.get(i).map(Tensor::view),
            last: dlast.get(i).map(Tensor::view),
            first: Some(first.view_mut()),
        });
        let into = kind.gradients(&self.config, weights, "");
        let back = Back { steps, x, dy, dx: dx.view_mut(), into, states: ends.collect() };
        self.with(|_, run| {
            let (mut rooms, mut own) = (Rooms::default(), Rooms::default());
            run.forward(x, vec![whole], &mut rooms, true)?;
            run.backward(back, &mut rooms, &mut own)
        })?;
        self.with(|device, run| {
            // A = -exp(A_log) is its own derivative
            let all = kind.weights(&self.config).into_iter().zip(&run.weights);
            for (named, decays) in all.filter(|(named, _)| named.role == Role::Decay) {
                let gradient = weights.get_mut(named.name).expect("a gradient by every weight");
                device.scale(&mut gradient.view_mut(), *decays)?;
            }
            Ok(self.exec.synchronize()?)
        })?;
        Ok(found)
    }
}
