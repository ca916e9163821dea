//! Consequences of a configuration: whether its sizes fit together, names and shapes of weights.

use super::names::HEAD;
use super::{Attention, Config, HeadNorms, Kind, Scales, expressible};
use crate::error::{Error, Result};
use crate::fields::LARGEST;

/// Numbers that keys and values of the delta rule have at most.
pub(super) const MOST_WIDTH: usize = 256;

impl Config {
    /// Refuses sizes that do not fit together.
    ///
    /// # Errors
    /// The size, and what it must be.
    pub fn check(&self) -> Result<()> {
        let check = |holds: bool, key, expected, got| if holds { Ok(()) } else { Err(Error::Sizes { key, expected, got }) };
        let second = self.has_heads();
        let sizes = [("vocab", self.vocab), ("dim", self.dim), ("inner", self.inner), ("dstate", self.dstate)];
        for (key, size) in [&sizes[..], &[("nheads", self.nheads), ("ngroups", self.ngroups)]].concat() {
            check((1..=LARGEST).contains(&(size as u64)), key, "an integer from 1 to 16777216", size)?;
        }
        for (key, size) in [("layers", self.layers.len()), ("dt_rank", self.dt_rank)] {
            check(size as u64 <= LARGEST, key, "at most 16777216", size)?;
        }
        self.check_layers()?;
        check((2..=8).contains(&self.width), "width", "an integer from 2 to 8", self.width)?;
        check(second == (self.dt_rank == 0), "dt_rank", "above 0, but 0 where heads have decays", self.dt_rank)?;
        check(self.inner.is_multiple_of(self.nheads), "nheads", "a divisor of the channels", self.nheads)?;
        check(second || self.nheads == self.inner, "nheads", "as many as channels in Mamba", self.nheads)?;
        check(second || self.ngroups == 1, "ngroups", "1 in Mamba", self.ngroups)?;
        let delta = self.family.scan() == Kind::GatedDelta;
        check(!delta || self.dstate <= MOST_WIDTH, "dstate", "at most 256 with the delta rule", self.dstate)?;
        check(!delta || self.headdim() <= MOST_WIDTH, "inner", "at most 256 for each head with the delta rule", self.inner)?;
        check(self.nheads.is_multiple_of(self.ngroups), "ngroups", "a divisor of the number of heads", self.ngroups)
    }

    /// Refuses layers of kinds that the family does not have where they are, and sizes of hybrids.
    fn check_layers(&self) -> Result<()> {
        let check = |holds: bool, key, expected, got| if holds { Ok(()) } else { Err(Error::Sizes { key, expected, got }) };
        let fits = |(i, &kind): (usize, &Kind)| match self.family.is_hybrid() {
            false => kind == self.family.scan(),
            true if i % 2 == 1 => kind == Kind::Mlp,
            true => kind == self.family.scan() || kind == Kind::Attention,
        };
        let other = self.layers.iter().enumerate().position(|layer| !fits(layer));
        check(other.is_none(), "layers", "of kinds that the family has in this place, but for none", other.unwrap_or_default())?;
        if !self.family.is_hybrid() {
            // only hybrids have a setting for them, and training on a GPU knows of none
            return expressible(
                self,
                self.scales == Scales::default(),
                "scales",
                "1, but in hybrids",
                format!("{:?}", self.scales),
            );
        }
        check(self.layers.len().is_multiple_of(2), "layers", "pairs of a mixer and a feed-forward layer", self.layers.len())?;
        let Attention { heads, kv_heads, headdim, rotary, norms, gate, .. } = self.attention;
        let sizes = [("attention.heads", heads), ("attention.kv_heads", kv_heads), ("attention.headdim", headdim)];
        for (key, size) in [&sizes[..], &[("feed_forward.hidden", self.feed_forward.hidden)]].concat() {
            check((1..=LARGEST).contains(&(size as u64)), key, "an integer from 1 to 16777216", size)?;
        }
        expressible(self, !gate || norms == HeadNorms::Each, "attention.gate", "false without norms of each head", gate)?;
        let (behind, residual) = ((0..self.layers.len()).any(|layer| self.norm_is_behind(layer)), self.scales.residual);
        expressible(self, !behind || residual == 1.0, "scales.residual", "1 where norms follow layers", residual)?;
        check(heads.is_multiple_of(kv_heads), "attention.kv_heads", "a divisor of the heads of queries", kv_heads)?;
        check(rotary <= headdim && rotary.is_multiple_of(2), "attention.rotary", "even, and at most a head's numbers", rotary)
    }

    /// Whether scans have a decay for each head, as in Mamba-2 and the delta rule, and not for each channel.
    pub(crate) fn has_heads(&self) -> bool {
        matches!(self.family.scan(), Kind::Mamba2 | Kind::GatedDelta)
    }

    /// Refuses tokens beyond the vocabulary.
    pub(crate) fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        let vocab = self.vocab;
        match tokens.iter().position(|&token| token as usize >= vocab) {
            None => Ok(()),
            Some(position) => Err(Error::Token { token: tokens[position], position, vocab }),
        }
    }

    /// The names and shapes of all weights.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let whole = [self.vocab, self.dim].to_vec();
        let mut tensors = vec![(self.embedding().to_owned(), whole.clone()), (self.last_norm().to_owned(), vec![self.dim])];
        if !self.tied {
            tensors.push((HEAD.to_owned(), whole));
        }
        for (i, kind) in self.layers.iter().enumerate() {
            tensors.push((self.norm(i), vec![self.dim]));
            let (prefix, weights) = (self.prefix(i), kind.weights(self));
            tensors.extend(weights.into_iter().map(|weight| (format!("{prefix}{}", weight.name), weight.shape)));
        }
        tensors
    }

    /// Channels that the convolution goes over.
    pub fn conv_channels(&self) -> usize {
        if self.has_heads() { self.inner + 2 * self.ngroups * self.dstate } else { self.inner }
    }

    /// Channels of a head.
    pub fn headdim(&self) -> usize {
        self.inner / self.nheads
    }
}
