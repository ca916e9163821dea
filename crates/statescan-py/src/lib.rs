//! The native half of the Python package: one function for each pass of each operation, called by `python/statescan` with outputs that it
//! has allocated, or, beside tensors of PyTorch, with True for outputs that are to be made here.
//!
//! All functions have the same signature, `(inputs, outputs, place)`: two tuples, in an order that both sides write down (`ops/` here,
//! `operations.py` there), and where the call runs ([`exec::Place`]). Tensors come through two doors: those of PyTorch
//! are read by their attributes ([`torch`]), all others by DLPack ([`dlpack`]).

mod call;
mod dlpack;
mod error;
mod exec;
#[cfg(target_os = "linux")]
mod openmp;
mod ops;
mod tensor;
mod torch;

/// What `import statescan._native` gives.
#[pyo3::pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::exec::{cores, cuda_devices, synchronize};
    #[pymodule_export]
    use crate::ops::causal_conv1d::{causal_conv1d_backward, causal_conv1d_forward, causal_conv1d_update};
    #[pymodule_export]
    use crate::ops::linear_scan::{linear_scan_backward, linear_scan_forward};
    #[pymodule_export]
    use crate::ops::selective_scan::{selective_scan_backward, selective_scan_forward};
    #[pymodule_export]
    use crate::ops::selective_state_update::selective_state_update;
    #[pymodule_export]
    use crate::ops::simplified_scan::{simplified_scan_backward, simplified_scan_forward};
    #[pymodule_export]
    use crate::ops::simplified_state_update::simplified_state_update;
    #[pymodule_export]
    use crate::ops::ssd::{ssd_backward, ssd_forward};
    #[pymodule_export]
    use crate::torch::unobserved;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        #[cfg(target_os = "linux")]
        crate::openmp::import();
        module.add("UnknownArgument", module.py().get_type::<crate::error::UnknownArgument>())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
