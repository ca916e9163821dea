//! [`Mixer`]: the layers of Mamba, FalconMamba and Mamba-2.

use super::{Layer, LayerGradients, check, sequences, sizes};
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::Result;
use crate::mixer::Mixer as Weights;
use crate::rows::backward::{Batch, Ends};
use crate::rows::{Pass, Rooms};
use crate::state::LayerState;
use crate::tensors::{Array, Slots, Tensors};
use statescan::{DType, Exec};

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

    /// All sequences at once, rows of the same sequence side by side; what lies between stays in the rooms.
    fn run(
        &self,
        exec: &Exec,
        x: &[f32],
        [batch, seqlen]: [usize; 2],
        ends: (&mut LayerState, &mut [f32]),
        rooms: &mut Rooms,
    ) -> Result<()> {
        let (state, y) = ends;
        let mut rows: Vec<LayerState> = (0..batch).map(|row| state.of_row(row, batch)).collect();
        let sequences: Vec<_> = (0..batch).map(|row| row * seqlen..(row + 1) * seqlen).collect();
        let pass = Pass { exec, rows: batch * seqlen, sequences: &sequences };
        self.weights.forward(&pass, x, &mut rows.iter_mut().collect::<Vec<_>>(), rooms, y)?;
        *state = LayerState::of_rows(&rows);
        Ok(())
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
        LayerState::of_rows(&vec![LayerState::new(&self.config); batch])
    }

    fn forward_from(&self, exec: &Exec, x: &[f32], state: &mut LayerState, y: &mut [f32]) -> Result<()> {
        let sizes = sizes(self, x, state, ("y", y.len()))?;
        if x.is_empty() { Ok(()) } else { self.run(exec, x, sizes, (state, y), &mut Rooms::default()) }
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
        let (mut rooms, mut state, mut y) = (Rooms::default(), initial.clone(), vec![0.0; x.len()]);
        self.run(exec, x, [count, seqlen], (&mut state, &mut y), &mut rooms)?;
        let (mut first, batch) = (self.state(count), Batch { exec, count, seqlen });
        let mut slots = Slots { tensors: &mut weights, prefix: "" };
        let mut ends = Ends { initial: Some(initial), last: dlast, first: Some(&mut first) };
        let x = self.weights.backward(batch, x, dy, &mut rooms, &mut slots, &mut ends)?;
        Ok(LayerGradients { x, initial: first, weights })
    }
}
