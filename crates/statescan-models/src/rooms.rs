//! Room for the activations of a pass, on any device, which grows to the largest.

use crate::config::{Config, Kind};
use crate::error::Result;
use statescan::tensor::{Device, Tensor, Workspace};
use statescan::{DType, Exec, View, ViewMut};

/// Rows of so many columns; the first ones are used.
#[derive(Default)]
pub(crate) struct Room(Option<Tensor>);

impl Room {
    pub(crate) fn grow(&mut self, exec: &Exec, dtype: DType, rows: usize, columns: usize) -> Result<()> {
        if self.0.as_ref().is_none_or(|memory| memory.shape()[0] < rows) {
            // freed first, for a device may not have room for both
            self.0 = None;
            self.0 = Some(Tensor::empty(exec, dtype, &[rows, columns])?);
        }
        Ok(())
    }

    fn memory(&self) -> &Tensor {
        self.0.as_ref().expect("grown before it is used")
    }

    fn memory_mut(&mut self) -> &mut Tensor {
        self.0.as_mut().expect("grown before it is used")
    }

    /// The first rows, (rows, columns).
    pub(crate) fn of(&self, rows: usize) -> View<'_> {
        self.memory().view().slice(0, 0..rows)
    }

    /// The first rows, to be written.
    pub(crate) fn of_mut(&mut self, rows: usize) -> ViewMut<'_> {
        self.memory_mut().view_mut().slice(0, 0..rows)
    }

    /// Overwrites the first rows.
    pub(crate) fn write(&mut self, numbers: &[i32]) -> Result<()> {
        Ok(self.memory_mut().write(numbers)?)
    }

    /// The numbers of the first rows, copied to the host.
    pub(crate) fn to_vec(&self, rows: usize) -> Result<Vec<f32>> {
        let mut numbers = self.memory().to_vec()?;
        numbers.truncate(rows * self.memory().shape()[1]);
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

/// Room for all rows between those that a mixer reads and its last product.
pub(crate) struct Rooms {
    dtype: DType,
    pub(crate) projected: Room,
    pub(crate) conv: Room,
    pub(crate) maps: Room,
    pub(crate) normed_maps: Room,
    /// Step sizes of channels.
    pub(crate) dt: Room,
    pub(crate) scan: Room,
    pub(crate) gated: Room,
    pub(crate) workspace: Workspace,
    /// Checkpoints that scans keep for the way back.
    pub(crate) saved: Workspace,
}

impl Default for Rooms {
    fn default() -> Self {
        Rooms::new(DType::F32)
    }
}

impl Rooms {
    /// No room, for activations of a type.
    pub(crate) fn new(dtype: DType) -> Self {
        let [projected, conv, maps, normed_maps, dt, scan, gated] = <[Room; 7]>::default();
        let [workspace, saved] = <[Workspace; 2]>::default();
        Rooms { dtype, projected, conv, maps, normed_maps, dt, scan, gated, workspace, saved }
    }

    /// Room for so many rows.
    pub(crate) fn grow(&mut self, exec: &Exec, config: &Config, rows: usize) -> Result<()> {
        let Config { kind, inner, dt_rank, dstate, .. } = *config;
        let (maps, mamba, host) = (dt_rank + 2 * dstate, kind != Kind::Mamba2, exec.device() == Device::Cpu);
        let rooms = [
            (&mut self.projected, config.in_proj(), true),
            (&mut self.conv, config.conv_channels(), true),
            (&mut self.maps, maps, mamba),
            (&mut self.normed_maps, maps, kind == Kind::FalconMamba),
            // on the host every scan goes step by step
            (&mut self.dt, inner, mamba || host),
            (&mut self.scan, inner, true),
            (&mut self.gated, inner, !mamba),
        ];
        let needed = rooms.into_iter().filter(|(.., needed)| *needed);
        needed.into_iter().try_for_each(|(room, columns, _)| room.grow(exec, self.dtype, rows, columns))
    }

    /// The rows that the last product takes: those of the norm behind the scan, where there is one, or of the scan.
    pub(crate) fn mixed(&self, config: &Config) -> &Room {
        if config.kind == Kind::Mamba2 { &self.gated } else { &self.scan }
    }
}

/// Gradients by what is named as in [`Rooms`].
#[derive(Default)]
pub(crate) struct BackRooms {
    pub(crate) dscan: Room,
    pub(crate) dgated: Room,
    pub(crate) dprojected: Room,
    pub(crate) dconv: Room,
    pub(crate) dmaps: Room,
    pub(crate) raw_dmaps: Room,
    pub(crate) ddt: Room,
    pub(crate) workspace: Workspace,
}

impl BackRooms {
    pub(crate) fn grow(&mut self, exec: &Exec, config: &Config, dtype: DType, rows: usize) -> Result<()> {
        let Config { kind, inner, dt_rank, dstate, .. } = *config;
        let (maps, mamba) = (dt_rank + 2 * dstate, kind != Kind::Mamba2);
        let rooms = [
            (&mut self.dscan, inner, true),
            (&mut self.dgated, inner, !mamba),
            (&mut self.dprojected, config.in_proj(), true),
            (&mut self.dconv, config.conv_channels(), true),
            (&mut self.dmaps, maps, mamba),
            (&mut self.raw_dmaps, maps, kind == Kind::FalconMamba),
            (&mut self.ddt, inner, mamba),
        ];
        let needed = rooms.into_iter().filter(|(.., needed)| *needed);
        needed.into_iter().try_for_each(|(room, columns, _)| room.grow(exec, dtype, rows, columns))
    }
}
