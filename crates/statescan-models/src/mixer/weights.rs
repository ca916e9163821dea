//! The weights of a mixer. Its kind names them once, where it binds them to fields; everywhere else they are a list in that order, with what each is for.

use crate::config::Config;
use crate::error::Result;
use crate::tensors::Array;
use crate::weight::Weight;
use statescan::{Tensor, ViewMut};
use std::collections::{BTreeMap, HashMap};

/// The use of a weight, which decides how it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The weight of a product, used in the type that it has.
    Matrix,
    /// The bias of a product within a mixer.
    Bias,
    /// The bias of the last product, whose results are added to the stream.
    LastBias,
    /// Filters (channels, 1, width), used as (channels, width).
    Filter,
    /// Logarithms of decays, used as decays: `A = -exp(A_log)`.
    Decay,
    /// The weight of a norm, less what [`Config::norm_offset`](crate::config::Config::norm_offset) says.
    Norm,
    /// Anything else that is small.
    Vector,
}

/// A weight of a mixer as checkpoints have it.
pub(crate) struct Named {
    pub(crate) name: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) role: Role,
}

/// Gives the next weight of a mixer: by its name, its shape in checkpoints and its role, or by its place in a list.
pub(crate) type Next<'n, T> = &'n mut dyn FnMut(&'static str, &[usize], Role) -> T;

/// The weights of a list, one after the other.
///
/// # Panics
/// If there are fewer than a kind names.
pub(crate) fn listed<T>(list: impl IntoIterator<Item = T>) -> impl FnMut(&'static str, &[usize], Role) -> T {
    let mut list = list.into_iter();
    move |name, _, _| list.next().unwrap_or_else(|| panic!("a weight `{name}`"))
}

/// A linear layer: its weight (outputs, inputs), and a bias.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Linear<T> {
    pub(crate) weight: T,
    pub(crate) bias: Option<T>,
}

impl<T> Linear<T> {
    /// One without a bias.
    pub(crate) fn plain(weight: T) -> Self {
        Linear { weight, bias: None }
    }

    /// Binds one of a shape by its two names, the bias where it has a role.
    pub(crate) fn bind(next: Next<'_, T>, [weight, bias]: [&'static str; 2], shape: [usize; 2], role: Option<Role>) -> Self {
        let weight = next(weight, &shape, Role::Matrix);
        Linear { weight, bias: role.map(|role| next(bias, &shape[..1], role)) }
    }
}

impl Role {
    /// A weight in the form in which the host uses it.
    pub(crate) fn used(self, config: &Config, weight: Weight) -> Result<Weight> {
        let numbers = match self {
            Role::Matrix => return Ok(weight),
            Role::Decay => weight.to_f32().into_iter().map(|log| -log.exp()).collect(),
            Role::Norm => weight.to_f32().into_iter().map(|x| x + config.norm_offset()).collect(),
            _ => weight.to_f32(),
        };
        Ok(match weight.shape() {
            &[channels, _, width] if self == Role::Filter => Weight::from_slice(&numbers, &[channels, width])?,
            shape => Weight::from_slice(&numbers, shape)?,
        })
    }
}

/// Numbers that can be written.
pub(crate) trait Written {
    fn written(&mut self) -> ViewMut<'_>;
}

impl Written for Array {
    fn written(&mut self) -> ViewMut<'_> {
        ViewMut::new(&mut self.data, &self.shape).expect("as many numbers as the shape has")
    }
}

impl Written for Tensor {
    fn written(&mut self) -> ViewMut<'_> {
        self.view_mut()
    }
}

/// The gradients by the weights of a mixer in the order of these, from tensors by name that have a prefix; those by decays are to stand in the place of
/// those by their logarithms.
///
/// # Panics
/// If one is missing: what the model is made of and what it has gradients of are the same names.
pub(crate) fn gradients<'g, T: Written>(
    weights: &[Named],
    tensors: &'g mut BTreeMap<String, T>,
    prefix: &str,
) -> Vec<ViewMut<'g>> {
    let part = tensors.range_mut(prefix.to_owned()..).take_while(|(name, _)| name.starts_with(prefix));
    let mut part: HashMap<&str, ViewMut<'g>> = part.map(|(name, tensor)| (&name[prefix.len()..], tensor.written())).collect();
    let gradient = |weight: &Named| {
        let whole = part.remove(weight.name).expect("a gradient by every weight");
        if weight.role == Role::Filter { whole.index(1, 0) } else { whole }
    };
    weights.iter().map(gradient).collect()
}
