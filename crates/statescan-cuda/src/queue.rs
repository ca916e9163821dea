//! A stream as a pass of an operation sees it, and what passes have found out: plans, and kernels that are loaded.
//!
//! A [`Key`] has everything about a call but the addresses of its tensors. Passes of equal keys plan alike and launch the same kernels, in the same
//! order, so what one of them has found out is there for the next: a call that is like an earlier one makes no plan, no configuration and no text.

use crate::recent::Recent;
use crate::{Config, Error, Function, Kernel, Launch, Layout, Parameter, Program, Result, Stream};
use core::any::Any;
use core::cell::{Cell, RefCell};
use core::ops::Deref;
use std::rc::Rc;

/// The findings of a key's passes, in the order in which they ask.
type Found = Rc<RefCell<Vec<Box<dyn Any>>>>;

thread_local! {
    /// The findings of this thread's last keys.
    static KNOWN: RefCell<Recent<Vec<u64>, Found>> = const { RefCell::new(Recent::new()) };
    /// The words of the last key, for the memory that they have.
    static SPARE: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
}

/// Bytes of the widest access of a kernel: what plans and configurations see of an address is how it lies to them.
const ALIGNMENT: u64 = 16;

/// A description of a pass and its call in words, without addresses.
#[derive(Debug, PartialEq, Eq)]
pub struct Key(Vec<u64>);

impl Key {
    /// The key of a pass of something that lives as long as the process.
    pub fn new<T>(of: &'static T, pass: u64) -> Self {
        let mut words = SPARE.take();
        words.clear();
        words.extend([core::ptr::from_ref(of).addr() as u64, pass]);
        Key(words)
    }

    /// Adds what the pass depends on beside tensors.
    pub fn words(&mut self, words: &[u64]) {
        self.0.extend_from_slice(words);
    }

    /// How a tensor lies, or that there is none.
    pub fn view(&mut self, tensor: Option<&impl Layout>) {
        let Some(tensor) = tensor else { return self.0.push(0) };
        let (shape, strides) = (tensor.shape(), tensor.strides());
        let misaligned = tensor.address() % ALIGNMENT;
        self.0.push(1 | (tensor.scalar() as u64) << 8 | (shape.len() as u64) << 16 | misaligned << 24);
        self.0.extend(shape.iter().map(|&size| size as u64));
        self.0.extend(strides.iter().map(|&stride| stride as u64));
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        SPARE.set(core::mem::take(&mut self.0));
    }
}

/// The findings of a pass and of earlier ones of its key.
#[derive(Debug)]
struct Findings {
    /// None where nothing is kept.
    found: Option<Found>,
    /// How often the pass has asked.
    asked: Cell<usize>,
}

impl Findings {
    fn new(key: Option<&Key>) -> Self {
        let found = key.map(|key| KNOWN.with_borrow_mut(|known| known.get(&key.0[..], Found::default)));
        Findings { found, asked: Cell::new(0) }
    }

    fn find<T: Copy + 'static, E>(&self, find: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let Some(found) = &self.found else { return find() };
        let at = self.asked.replace(self.asked.get() + 1);
        if let Some(known) = found.borrow().get(at) {
            return known.downcast_ref().copied().map_or_else(find, Ok);
        }
        let answer = find()?;
        let mut found = found.borrow_mut();
        // a failure is kept nowhere, so that later questions of this pass have other places than in the next
        if found.len() == at {
            found.push(Box::new(answer));
        }
        Ok(answer)
    }
}

/// A stream for one pass.
#[derive(Debug)]
pub struct Queue<'s> {
    stream: &'s Stream,
    findings: Findings,
}

impl Deref for Queue<'_> {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        self.stream
    }
}

impl<'s> Queue<'s> {
    /// For a pass that may be like an earlier one; without a key nothing is kept of it.
    pub fn new(stream: &'s Stream, mut key: Option<Key>) -> Self {
        if let Some(key) = &mut key {
            key.words(&[stream.ordinal() as u64, stream.allows_tf32().into()]);
            stream.planned().iter().for_each(|numbers| key.words(numbers));
        }
        Queue { stream, findings: Findings::new(key.as_ref()) }
    }

