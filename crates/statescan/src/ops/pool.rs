//! Pools of states, as servers keep them: a call reads the state of a sequence from one slot and leaves it in another one, in place.
//!
//! A **pooled** operation is an operation whose states lie in a pool, (slots, ..): `read_indices` and `write_indices`, (sequences,), say which slot a
//! sequence (of `cu_seqlens`, or else a row of the batch) starts from and which one it leaves its state in. A negative number stands for zeros, or for
//! nothing that is written; slots that no sequence writes stay as they are. Several sequences may start from one slot, as those of a shared prefix do,
//! but none from a slot that another sequence of the call writes, and no two write one slot. There are no gradients.
//!
//! A sequence may be in **pieces**, which leave a state at each of its cuts: `write_indices` is (sequences, pieces) then, `cu_seqlens` has the bounds of
//! pieces, and each piece but the first one of a sequence, in the direction of the scan, goes on from the state after the one before it. A piece may have
//! no steps. Where threads share out the sequences of a row, a call has a pass for each piece of a sequence, from slot to slot; S5 has one pass for all.
//! On CUDA a state passes from piece to piece in f32. Rows of `linear_scan` are one sequence each, and have no pieces.
//!
//! The host checks slots that lie in its memory. On CUDA only the device reads them: a number that is no slot counts as negative, and two sequences with
//! one slot give wrong results.

use super::call::{Call, Value, Written};
use super::op::{Op, Step};
use super::prepared::Prepared;
use super::signature::{Argument, Role, Saved, Signature};
use super::slots::BOUNDS;
use super::states::{Pool, READ, STATE_POOL, States, WRITE};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::tensor::{Dense, Device, Shape, View, ViewMut};

/// An operation's arguments, and behind them the slots of sequences.
pub(crate) const fn with_slots<const N: usize>(arguments: &[Argument]) -> [Argument; N] {
    let (mut all, mut at) = ([READ; N], 0);
    while at < arguments.len() {
        all[at] = arguments[at];
        at += 1;
    }
    all[at + 1] = WRITE;
    all
}

/// A pool as an argument.
pub(crate) const fn state_pool(layouts: &'static [&'static str]) -> Argument {
    super::signature::state(layouts).field(STATE_POOL, "")
}

/// An operation as data, with states in a pool. The pool is updated in place; the first result alone is left.
pub(crate) const fn pooled(
    of: &'static Signature,
    name: &'static str,
    pool: &'static Argument,
    arguments: &'static [Argument],
) -> Signature {
    Signature {
        name,
        about: "the operation of this name with states in a pool, which is updated in place",
        arguments,
        results: of.results.split_at(1).0,
        in_place: Some(pool),
        saved: Saved::Nothing,
        decay: None,
        differentiable: false,
        ..*of
    }
    .resolved()
}

/// The arguments of an operation that has a form with a pool.
pub trait InPool {
    /// The call by position of that form, without the pool and its slots, and what runs it.
    fn in_pool(&self) -> (Call<'_>, &'static Pooled);
}

/// A pool of states, and the slots that the sequences of a call have in it.
///
/// ```
/// use statescan::ops::{pool::StatePool, ssd};
/// use statescan::{Exec, Tensor, View, DType};
///
/// let exec = Exec::cpu(1);
/// let (x, dt, map, a) = ([1f32; 2 * 3 * 4], [0.5f32; 2 * 3], [1f32; 2 * 3 * 2], [-1f32]);
/// let map = View::new(&map, &[2, 3, 2])?;
/// let args = ssd::Args::new(View::new(&x, &[2, 3, 1, 4])?, View::new(&dt, &[2, 3, 1])?, View::new(&a, &[1])?, map, map);
/// // five slots: the first row starts from zeros and leaves its state in slot 3, the second one stays in slot 1
/// let mut states = Tensor::zeros(&exec, DType::F32, &[5, 1, 4, 2])?;
/// let (read, write) = ([-1i32, 1], [3i32, 1]);
/// let mut pool = StatePool { states: states.view_mut(), read_indices: View::new(&read, &[2])?, write_indices: View::new(&write, &[2])? };
/// let mut y = Tensor::zeros(&exec, DType::F32, &[2, 3, 1, 4])?;
/// pool.forward(&exec, &args, y.view_mut(), None)?;
/// let states = states.to_vec::<f32>()?;
/// assert!(states[3 * 8] > 0.0 && states[3 * 8] == states[8] && states[0] == 0.0);
/// # Ok::<(), statescan::Error>(())
/// ```
#[derive(Debug)]
pub struct StatePool<'a> {
    /// The states, (slots, ..), which change.
    pub states: ViewMut<'a>,
    /// The slot that each sequence starts from (i32 or i64); negative for zeros.
    pub read_indices: View<'a>,
    /// The slot that each sequence, or each piece of one, leaves its state in (i32 or i64); negative for none.
    pub write_indices: View<'a>,
}

