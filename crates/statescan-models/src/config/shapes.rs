//! What follows from a configuration: whether its sizes fit together, names and shapes of weights.

use super::{Config, Kind};
use crate::error::{Error, Result};
use crate::fields::LARGEST;

impl Config {
    /// Refuses sizes that do not fit together.
    ///
    /// # Errors
    /// The size, and what it must be.
    pub fn check(&self) -> Result<()> {
        let check = |holds: bool, key, expected, got| if holds { Ok(()) } else { Err(Error::Sizes { key, expected, got }) };
        let second = self.kind == Kind::Mamba2;
        let sizes = [("vocab", self.vocab), ("dim", self.dim), ("inner", self.inner), ("dstate", self.dstate)];
        for (key, size) in [&sizes[..], &[("nheads", self.nheads), ("ngroups", self.ngroups)]].concat() {
            check((1..=LARGEST).contains(&(size as u64)), key, "an integer from 1 to 16777216", size)?;
        }
        for (key, size) in [("layers", self.layers), ("dt_rank", self.dt_rank)] {
            check(size as u64 <= LARGEST, key, "at most 16777216", size)?;
        }
        check((2..=8).contains(&self.width), "width", "an integer from 2 to 8", self.width)?;
        check(second == (self.dt_rank == 0), "dt_rank", "above 0, but in Mamba-2, where it is 0", self.dt_rank)?;
        check(self.inner.is_multiple_of(self.nheads), "nheads", "a divisor of the channels", self.nheads)?;
        check(second || self.nheads == self.inner, "nheads", "as many as channels, but in Mamba-2", self.nheads)?;
        check(second || self.ngroups == 1, "ngroups", "1, but in Mamba-2", self.ngroups)?;
        check(self.nheads.is_multiple_of(self.ngroups), "ngroups", "a divisor of the number of heads", self.ngroups)
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
        let mut tensors =
            vec![(self.package.embedding().to_owned(), whole.clone()), ("backbone.norm_f.weight".to_owned(), vec![self.dim])];
        if !self.tied {
            tensors.push(("lm_head.weight".to_owned(), whole));
        }
        for i in 0..self.layers {
            tensors.push((format!("backbone.layers.{i}.norm.weight"), vec![self.dim]));
            let mixer = self.mixer_tensors().into_iter();
            tensors.extend(mixer.map(|(name, shape)| (format!("backbone.layers.{i}.mixer.{name}"), shape)));
        }
        tensors
    }

    /// The names and shapes of the weights of a block's mixer.
    pub(crate) fn mixer_tensors(&self) -> Vec<(&'static str, Vec<usize>)> {
        let Config { dim, inner, dstate, dt_rank, nheads, .. } = *self;
        let channels = self.conv_channels();
        let mut tensors = vec![
            ("in_proj.weight", vec![self.in_proj(), dim]),
            ("conv1d.weight", vec![channels, 1, self.width]),
            ("out_proj.weight", vec![dim, inner]),
        ];
        if self.bias {
            tensors.extend([("in_proj.bias", vec![self.in_proj()]), ("out_proj.bias", vec![dim])]);
        }
        if self.conv_bias {
            tensors.push(("conv1d.bias", vec![channels]));
        }
        tensors.extend(match self.kind {
            Kind::Mamba2 => {
                vec![("A_log", vec![nheads]), ("D", vec![nheads]), ("dt_bias", vec![nheads]), ("norm.weight", vec![inner])]
            }
            Kind::Mamba | Kind::FalconMamba => vec![
                ("A_log", vec![inner, dstate]),
                ("D", vec![inner]),
                ("x_proj.weight", vec![dt_rank + 2 * dstate, inner]),
                ("dt_proj.weight", vec![inner, dt_rank]),
                ("dt_proj.bias", vec![inner]),
            ],
        });
        tensors
    }

    /// Channels that the convolution goes over.
    pub fn conv_channels(&self) -> usize {
        match self.kind {
            Kind::Mamba2 => self.inner + 2 * self.ngroups * self.dstate,
            _ => self.inner,
        }
    }

    /// Channels of a head.
    pub fn headdim(&self) -> usize {
        self.inner / self.nheads
    }

    /// The shapes of a block's states: the convolution's, the scan's.
    pub(crate) fn state_shapes(&self) -> [[usize; 2]; 2] {
        [[self.conv_channels(), self.width - 1], [self.inner, self.dstate]]
    }

    /// Rows of the projection into a block.
    pub(crate) fn in_proj(&self) -> usize {
        match self.kind {
            Kind::Mamba2 => self.inner + self.conv_channels() + self.nheads,
            _ => 2 * self.inner,
        }
    }
}
