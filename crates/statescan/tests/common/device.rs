//! Tensors where an executor's kernels can reach them, so that one test body serves every device.

use statescan::cuda::DeviceTensor;
use statescan::tensor::Tensor;
use statescan::{Device, Error, Exec, View, ViewMut};

/// The first GPU, or the reason why there is none.
pub fn gpu() -> Option<Exec> {
    match Exec::cuda(0) {
        Ok(exec) => Some(exec),
        Err(error @ Error::Unavailable { .. }) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A tensor that is read: the buffer itself, or a copy of it on the device.
pub enum Placed<'b> {
    Host(&'b Tensor),
    Device(DeviceTensor),
}

impl<'b> Placed<'b> {
    pub fn new(exec: &Exec, buffer: &'b Tensor) -> Self {
        match exec.device() {
            Device::Cpu => Placed::Host(buffer),
            _ => Placed::Device(DeviceTensor::from_host(exec, &buffer.view()).unwrap()),
        }
    }

    pub fn view(&self) -> View<'_> {
        match self {
            Placed::Host(buffer) => buffer.view(),
            Placed::Device(tensor) => tensor.view(),
        }
    }
}

/// A tensor that is written, with what it holds before; [`PlacedMut::finish`] brings it back.
pub struct PlacedMut<'b> {
    host: &'b mut Tensor,
    device: Option<DeviceTensor>,
}

impl<'b> PlacedMut<'b> {
    pub fn new(exec: &Exec, host: &'b mut Tensor) -> Self {
        let device = (exec.device() != Device::Cpu).then(|| DeviceTensor::from_host(exec, &host.view()).unwrap());
        PlacedMut { host, device }
    }

    pub fn view_mut(&mut self) -> ViewMut<'_> {
        match &mut self.device {
            Some(tensor) => tensor.view_mut(),
            None => self.host.view_mut(),
        }
    }

    pub fn finish(self) {
        if let Some(tensor) = self.device {
            tensor.to_host(&mut self.host.view_mut()).unwrap();
        }
    }
}

/// Runs a test body on the GPU for each case, if there is one.
pub fn on_gpu<C>(cases: impl IntoIterator<Item = C>, check: impl Fn(&C, &Exec)) {
    let Some(exec) = gpu() else { return };
    cases.into_iter().for_each(|case| check(&case, &exec));
}