impl StatePool<'_> {
    /// Computes `y` and changes the pool. On CUDA a `workspace` of [`StatePool::workspace_len`] elements is dense, and needed by some operations.
    ///
    /// # Errors
    /// Those of the operation; [`Error::Index`] for slots that do not exist, are written twice, or are written by one sequence and read by another; a pool or
    /// slots of another shape, type or device; [`Error::Presence`] beside an initial state or `seq_idx`. Nothing is written then.
    pub fn forward(&mut self, exec: &Exec, args: &impl InPool, mut y: ViewMut<'_>, workspace: Option<ViewMut<'_>>) -> Result<()> {
        let (call, pooled) = with_pool(args, self.read_indices, self.write_indices);
        pooled.update(exec, &call, &mut self.states, &mut y, workspace)
    }

    /// Number of `f32` elements of a workspace, none on the CPU.
    ///
    /// # Errors
    /// As [`StatePool::forward`].
    pub fn workspace_len(&self, exec: &Exec, args: &impl InPool) -> Result<usize> {
        let (call, pooled) = with_pool(args, self.read_indices, self.write_indices);
        pooled.workspace_len(exec, &call, &self.states.as_view())
    }
}

/// A call with its slots, and what runs it.
fn with_pool<'a>(args: &'a impl InPool, read: View<'a>, write: View<'a>) -> (Call<'a>, &'static Pooled) {
    let (mut call, pooled) = args.in_pool();
    let len = call.signature.arguments.len();
    (call.views[len - 2], call.views[len - 1]) = (Some(read), Some(write));
    (call, pooled)
}

/// The operation of a table whose states lie in a pool.
pub struct Pooled {
    pub(crate) op: &'static dyn Op,
    pub(crate) signature: &'static Signature,
    /// Whether a pass on the CPU has one piece of each sequence, as sequences of a row are computed beside each other; else it has all, one after the other.
    pub(crate) by_level: bool,
}

impl Pooled {
    /// The call of the operation itself, and the pool.
    fn split<'a>(&self, call: &Call<'a>, states: View<'a>, level: usize) -> Result<(Call<'a>, Pool<'a>)> {
        let (op, mut own, len) = (self.signature.name, *call, self.signature.arguments.len());
        own.signature = self.signature;
        own.views[len..].fill(None);
        let excluded = |argument: &Argument| argument.role == Role::State || argument.field == "seq_idx";
        if let Some((argument, _)) =
            self.signature.arguments.iter().zip(&own.views).find(|(a, view)| excluded(a) && view.is_some())
        {
            let expected = "excludes `state_pool`: slots belong to rows, or to the sequences of `cu_seqlens`";
            return Err(Error::Presence { op, argument: argument.field, expected });
        }
        let there = |at: usize| call.views[len + at].expect("the presence of arguments is checked before");
        let pool = Pool { states, read: there(0), write: there(1), level: self.by_level.then_some(level) };
        let packed = self.signature.argument(BOUNDS).is_some_and(|at| own.views[at].is_some());
        if pool.pieces().is_some() && self.signature.argument(BOUNDS).is_none() {
            return Err(Error::Unavailable { what: op, why: "a row is one sequence, and has no bounds of pieces" });
        }
        if pool.pieces().is_some() && !packed {
            let expected = "is needed where `write_indices` has two axes: it has the bounds of pieces";
            return Err(Error::Presence { op, argument: BOUNDS, expected });
        }
        Ok((own, pool))
    }

    fn prepare<'a>(&self, exec: &'a Exec, call: &Call<'a>, states: View<'a>, level: usize) -> Result<Prepared<'a>> {
        let (own, pool) = self.split(call, states, level)?;
        Prepared::new(self.op, exec, own, States { pool: Some(pool), ..States::default() })
    }

    /// The number of the result that is a state.
    fn state(&self) -> usize {
        self.signature.results.iter().position(|output| output.like.is_none()).expect("a scan has a state")
    }
}

