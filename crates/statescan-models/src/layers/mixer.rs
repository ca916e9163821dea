//! [`Mixer`]: the layers of Mamba, FalconMamba, Mamba-2 and the gated delta rule.

use super::{Layer, LayerGradients, check, sequences, sizes};
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::Result;
use crate::mixer::{Back, BackEnds, Carried, Device as _, Host, Mixer as Weights, Named, Part, Rooms, Run, Steps};
use crate::state::LayerState;
use crate::tensors::{Array, Tensors};
use statescan::{DType, Exec, View, ViewMut};

/// The layer of Mamba, of FalconMamba (norms on step sizes, B and C), of Mamba-2 or of the gated delta rule, as the kind of its configuration says: `in_proj`,
/// convolution, scan, gate, `out_proj`. Vocabulary, number of blocks and head of the configuration do not matter.
///
/// Weights have their names in checkpoints, `in_proj.weight`, `conv1d.weight`, `A_log`, ..; their shapes are those that
/// [`Config::tensors`] gives for a block. A row's results depend on its sequence alone, bit by bit, however it is divided among calls.
pub struct Mixer {
    config: Config,
    weights: Weights,
}

impl Mixer {
    /// A layer of weights that the process has; they are copied.
    ///
    /// # Errors
    /// Sizes that do not fit together, tensors or shapes that are not those of the configuration, weights that are NaN or infinite.
    pub fn new(config: Config, weights: &Tensors) -> Result<Self> {
        Self::take(config, Checkpoint::of(weights)?)
    }

    /// A layer of random weights of a type (f32, bf16 or f16), as training begins with.
    ///
    /// # Errors
    /// Sizes that do not fit together.
    pub fn random(config: Config, dtype: DType, seed: u64) -> Result<Self> {
        config.check()?;
        let names = config.family.scan().weights(&config).into_iter().map(|weight| (weight.name.to_owned(), weight.shape));
        let weights = Checkpoint::random(&config, names, dtype, seed)?;
        Self::take(config, weights)
    }

    fn take(config: Config, mut from: Checkpoint) -> Result<Self> {
        config.check()?;
        let weights = Weights::take(&config, config.family.scan(), &mut from, "")?;
        from.finish(config.family.name())?;
        Ok(Mixer { config, weights })
    }

    /// Sizes and options.
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn run<'r>(&'r self, host: &'r Host<'_>) -> Run<'r> {
        self.weights.run(&self.config, host)
    }
}

/// A part of a state.
fn part<'s>(state: &'s LayerState, i: usize, shape: &[usize]) -> statescan::Result<View<'s>> {
    View::new(state.all().nth(i).unwrap_or_default(), shape)
}

impl Layer for Mixer {
    fn name(&self) -> &'static str {
        self.config.family.scan().name()
    }

    fn dim(&self) -> usize {
        self.config.dim
    }

    fn state(&self, batch: usize) -> LayerState {
        LayerState::new(&self.config.family.scan().states(&self.config), batch)
    }

    fn forward_from(&self, exec: &Exec, x: &[f32], state: &mut LayerState, y: &mut [f32]) -> Result<()> {
        let [sequences, steps] = sizes(self, x, state, ("y", y.len()))?;
        if x.is_empty() {
            return Ok(());
        }
        let (steps, mut rooms, host) = (Steps { sequences, steps }, Rooms::default(), Host(exec));
        let (rows, run) = (steps.rows(), self.run(&host));
        let shape = [rows, self.config.dim];
        let last = run.carry_on(View::new(x, &shape)?, vec![Carried { state, rows: 0..rows, steps, position: 0 }], &mut rooms)?;
        host.product(rooms.mixed.of(rows), last, &mut ViewMut::new(y, &shape)?)
    }

    fn backward(
        &self,
        exec: &Exec,
        x: &[f32],
        initial: &LayerState,
        dy: &[f32],
        dlast: Option<&LayerState>,
    ) -> Result<LayerGradients> {
        let [count, seqlen] = sizes(self, x, initial, ("dy", dy.len()))?;
        if let Some(dlast) = dlast {
            check(self.name(), "dlast", "of as many sequences", count, sequences(self, dlast)?)?;
        }
        let kind = self.config.family.scan();
        let zeros = |weight: Named| {
            let data = vec![0.0; weight.shape.iter().product()];
            (weight.name.to_owned(), Array { shape: weight.shape, data })
        };
        let mut weights: Tensors = kind.weights(&self.config).into_iter().map(zeros).collect();
        if x.is_empty() {
            let initial = dlast.cloned().unwrap_or_else(|| self.state(count));
            return Ok(LayerGradients { x: Vec::new(), initial, weights });
        }
        let (steps, mut first, mut dx) = (Steps { sequences: count, steps: seqlen }, self.state(count), vec![0.0; x.len()]);
        let (mut rooms, mut own, host, shape) = (Rooms::default(), Rooms::default(), Host(exec), [steps.rows(), self.config.dim]);
        let (run, x, dy) = (self.run(&host), View::new(x, &shape)?, View::new(dy, &shape)?);
        // nobody asks for the states after the last step
        let (shapes, mut after) = (kind.states(&self.config), first.clone());
        let (mut ends, mut back_ends) = (Vec::new(), Vec::new());
        for (i, ((shape, after), first)) in shapes.iter().zip(after.all_mut()).zip(first.all_mut()).enumerate() {
            let shape = [count, shape.shape[0], shape.shape[1]];
            let initial = part(initial, i, &shape)?;
            ends.push(Some((initial, ViewMut::new(after, &shape)?)));
            let last = dlast.map(|state| part(state, i, &shape)).transpose()?;
            back_ends.push(BackEnds { initial: Some(initial), last, first: Some(ViewMut::new(first, &shape)?) });
        }
        run.forward(x, vec![Part { states: ends, ..Part::whole(steps) }], &mut rooms, true)?;
        let (dx_of, into) = (ViewMut::new(&mut dx, &shape)?, kind.gradients(&self.config, &mut weights, ""));
        run.backward(Back { steps, x, dy, dx: dx_of, into, states: back_ends }, &mut rooms, &mut own)?;
        self.weights.through_decays(&self.config, &mut weights, "");
        Ok(LayerGradients { x: dx, initial: first, weights })
    }
}
