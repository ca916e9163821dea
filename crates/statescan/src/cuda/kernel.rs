//! One launch, ready to go.

use super::{Config, Launch, Parameter, Program, Stream};
use crate::error::{Error, Result};

/// A kernel's configuration, how it is launched, and what it takes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Kernel<P> {
    pub config: Config,
    pub launch: Launch,
    pub params: P,
}

impl<P: Parameter> Kernel<P> {
    /// Puts it into the stream, unless there is nothing to do.
    ///
    /// # Safety
    /// What the program reads and writes for this configuration and launch is valid.
    pub(crate) unsafe fn launch(&self, stream: &Stream, program: &Program<P>) -> Result<()> {
        match self.launch.blocks {
            0 => Ok(()),
            // SAFETY: the caller's contract.
            _ => unsafe { stream.launch(program, &self.config, self.launch, &self.params) },
        }
    }
}

impl Launch {
    /// Blocks of so many threads, without shared memory.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there are more of them than a launch can have.
    pub(crate) fn new(op: &'static str, blocks: Option<usize>, threads: usize) -> Result<Launch> {
        let blocks = blocks.and_then(|n| u32::try_from(n).ok()).filter(|&n| n <= i32::MAX as u32);
        let why = "so many elements need more blocks than a launch can have";
        Ok(Launch { blocks: blocks.ok_or(Error::Unavailable { what: op, why })?, threads: threads as u32, shared: 0 })
    }

    /// A thread for each of so many elements.
    ///
    /// # Errors
    /// As [`Launch::new`].
    pub(crate) fn elementwise(op: &'static str, count: Option<usize>, threads: usize) -> Result<Launch> {
        Self::new(op, count.map(|n| n.div_ceil(threads)), threads)
    }
}

/// The blocks of threads that cover `lines` lines of `count` items each, a line being so many blocks: (blocks of a line, all).
pub(crate) fn blocks_of_lines(lines: usize, count: usize, per_block: usize) -> (usize, Option<usize>) {
    let per_line = count.div_ceil(per_block);
    (per_line, lines.checked_mul(per_line))
}