impl Step for Pooled {
    fn update(
        &self,
        exec: &Exec,
        call: &Call<'_>,
        state: &mut ViewMut<'_>,
        y: &mut ViewMut<'_>,
        workspace: Option<ViewMut<'_>>,
    ) -> Result<()> {
        // kernels read what a sequence starts from before they write what it leaves, both through pointers
        let pool = state.raw();
        let mut out = Written { workspace, ..Written::default() };
        (out.views[0], out.views[self.state()]) = (Some(y.reborrow()), Some(state.reborrow()));
        let by_level = self.by_level && exec.device() == Device::Cpu;
        let pieces = self.split(call, pool.as_read(), 0)?.1.pieces().filter(|_| by_level);
        (0..pieces.unwrap_or(1).max(1)).try_for_each(|level| self.prepare(exec, call, pool.as_read(), level)?.write(&mut out))
    }

    fn workspace_len(&self, exec: &Exec, call: &Call<'_>, state: &View<'_>) -> Result<usize> {
        self.prepare(exec, call, *state, 0)?.workspace_len()
    }

    fn check(&self, call: &Call<'_>, state: &ViewMut<'_>, _y: &ViewMut<'_>) -> Result<()> {
        let (own, pool) = self.split(call, state.as_view(), 0)?;
        self.op.problem(&own, state.as_view().device(), States { pool: Some(pool), ..States::default() }).map(drop)
    }

    /// States are gathered, and scattered again: a pool changes nothing else. Sequences in pieces are computed once for each, from what the pass before has.
    fn reference(&self, call: &Call<'_>, state: &View<'_>) -> Result<[Dense; 2]> {
        let (own, pool) = self.split(call, *state, 0)?;
        let mut states = Dense::from_view(state);
        let each = states.shape()[1..].iter().product::<usize>();
        let (read, write, pieces) = (pool.read.to_indices(), pool.write.to_indices(), pool.pieces().unwrap_or(1));
        let reverse = own.signature.option("reverse").is_some_and(|at| own.values[at] == Value::Flag(true));
        let piece = |row: usize| if reverse { pieces - 1 - row % pieces } else { row % pieces };
        let mut before = Dense::zeros(&Shape::concat(&[&[write.len()], &state.shape()[1..]]))?;
        for row in (0..write.len()).filter(|&row| piece(row) == 0) {
            if let Ok(slot) = usize::try_from(read[row / pieces]) {
                before.data_mut()[row * each..][..each].copy_from_slice(&states.data()[slot * each..][..each]);
            }
        }
        let initial =
            self.signature.arguments.iter().position(|argument| argument.role == Role::State).expect("a scan has a state");
        let run = |before: &Dense| {
            let mut own = own;
            own.views[initial] = Some(if state.dtype().is_complex() { before.view() } else { before.real_view() });
            self.op.reference(&own)
        };
        let mut results = run(&before)?;
        for number in 1..pieces {
            for row in (0..write.len()).filter(|&row| piece(row) == number) {
                let left = if reverse { row + 1 } else { row - 1 };
                before.data_mut()[row * each..][..each].copy_from_slice(&results[self.state()].data()[left * each..][..each]);
            }
            results = run(&before)?;
        }
        let after = results.swap_remove(self.state());
        for (row, slot) in write.iter().enumerate().filter_map(|(row, slot)| Some((row, usize::try_from(*slot).ok()?))) {
            states.data_mut()[slot * each..][..each].copy_from_slice(&after.data()[row * each..][..each]);
        }
        Ok([results.swap_remove(0), states])
    }
}
