//! Room for the activations of a pass, on any device, which grows to the largest.

use crate::error::Result;
use crate::state::LayerState;
use statescan::tensor::{Tensor, Workspace};
use statescan::{DType, Exec, View, ViewMut};

/// Rows of so many columns; the first ones are used.
#[derive(Default)]
pub(crate) struct Room {
    memory: Option<Tensor>,
    columns: usize,
}

impl Room {
    /// Makes room for so many rows of so many columns; what was there has no use then.
    pub(crate) fn grow(&mut self, exec: &Exec, dtype: DType, rows: usize, columns: usize) -> Result<()> {
        let len = rows.saturating_mul(columns);
        if self.memory.as_ref().is_none_or(|memory| memory.shape()[0] < len || memory.dtype() != dtype) {
            // freed first, for a device may not have room for both
            self.memory = None;
            self.memory = Some(Tensor::empty(exec, dtype, &[len])?);
        }
        self.columns = columns;
        Ok(())
    }

    fn memory(&self) -> &Tensor {
        self.memory.as_ref().expect("grown before it is used")
    }

    fn memory_mut(&mut self) -> &mut Tensor {
        self.memory.as_mut().expect("grown before it is used")
    }

    /// The first rows, (rows, columns), of which there is at least one.
    pub(crate) fn of(&self, rows: usize) -> View<'_> {
        self.memory().view().slice(0, 0..rows * self.columns).split(0, rows)
    }

    /// The first rows, to be written.
    pub(crate) fn of_mut(&mut self, rows: usize) -> ViewMut<'_> {
        let columns = self.columns;
        self.memory_mut().view_mut().slice(0, 0..rows * columns).split(0, rows)
    }

    /// Overwrites the first rows.
    pub(crate) fn write(&mut self, numbers: &[i32]) -> Result<()> {
        Ok(self.memory_mut().write(numbers)?)
    }

    /// The numbers of the first rows, copied to the host.
    pub(crate) fn to_vec(&self, rows: usize) -> Result<Vec<f32>> {
        let mut numbers = self.memory().to_vec()?;
        numbers.truncate(rows * self.columns);
        Ok(numbers)
    }

    /// All numbers of rows in f32 in the memory of the host.
    pub(crate) fn numbers(&self) -> &[f32] {
        bytemuck::cast_slice(self.memory().bytes())
    }

    /// All numbers, to be written.
    pub(crate) fn numbers_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(self.memory_mut().bytes_mut())
    }
}

/// Room for all rows between those that a mixer reads and its last product, or for the gradients by them.
#[derive(Default)]
pub(crate) struct Rooms {
    /// The rows that the last product takes.
    pub(crate) mixed: Room,
    /// The rooms of each kind, as it names them.
    pub(crate) own: [Room; 7],
    pub(crate) workspace: Workspace,
    /// The values that a forward pass saves for the backward pass.
    pub(crate) saved: Workspace,
    /// States whose numbers have no use any more.
    pub(super) spare: Vec<LayerState>,
}

impl Rooms {
    /// Room for so many rows of a type: of so many columns for the last product, and in a kind's own rooms; a room of no columns is not used.
    pub(crate) fn grow(&mut self, exec: &Exec, (dtype, rows): (DType, usize), mixed: usize, own: &[usize]) -> Result<()> {
        self.mixed.grow(exec, dtype, rows, mixed)?;
        let used = self.own.iter_mut().zip(own).filter(|(_, columns)| **columns > 0);
        used.into_iter().try_for_each(|(room, &columns)| room.grow(exec, dtype, rows, columns))
    }
}
