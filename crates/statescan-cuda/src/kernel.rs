//! One launch, ready to go.

use crate::{Config, Launch, Parameter, Program, Result, Stream};

/// A kernel's configuration, or what makes it where that is asked for, how the kernel is launched, and what it takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Kernel<P, C = Config> {
    /// Its constants.
    pub config: C,
    /// Its blocks, threads and memory.
    pub launch: Launch,
    /// The parameters that it takes by value.
    pub params: P,
}

impl<P: Parameter> Kernel<P> {
    /// Puts it into the stream, unless there is nothing to do.
    ///
    /// # Errors
    /// Those of [`Stream::launch`].
    ///
    /// # Safety
    /// The memory that the program reads and writes for this configuration and launch is valid.
    pub unsafe fn launch(&self, stream: &Stream, program: &Program<P>) -> Result<()> {
        match self.launch.blocks() {
            0 => Ok(()),
            // SAFETY: the caller's contract.
            _ => unsafe { stream.launch(program, &self.config, self.launch, &self.params) },
        }
    }
}

/// The blocks of threads that cover `lines` lines of `count` items each, a line being so many blocks: (blocks of a line, all).
pub fn blocks_of_lines(lines: usize, count: usize, per_block: usize) -> (usize, Option<usize>) {
    let per_line = count.div_ceil(per_block);
    (per_line, lines.checked_mul(per_line))
}
