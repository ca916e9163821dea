//! [`Mixer`]: the layers of Mamba, FalconMamba and Mamba-2.

use super::{Layer, LayerGradients, check, sequences, sizes};
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::Result;
use crate::inner::{BackEnds, Steps};
use crate::mixer::{Back, Device as _, Gradients, Host, Mixer as Weights, Part, Run};
use crate::rooms::{BackRooms, Rooms};
use crate::state::LayerState;
use crate::tensors::{Array, Tensors};
use statescan::{DType, Exec, View, ViewMut};

/// The layer of Mamba, of FalconMamba (norms on step sizes, B and C) or of Mamba-2, as the kind of its configuration says: `in_proj`,
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
        let names = config.mixer_tensors().into_iter().map(|(name, shape)| (name.to_owned(), shape));
        let weights = Checkpoint::random(&config, names, dtype, seed)?;
        Self::take(config, weights)
    }

    fn take(config: Config, mut from: Checkpoint) -> Result<Self> {
        config.check()?;
        let weights = Weights::take(&config, &mut from, "")?;
        from.finish(config.kind.name())?;
        Ok(Mixer { config, weights })
    }

    /// Sizes and options.
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn run<'r>(&'r self, host: &'r Host<'_>) -> Run<'r> {
        Run { device: host, config: &self.config, weights: self.weights.weights() }
    }
}

impl Layer for Mixer {
    fn name(&self) -> &'static str {
        self.config.kind.name()
    }

    fn dim(&self) -> usize {
        self.config.dim
    }

    fn state(&self, batch: usize) -> LayerState {
        LayerState::of_sequences(&self.config, batch)
    }

    fn forward_from(&self, exec: &Exec, x: &[f32], state: &mut LayerState, y: &mut [f32]) -> Result<()> {
        let [sequences, steps] = sizes(self, x, state, ("y", y.len()))?;
        if x.is_empty() {
            return Ok(());
        }
        let (steps, mut rooms, host) = (Steps { sequences, steps }, Rooms::default(), Host(exec));
        let (rows, run) = (steps.rows(), self.run(&host));
        let shape = [rows, self.config.dim];
        run.carry_on(View::new(x, &shape)?, vec![(state, 0..rows, steps)], &mut rooms)?;
        host.product(rooms.mixed(&self.config).of(rows), run.weights.out_proj, &mut ViewMut::new(y, &shape)?)
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
        let zeros = |(name, shape): (&str, Vec<usize>)| {
            let data = vec![0.0; shape.iter().product()];
            (name.to_owned(), Array { shape, data })
        };
        let mut weights: Tensors = self.config.mixer_tensors().into_iter().map(zeros).collect();
        if x.is_empty() {
            let initial = dlast.cloned().unwrap_or_else(|| self.state(count));
            return Ok(LayerGradients { x: Vec::new(), initial, weights });
        }
        let (steps, mut first, mut dx) = (Steps { sequences: count, steps: seqlen }, self.state(count), vec![0.0; x.len()]);
        let (mut rooms, mut own, host, shape) =
            (Rooms::default(), BackRooms::default(), Host(exec), [steps.rows(), self.config.dim]);
        let (run, x, dy) = (self.run(&host), View::new(x, &shape)?, View::new(dy, &shape)?);
        let [conv, scan] = self.config.state_shapes().map(|[rows, columns]| [count, rows, columns]);
        // what the states become is not asked for
        let mut after = first.clone();
        let of_conv = (View::new(&initial.conv, &conv)?, ViewMut::new(&mut after.conv, &conv)?);
        let of_scan = (View::new(&initial.scan, &scan)?, ViewMut::new(&mut after.scan, &scan)?);
        let part = Part { conv: Some(of_conv), scan: Some(of_scan), ..Part::whole(steps) };
        run.forward(x, vec![part], &mut rooms, true)?;
        let back = Back {
            conv: BackEnds::new(&initial.conv, dlast.map(|state| &state.conv[..]), &mut first.conv, conv)?,
            scan: BackEnds::new(&initial.scan, dlast.map(|state| &state.scan[..]), &mut first.scan, scan)?,
            ..Back::new(steps, x, dy)
        };
        run.backward(back, &mut rooms, &mut own, &mut ViewMut::new(&mut dx, &shape)?, Gradients::of(&mut weights, ""))?;
        self.weights.through_decays(&mut weights.get_mut("A_log").expect("a gradient by every weight").data);
        Ok(LayerGradients { x: dx, initial: first, weights })
    }
}
