//! What stands in for the driver when the crate is built without it.

use super::layers::Product;
use super::{Config, Function, Launch, Numbers, Parameter, Program, TensorMap, Tiling};
use crate::error::{Error, Result};
use core::convert::Infallible;
use core::ffi::c_void;

/// A stream that cannot exist. Its unsafe functions have the driver's signatures so that callers compile; none of them can be reached but
/// `borrowed`, which touches nothing.
#[derive(Clone)]
pub(crate) struct Stream(Infallible);

const ABSENT: Error = Error::Unavailable { what: "CUDA", why: "this program was built without the feature `cuda`" };

impl Stream {
    pub(crate) fn devices() -> Result<Vec<String>> {
        Err(ABSENT)
    }
    pub(crate) fn own(_ordinal: usize) -> Result<Self> {
        Err(ABSENT)
    }
    pub(crate) unsafe fn borrowed(_ordinal: usize, _raw: *mut c_void) -> Result<Self> {
        Err(ABSENT)
    }
    pub(crate) fn with_tf32(self, _allowed: bool) -> Self {
        match self.0 {}
    }
    pub(crate) fn allows_tf32(&self) -> bool {
        match self.0 {}
    }
    pub(crate) fn ordinal(&self) -> usize {
        match self.0 {}
    }
    pub(crate) fn is(&self, _other: &Stream) -> bool {
        match self.0 {}
    }
    pub(crate) fn numbers(&self) -> Numbers {
        match self.0 {}
    }
    pub(crate) fn allocate(&self, _bytes: usize) -> Result<u64> {
        match self.0 {}
    }
    pub(crate) unsafe fn free(&self, _address: u64) {
        match self.0 {}
    }
    pub(crate) unsafe fn upload(&self, _to: u64, _from: *const u8, _bytes: usize) -> Result<()> {
        match self.0 {}
    }
    pub(crate) unsafe fn download(&self, _to: *mut u8, _from: u64, _bytes: usize) -> Result<()> {
        match self.0 {}
    }
    pub(crate) fn allocate_on_host(&self, _bytes: usize) -> Result<usize> {
        match self.0 {}
    }
    pub(crate) unsafe fn free_on_host(&self, _memory: usize) {
        match self.0 {}
    }
    pub(crate) unsafe fn send_to_host(&self, _to: usize, _from: u64, _bytes: usize) -> Result<()> {
        match self.0 {}
    }
    pub(crate) unsafe fn fill(&self, _to: u64, _byte: u8, _bytes: usize) -> Result<()> {
        match self.0 {}
    }
    pub(crate) unsafe fn fill_words(&self, _to: u64, _word: u32, _count: usize) -> Result<()> {
        match self.0 {}
    }
    pub(crate) unsafe fn copy(&self, _to: u64, _from: u64, _bytes: usize) -> Result<()> {
        match self.0 {}
    }
    pub(crate) fn begin_capture(&self) -> Result<()> {
        match self.0 {}
    }
    pub(crate) fn end_capture(&self, _only: Option<&str>) -> Result<u64> {
        match self.0 {}
    }
    pub(crate) unsafe fn launch_graph(&self, _graph: u64) -> Result<()> {
        match self.0 {}
    }
    pub(crate) unsafe fn destroy_graph(&self, _graph: u64) {
        match self.0 {}
    }
    pub(crate) fn event(&self) -> Result<u64> {
        match self.0 {}
    }
    pub(crate) unsafe fn record(&self, _event: u64) -> Result<()> {
        match self.0 {}
    }
    pub(crate) unsafe fn milliseconds(&self, _begin: u64, _end: u64) -> Result<f32> {
        match self.0 {}
    }
    pub(crate) unsafe fn destroy_event(&self, _event: u64) {
        match self.0 {}
    }
    pub(crate) fn synchronize(&self) -> Result<()> {
        match self.0 {}
    }
    pub(super) fn tensor_map(&self, _tiling: &Tiling) -> Result<TensorMap> {
        match self.0 {}
    }
    pub(crate) fn function<P: Parameter>(&self, _program: &Program<P>, _config: &Config, _shared: u32) -> Result<Function> {
        match self.0 {}
    }
    pub(crate) unsafe fn start<P: Parameter>(&self, _function: Function, _launch: Launch, _params: &P) -> Result<()> {
        match self.0 {}
    }
    pub(crate) unsafe fn launch<P: Parameter>(
        &self,
        _program: &Program<P>,
        _config: &Config,
        _launch: Launch,
        _params: &P,
    ) -> Result<()> {
        match self.0 {}
    }
    pub(crate) unsafe fn launch_early<P: Parameter>(
        &self,
        _program: &Program<P>,
        _config: &Config,
        _launch: Launch,
        _params: &P,
    ) -> Result<()> {
        match self.0 {}
    }
}

/// Products that cannot exist.
pub(crate) struct Blaslt(Stream);

impl Blaslt {
    pub(crate) fn new(stream: &Stream) -> Result<Self> {
        match stream.0 {}
    }
    pub(crate) unsafe fn multiply(&self, _product: &Product, _addresses: [u64; 4], _onto: Option<u64>) -> Result<()> {
        match self.0.0 {}
    }
}
