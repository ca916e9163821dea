//! A mixer on a device, and what a pass of it takes.

use super::Mix;
use super::device::Device;
use super::rooms::{Room, Rooms};
use super::weights::Linear;
use crate::config::{Config, Kind};
use crate::error::Result;
use crate::state::LayerState;
use statescan::{View, ViewMut};
use std::ops::Range;

/// Rows of a pass: so many steps of so many sequences.
#[derive(Clone, Copy)]
pub(crate) struct Steps {
    pub(crate) sequences: usize,
    pub(crate) steps: usize,
}

impl Steps {
    pub(crate) fn rows(self) -> usize {
        self.sequences * self.steps
    }

    /// Rows as (sequences, steps, columns).
    pub(crate) fn of(self, rows: View<'_>) -> View<'_> {
        rows.split(0, self.sequences)
    }

    /// Some columns of rows as (sequences, columns, steps).
    pub(crate) fn channels(self, rows: View<'_>, columns: Range<usize>) -> View<'_> {
        self.of(rows).slice(2, columns).permute(&[0, 2, 1])
    }

    /// All columns, to be written.
    pub(crate) fn channels_mut(self, rows: ViewMut<'_>) -> ViewMut<'_> {
        rows.split(0, self.sequences).permute(&[0, 2, 1])
    }
}

/// A state before the first step and room for it after the last one, with a first axis of sequences; zeros, and nowhere, if there is none.
pub(crate) type Ends<'e> = Option<(View<'e>, ViewMut<'e>)>;

/// A state at both ends on the way back, as far as it is known or asked for, with a first axis of sequences.
#[derive(Default)]
pub(crate) struct BackEnds<'e> {
    /// The state before the first step; zeros if there is none.
    pub(crate) initial: Option<View<'e>>,
    /// The gradient by the state after the last step; zeros if there is none.
    pub(crate) last: Option<View<'e>>,
    /// The gradient by the state before the first step, to be written.
    pub(crate) first: Option<ViewMut<'e>>,
}

/// Rows of sequences of one length, and their states, which are carried on, in the order in which their kind has them; without any they begin with zeros.
pub(crate) struct Part<'p> {
    pub(crate) rows: Range<usize>,
    pub(crate) steps: Steps,
    pub(crate) states: Vec<Ends<'p>>,
    /// Tokens that came before.
    pub(crate) position: usize,
    /// States that grow with every token, (sequences, tokens, numbers): those of earlier tokens, and room for these rows at least.
    pub(crate) grown: Vec<ViewMut<'p>>,
}

impl Part<'_> {
    /// All rows, from zeros.
    pub(crate) fn whole(steps: Steps) -> Self {
        Part { rows: 0..steps.rows(), steps, states: Vec::new(), position: 0, grown: Vec::new() }
    }
}

/// Rows of sequences of one length, and the state that is carried on by them.
pub(crate) struct Carried<'c> {
    pub(crate) state: &'c mut LayerState,
    pub(crate) rows: Range<usize>,
    pub(crate) steps: Steps,
    /// Tokens that came before.
    pub(crate) position: usize,
}

/// The first states of a list.
pub(super) fn first<T: Default, const N: usize>(states: Vec<T>) -> [T; N] {
    let mut states = states.into_iter();
    std::array::from_fn(|_| states.next().unwrap_or_default())
}

/// The beginning of the way back: the rows that a mixer read, the gradient by what it gave, and where the gradients by the rows and by the weights go.
pub(crate) struct Back<'b> {
    pub(crate) steps: Steps,
    pub(crate) x: View<'b>,
    pub(crate) dy: View<'b>,
    pub(crate) dx: ViewMut<'b>,
    /// In the order of weights; those by decays stand in the place of those by their logarithms.
    pub(crate) into: Vec<ViewMut<'b>>,
    /// Without any, sequences begin with zeros and nothing comes behind them.
    pub(crate) states: Vec<BackEnds<'b>>,
}

/// Some rows of a room.
pub(super) fn part<'r>(room: &'r Room, rows: &Range<usize>) -> View<'r> {
    room.of(rows.end).slice(0, rows.clone())
}

/// The last product of a mixer, whose results are added to the stream.
pub(crate) type Last<'r> = Linear<View<'r>>;

/// A mixer on a device.
pub(crate) struct Run<'r> {
    pub(crate) device: &'r dyn Device,
    pub(crate) config: &'r Config,
    pub(crate) kind: Kind,
    /// In the order in which the kind names them, in the form in which they are used.
    pub(crate) weights: Vec<View<'r>>,
    /// The weights that the kind derives from them, where the device needs it.
    pub(crate) derived: Vec<View<'r>>,
}

impl<'r> Run<'r> {
    fn mix(&self) -> &'static dyn Mix {
        self.kind.mix()
    }

    /// From rows `x` to those that the last product takes, `rooms.mixed`; gives that product, whose results are added to the stream. With `keep` the pass, which then is of one part, keeps what the way back can begin
    /// with.
    pub(crate) fn forward(&self, x: View<'_>, parts: Vec<Part<'_>>, rooms: &mut Rooms, keep: bool) -> Result<Last<'r>> {
        self.mix().forward(self, x, parts, rooms, keep)
    }

    /// Gradients by the rows and by the weights. The rooms have what a forward pass over the same rows left there that kept what it could.
    pub(crate) fn backward(&self, back: Back<'_>, rooms: &mut Rooms, own: &mut Rooms) -> Result<()> {
        self.mix().backward(self, back, rooms, own)
    }

    /// A forward pass over rows of sequences on the host, whose states are carried on.
    pub(crate) fn carry_on(&self, x: View<'_>, mut states: Vec<Carried<'_>>, rooms: &mut Rooms) -> Result<Last<'r>> {
        let shapes = self.kind.states(self.config);
        if shapes.iter().all(|shape| shape.grows) {
            let grown = states.into_iter().map(|Carried { state, rows, steps, position }| {
                let tokens = position + steps.steps;
                let grown = shapes.iter().zip(state.all_mut()).map(|(shape, numbers)| {
                    let of_token: usize = shape.after(1).iter().product();
                    numbers.resize(tokens * of_token, 0.0);
                    Ok(ViewMut::new(numbers, &[1, tokens, of_token])?)
                });
                Ok(Part { rows, steps, states: Vec::new(), position, grown: grown.collect::<Result<_>>()? })
            });
            return self.forward(x, grown.collect::<Result<_>>()?, rooms, false);
        }
        let room = |Carried { state, .. }: &Carried<'_>| {
            let spare = rooms.spare.pop().filter(|spare| spare.is_like(state));
            spare.unwrap_or_else(|| state.zeros_like())
        };
        let mut next: Vec<LayerState> = states.iter().map(room).collect();
        let mut parts = Vec::with_capacity(states.len());
        for (Carried { state, rows, steps, .. }, after) in states.iter().zip(&mut next) {
            let ends = shapes.iter().zip(state.all().zip(after.all_mut()));
            let ends = ends.map(|(shape, (before, after))| shape.ends(before, after).map(Some));
            let states = ends.collect::<Result<_>>()?;
            parts.push(Part { rows: rows.clone(), states, ..Part::whole(*steps) });
        }
        let last = self.forward(x, parts, rooms, false)?;
        let before = states.iter_mut().zip(next).map(|(carried, next)| std::mem::replace(carried.state, next));
        rooms.spare.extend(before);
        Ok(last)
    }
}