    /// Returns the result of `find`, or of the `find` in an earlier pass like this. It depends on the key's words and on the
    /// device alone, and so do the number and the order of these calls.
    ///
    /// # Errors
    /// Those of `find`.
    pub fn find<T: Copy + 'static, E>(&self, find: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.findings.find(find)
    }

    /// Puts a kernel into the stream, compiling it first if this process has not needed it before. The constants that it is
    /// compiled with, `config`, follow from the pass's key.
    ///
    /// # Errors
    /// Those of [`Stream::launch`].
    ///
    /// # Safety
    /// The memory that the kernel reads and writes for this configuration and launch is valid.
    pub unsafe fn launch<P: Parameter>(
        &self,
        program: &Program<P>,
        config: impl Fn() -> Config,
        launch: Launch,
        params: &P,
    ) -> Result<()> {
        let function = self.function(program, config, launch)?;
        // SAFETY: the caller's contract.
        unsafe { self.stream.start(function, launch, params) }
    }

    /// As [`Queue::launch`], and the kernel begins as [`Stream::launch_early`] says.
    ///
    /// # Errors
    /// Those of [`Stream::launch`].
    ///
    /// # Safety
    /// As for [`Queue::launch`].
    pub unsafe fn launch_early<P: Parameter>(
        &self,
        program: &Program<P>,
        config: impl Fn() -> Config,
        launch: Launch,
        params: &P,
    ) -> Result<()> {
        let function = self.function(program, config, launch)?;
        // SAFETY: the caller's contract.
        unsafe { self.stream.start_early(function, launch, params) }
    }

    /// The kernel, loaded.
    fn function<P: Parameter>(&self, program: &Program<P>, config: impl Fn() -> Config, launch: Launch) -> Result<Function> {
        let load = || -> Result<_, Error> { self.stream.function(program, &config(), launch.shared) };
        let function = self.find(load)?;
        debug_assert!(load().is_ok_and(|own| own == function), "the key lacks something that {} depends on", program.kernel);
        Ok(function)
    }
}

impl<P: Parameter, C: Fn() -> Config> Kernel<P, C> {
    /// Puts it into the stream, unless there is nothing to do.
    ///
    /// # Errors
    /// Those of [`Stream::launch`].
    ///
    /// # Safety
    /// The memory that the program reads and writes for this configuration and launch is valid.
    pub unsafe fn launch(&self, queue: &Queue<'_>, program: &Program<P>) -> Result<()> {
        match self.launch.blocks() {
            0 => Ok(()),
            // SAFETY: the caller's contract.
            _ => unsafe { queue.launch(program, &self.config, self.launch, &self.params) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static PLACES: [u8; 2] = [0; 2];

    fn key(place: usize, word: u64) -> Key {
        let mut key = Key::new(&PLACES[place], 0);
        key.words(&[word]);
        key
    }

    #[test]
    fn a_pass_finds_out_once_what_passes_like_it_ask() {
        let pass = |key: Option<Key>| {
            let (findings, asked) = (Findings::new(key.as_ref()), Cell::new(0));
            let ask = |answer: usize| {
                let find = || {
                    asked.set(asked.get() + 1);
                    Ok::<_, Error>(answer)
                };
                assert_eq!(findings.find(find), Ok(answer));
            };
            ask(3);
            ask(5);
            asked.get()
        };
        assert_eq!([pass(Some(key(0, 7))), pass(Some(key(0, 7)))], [2, 0]);
        assert_eq!([pass(Some(key(1, 7))), pass(Some(key(0, 8))), pass(Some(key(1, 7)))], [2, 2, 0]);
        assert_eq!([pass(None), pass(None)], [2, 2]);
    }

    #[test]
    fn failures_are_not_kept() {
        let failure = || Err::<usize, _>(Error::Unavailable { what: "a test", why: "it fails" });
        let findings = Findings::new(Some(&key(0, 100)));
        let found = |findings: &Findings, answer: usize| findings.find(|| Ok::<_, Error>(answer)).unwrap();
        assert!(findings.find(failure).is_err() && found(&findings, 1) == 1);
        let findings = Findings::new(Some(&key(0, 100)));
        assert!(found(&findings, 2) == 2 && found(&findings, 3) == 3);
        let findings = Findings::new(Some(&key(0, 100)));
        assert!(found(&findings, 0) == 2 && found(&findings, 0) == 3);
    }
}
