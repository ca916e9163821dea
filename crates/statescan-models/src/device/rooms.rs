//! Room for the activations of a pass, which grows to the largest.

use crate::config::{Config, Kind};
use crate::error::Result;
use statescan::tensor::{Tensor, Workspace};
use statescan::{DType, Exec, View, ViewMut};

pub(super) struct Rooms {
    dtype: DType,
    pub(super) stream: Room,
    pub(super) normed: Room,
    pub(super) projected: Room,
    pub(super) conv: Room,
    pub(super) maps: Room,
    pub(super) normed_maps: Room,
    pub(super) dt: Room,
    pub(super) scan: Room,
    pub(super) gated: Room,
    pub(super) workspace: Workspace,
    /// What scans keep for the way back.
    pub(super) saved: Workspace,
}

/// Rows of so many columns; the first ones are used.
#[derive(Default)]
pub(super) struct Room(Option<Tensor>);

impl Room {
    pub(super) fn grow(&mut self, exec: &Exec, dtype: DType, rows: usize, columns: usize) -> Result<()> {
        if self.0.as_ref().is_none_or(|memory| memory.shape()[0] < rows) {
            // freed first, for a device may not have room for both
            self.0 = None;
            self.0 = Some(Tensor::empty(exec, dtype, &[rows, columns])?);
        }
        Ok(())
    }

    /// The first rows, (rows, columns).
    pub(super) fn of(&self, rows: usize) -> View<'_> {
        self.0.as_ref().expect("grown before it is used").view().slice(0, 0..rows)
    }

    /// The numbers of the first rows, on the host.
    pub(super) fn to_vec(&self, rows: usize) -> Result<Vec<f32>> {
        let memory = self.0.as_ref().expect("grown before it is used");
        let mut numbers = memory.to_vec()?;
        numbers.truncate(rows * memory.shape()[1]);
        Ok(numbers)
    }

    /// The same, to be written.
    pub(super) fn of_mut(&mut self, rows: usize) -> ViewMut<'_> {
        self.0.as_mut().expect("grown before it is used").view_mut().slice(0, 0..rows)
    }
}

impl Rooms {
    /// No room, for activations of a type.
    pub(super) fn new(dtype: DType) -> Self {
        Rooms {
            dtype,
            stream: Room::default(),
            normed: Room::default(),
            projected: Room::default(),
            conv: Room::default(),
            maps: Room::default(),
            normed_maps: Room::default(),
            dt: Room::default(),
            scan: Room::default(),
            gated: Room::default(),
            workspace: Workspace::default(),
            saved: Workspace::default(),
        }
    }

    /// Room for so many rows.
    pub(super) fn grow(&mut self, exec: &Exec, config: &Config, rows: usize) -> Result<()> {
        let Config { kind, dim, inner, dt_rank, dstate, .. } = *config;
        let maps = dt_rank + 2 * dstate;
        let (mamba, mamba2) = (kind != Kind::Mamba2, kind == Kind::Mamba2);
        let rooms = [
            (&mut self.stream, DType::F32, dim, true),
            (&mut self.normed, self.dtype, dim, true),
            (&mut self.projected, self.dtype, config.in_proj(), true),
            (&mut self.conv, self.dtype, config.conv_channels(), true),
            (&mut self.maps, self.dtype, maps, mamba),
            (&mut self.normed_maps, self.dtype, maps, kind == Kind::FalconMamba),
            (&mut self.dt, self.dtype, inner, mamba),
            (&mut self.scan, self.dtype, inner, true),
            (&mut self.gated, self.dtype, inner, mamba2),
        ];
        let needed = rooms.into_iter().filter(|(.., needed)| *needed);
        needed.into_iter().try_for_each(|(room, dtype, columns, _)| room.grow(exec, dtype, rows, columns))
    }
}
