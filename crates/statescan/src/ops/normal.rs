//! The normal form of a call: time runs forwards, and states have a sequence axis.

use super::sequences::Segments;
use crate::tensor::{Dense, RawViewMut, Shape, View};

/// A view that axes can be changed of.
pub(crate) trait Axes {
    fn flip(self, axis: usize) -> Self;
    fn expand(self, axis: usize, size: usize) -> Self;
    fn index(self, axis: usize, at: usize) -> Self;
    fn rank(&self) -> usize;
}

impl Axes for View<'_> {
    fn flip(self, axis: usize) -> Self {
        View::flip(self, axis)
    }
    fn expand(self, axis: usize, size: usize) -> Self {
        View::expand(self, axis, size)
    }
    fn index(self, axis: usize, at: usize) -> Self {
        View::index(self, axis, at)
    }
    fn rank(&self) -> usize {
        self.shape().len()
    }
}

impl Axes for RawViewMut {
    fn flip(self, axis: usize) -> Self {
        RawViewMut::flip(self, axis)
    }
    fn expand(self, axis: usize, size: usize) -> Self {
        RawViewMut::expand(self, axis, size)
    }
    fn index(self, axis: usize, at: usize) -> Self {
        RawViewMut::index(self, axis, at)
    }
    fn rank(&self) -> usize {
        self.shape().len()
    }
}

/// How the tensors of a call come to normal form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Normal {
    reverse: bool,
    states_have_sequences: bool,
}

impl Normal {
    pub(crate) fn new(reverse: bool, segments: &Segments) -> Self {
        Normal { reverse, states_have_sequences: segments.states_have_sequences() }
    }

    /// A tensor with time along an axis.
    pub(crate) fn timed<V: Axes>(self, view: V, axis: usize) -> V {
        if self.reverse { view.flip(axis) } else { view }
    }

    /// A state: (rows, sequences, ..).
    pub(crate) fn state<V: Axes>(self, view: V) -> V {
        if self.states_have_sequences { view } else { view.expand(1, 1) }
    }

    /// The shape of a state in normal form.
    pub(crate) fn state_shape(self, mut shape: Shape) -> Shape {
        if !self.states_have_sequences {
            shape.insert(1, 1);
        }
        shape
    }

    /// A tensor in normal form as the caller has its time axis.
    pub(crate) fn restore(self, dense: Dense, axis: usize) -> Dense {
        if self.reverse { Dense::from_view(&dense.view().flip(axis)) } else { dense }
    }
}
