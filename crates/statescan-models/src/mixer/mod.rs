//! The mixer of a layer, its work between its norm and the residual stream:
//!
//! ```text
//! x, z, .. = in_proj(u)      x = silu(conv(x))      y = scan(x, dt, A, B, C, D) silu(z)      out_proj(y)
//! ```
//!
//! In Mamba dt, B and C are projections of the convolution's result, in FalconMamba with norms; in Mamba-2 they come from the first projection and the
//! convolution, and the gate is part of a norm behind the scan. The gated delta rule has queries, keys and values from the convolution. Hybrids have layers of attention and feed-forward layers too.
//!
//! Each kind has a folder, in which it names its weights and states and has its passes, on views, for every device that has the verbs of `device.rs`. A new
//! one is such a folder, a kind of the configuration, and a line of the list below.

mod attention;
mod convolution;
mod delta;
mod device;
mod host;
mod mamba;
mod mamba2;
mod mlp;
pub(crate) mod numbers;
mod one_row;
mod rooms;
mod run;
mod weights;

use crate::checkpoint::Checkpoint;
use crate::config::{Config, Kind};
use crate::error::Result;
use crate::state::StateShape;
use crate::weight::Weight;
pub(crate) use device::{Device, Heads, Multiplied};
pub(crate) use host::Host;
pub(crate) use one_row::{OneRow, Row};
pub(crate) use rooms::{Room, Rooms};
pub(crate) use run::{Back, BackEnds, Carried, Last, Part, Run, Steps};
use statescan::{View, ViewMut};
use weights::Next;
pub(crate) use weights::{Linear, Named, Role, Written};

impl Kind {
    /// All of them.
    pub(crate) const ALL: [Kind; 6] =
        [Kind::Mamba, Kind::FalconMamba, Kind::Mamba2, Kind::GatedDelta, Kind::Attention, Kind::Mlp];

    /// Returns the mixer of this kind.
    pub(crate) fn mix(self) -> &'static dyn Mix {
        match self {
            Kind::Mamba => &mamba::Mamba { norms: false },
            Kind::FalconMamba => &mamba::Mamba { norms: true },
            Kind::Mamba2 => &mamba2::Mamba2,
            Kind::GatedDelta => &delta::Delta,
            Kind::Attention => &attention::Attention,
            Kind::Mlp => &mlp::Mlp,
        }
    }

    /// Its weights, in the order in which everything has them.
    pub(crate) fn weights(self, config: &Config) -> Vec<Named> {
        let mut all = Vec::new();
        self.mix().weights(config, &mut |name, shape, role| all.push(Named { name, shape: shape.to_vec(), role }));
        all
    }

    /// Its states.
    pub(crate) fn states(self, config: &Config) -> Vec<StateShape> {
        self.mix().states(config)
    }

    /// The gradients by its weights among tensors by name that have a prefix, in the order of weights.
    pub(crate) fn gradients<'g, T: Written>(
        self,
        config: &Config,
        tensors: &'g mut std::collections::BTreeMap<String, T>,
        prefix: &str,
    ) -> Vec<ViewMut<'g>> {
        weights::gradients(&self.weights(config), tensors, prefix)
    }
}

/// The weights, states and passes of one kind of mixer.
pub(crate) trait Mix: OneRow + Sync {
    /// Names its weights, one after the other.
    fn weights(&self, config: &Config, each: Next<'_, ()>);

    /// Returns the shapes of its states of a sequence.
    fn states(&self, config: &Config) -> Vec<StateShape>;

    /// Numbers that a row has on its way.
    fn row(&self, config: &Config) -> usize;

    /// Derives weights from those of the checkpoint, once for all passes, for scans that go step by step or for those that do
    /// not.
    fn derived(&self, _: &Config, _: &[Weight], _step_by_step: bool) -> Result<Vec<Weight>> {
        Ok(Vec::new())
    }

    /// As [`Run::forward`].
    fn forward<'r>(&self, run: &Run<'r>, x: View<'_>, parts: Vec<Part<'_>>, rooms: &mut Rooms, keep: bool) -> Result<Last<'r>>;

    /// As [`Run::backward`].
    fn backward(&self, run: &Run<'_>, back: Back<'_>, rooms: &mut Rooms, own: &mut Rooms) -> Result<()>;
}

/// A mixer whose weights the process has.
pub(crate) struct Mixer {
    kind: Kind,
    pub(crate) weights: Vec<Weight>,
    derived: Vec<Weight>,
}

impl Mixer {
    /// Takes the weights of a mixer, whose names have a prefix.
    pub(crate) fn take(config: &Config, kind: Kind, from: &mut Checkpoint, prefix: &str) -> Result<Self> {
        let take = |named: Named| named.role.used(config, from.take(&format!("{prefix}{}", named.name), &named.shape)?);
        let weights: Vec<Weight> = kind.weights(config).into_iter().map(take).collect::<Result<_>>()?;
        let derived = kind.mix().derived(config, &weights, true)?;
        Ok(Mixer { kind, weights, derived })
    }

    /// The weights of its products.
    pub(crate) fn products(&self, config: &Config) -> impl Iterator<Item = &Weight> {
        let all = self.kind.weights(config).into_iter().zip(&self.weights);
        all.filter(|(named, _)| named.role == Role::Matrix).map(|(_, weight)| weight)
    }

    /// The mixer on the host.
    pub(crate) fn run<'r>(&'r self, config: &'r Config, host: &'r Host<'_>) -> Run<'r> {
        let [weights, derived] = [&self.weights, &self.derived].map(|all| all.iter().map(Weight::view).collect());
        Run { device: host, config, kind: self.kind, weights, derived }
    }
}
