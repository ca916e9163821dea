//! The nodes of a recorded graph.

use super::driver::{call, check, version};
use crate::{Error, Result};
use core::ffi::CStr;
use core::ptr::null_mut;
use cudarc::driver::sys;

/// The driver that first tells the name of a function.
const NAMES: i32 = 12_030;

/// Switches off every node of `ready`, made from `graph`, but the launches of one kernel; they stay in order.
///
/// # Safety
/// Both are whole, and the device's context is current.
pub(crate) unsafe fn keep_kernel(graph: sys::CUgraph, ready: sys::CUgraphExec, kernel: &str) -> Result<()> {
    let unavailable = |why| Err(Error::Unavailable { what: "a kernel alone", why });
    if version()? < NAMES {
        return unavailable("the NVIDIA driver is older than CUDA 12.3");
    }
    let mut kept = false;
    // SAFETY: the caller's contract; each node is one of the graph's.
    unsafe {
        for node in nodes(graph)? {
            match name(node)? {
                Some(name) if name.to_bytes() == kernel.as_bytes() => kept = true,
                _ => call!(cuGraphNodeSetEnabled(ready, node, 0))?,
            }
        }
    }
    if kept { Ok(()) } else { unavailable("no call that was recorded launches it") }
}

/// # Safety
/// As for [`keep_kernel`].
unsafe fn nodes(graph: sys::CUgraph) -> Result<Vec<sys::CUgraphNode>> {
    let mut count = 0;
    // SAFETY: without a place for nodes the driver counts them; then there is one for each.
    unsafe {
        call!(cuGraphGetNodes(graph, null_mut(), &mut count))?;
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut nodes = vec![null_mut(); count];
        call!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count))?;
        Ok(nodes)
    }
}

/// The name of the kernel that a node launches, if it launches one.
///
/// # Safety
/// As for [`keep_kernel`]; the name lives as long as the kernel is loaded, which is as long as the process.
unsafe fn name(node: sys::CUgraphNode) -> Result<Option<&'static CStr>> {
    let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
    // SAFETY: the caller's contract; the places written are valid, and parameters are plain numbers and addresses.
    unsafe {
        call!(cuGraphNodeGetType(node, &mut kind))?;
        if kind != sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL {
            return Ok(None);
        }
        let (mut launch, mut name): (sys::CUDA_KERNEL_NODE_PARAMS, _) = (core::mem::zeroed(), core::ptr::null());
        call!(cuGraphKernelNodeGetParams_v2(node, &mut launch))?;
        call!(cuFuncGetName(&mut name, launch.func))?;
        Ok(Some(CStr::from_ptr(name)))
    }
}
