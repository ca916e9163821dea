//! Steps between slots: the rows of a step are the tokens of sequences, and a sequence reads its state in one slot and leaves it in others.
//!
//! Tokens lie one behind the other, as many for each sequence, or as the bounds of packed sequences say. A sequence reads its state once, from
//! slot `state_batch_indices`, (sequences,), or from zeros where that is negative. `dst_state_batch_indices`, (sequences,), is the slot of the state after
//! its last token, or of the one that it read if it has no tokens; of shape (sequences, tokens) it has a slot for the state after each token. A negative one
//! stands for nothing that is written. From token to token a state is rounded to the type that it is stored in, so that several tokens give the bits
//! that one step after another gives, and a draft that is refused leaves no trace: the next call reads the slot of the last token that was kept.
//!
//! No two tokens write one slot, and no sequence reads a slot that another one writes. The host checks slots that lie in its memory. On CUDA only the
//! device reads them: a number that is no slot counts as negative, and bounds as if they were cut to the rows that there are.
//!
//! On the CPU the states of sequences are copied out of the pool, steps run on the copies one after another, and each state that is kept is copied back.

use super::call::Call;
use super::check::{Reading, limit_sizes};
use super::op::Step;
use super::pool::StatePool;
use super::signature::sequences::CU_SEQLENS;
use super::signature::{Argument, Role, Signature, index, same};
use super::slots::{BOUNDS, Slots};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::tensor::{DType, Dense, Shape, Tensor, View, ViewMut};

/// The letters of sequences, of their tokens and of their bounds, which a form of a step has besides.
pub(crate) const READERS: (char, &str) = ('R', "sequences");
pub(crate) const TOKENS: (char, &str) = ('Q', "tokens");

/// A step's arguments, of which the one called `read` has the slots that sequences read; behind them are those that they write, `write`, and the bounds.
pub(crate) const fn with_slots<const N: usize>(arguments: &[Argument], read: &'static str, write: &'static str) -> [Argument; N] {
    let written = index(&["R", "RQ"]).field(write, "").required();
    let (mut all, mut at) = ([written; N], 0);
    while at < arguments.len() {
        all[at] = arguments[at];
        if same(arguments[at].field, read) {
            all[at] = index(&["R"]).field(read, "").required();
        }
        at += 1;
    }
    all[at + 1] = CU_SEQLENS.field(BOUNDS, "");
    all
}

/// A step as data, between slots.
pub(crate) const fn between_slots(of: &'static Signature, name: &'static str, arguments: &'static [Argument]) -> Signature {
    let about = "the step of this name with rows that are tokens of sequences, which read and write slots";
    Signature { name, about, arguments, ..*of }.resolved()
}

/// The arguments of a step that has a form between slots.
pub trait BetweenSlots {
    /// The call by position of that form, without its slots, and what runs it.
    fn between_slots(&self) -> (Call<'_>, &'static Slotted);
}

impl StatePool<'_> {
    /// Moves the states of sequences on by tokens, the rows of a step one behind the other, and computes `y`. Each sequence has as many, or as many as
    /// `bounds` say, (sequences + 1,) of i32 or i64. `write_indices` may have two axes here, (sequences, tokens): a slot for the state after each token.
    /// A text that is read so has the same bits wherever it is cut, which those of a scan may depend on.
    ///
    /// ```
    /// use statescan::ops::{pool::StatePool, selective_scan::update::Args};
    /// use statescan::{DType, Exec, Tensor, View};
    ///
    /// let exec = Exec::cpu(1);
    /// let (x, dt, map, a) = ([1f32; 6 * 4], [0.5f32; 6 * 4], [1f32; 6 * 2], [-1f32; 4 * 2]);
    /// let [x, dt] = [View::new(&x, &[6, 4])?, View::new(&dt, &[6, 4])?];
    /// let map = View::new(&map, &[6, 2])?;
    /// let args = Args::new(x, dt, View::new(&a, &[4, 2])?, map, map);
    /// // a draft of three tokens for each of two conversations: one starts from zeros, one from slot 4, and every state is kept
    /// let mut states = Tensor::zeros(&exec, DType::F32, &[8, 4, 2])?;
    /// let (read, write) = ([-1i32, 4], [0i32, 1, 2, 5, 6, 7]);
    /// let mut pool = StatePool { states: states.view_mut(), read_indices: View::new(&read, &[2])?, write_indices: View::new(&write, &[2, 3])? };
    /// let mut y = Tensor::zeros(&exec, DType::F32, &[6, 4])?;
    /// pool.step(&exec, &args, None, y.view_mut())?;
    /// // of the first one's draft a single token is accepted: it goes on from slot 0
    /// let states = states.to_vec::<f32>()?;
    /// assert!(states[8] > states[0] && states[0] == states[5 * 8]);
    /// # Ok::<(), statescan::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the step; [`Error::Index`] for slots that do not exist, are written twice, or are written by one sequence and read by another, and for
    /// bounds that do not rise from 0 to the number of rows; a pool or slots of another shape, type or device; [`Error::Presence`] beside other indices.
    /// Nothing is written then. On CUDA [`Error::Unavailable`] for S5 with more states than shared memory holds.
    pub fn step(&mut self, exec: &Exec, args: &impl BetweenSlots, bounds: Option<View<'_>>, mut y: ViewMut<'_>) -> Result<()> {
        let (mut call, slotted) = args.between_slots();
        let (at, len) = (read_at(call.signature), slotted.signature.arguments.len());
        call.views[at] = Some(self.read_indices);
        (call.views[len], call.views[len + 1]) = (Some(self.write_indices), bounds);
        slotted.update(exec, &call, &mut self.states, &mut y, None)
    }
}

/// The number of the argument that has the slots which sequences read.
fn read_at(signature: &Signature) -> usize {
    let is_read = |argument: &Argument| argument.required && argument.role == Role::Index;
    signature.arguments.iter().position(is_read).expect("a step between slots reads one")
}

/// The step of a table whose rows are the tokens of sequences.
pub struct Slotted {
    pub(crate) step: &'static dyn Step,
    pub(crate) signature: &'static Signature,
}

impl Slotted {
    /// The call of the step itself, and the slots.
    fn split<'a>(&self, call: &Call<'a>) -> Result<(Call<'a>, Slots<'a>)> {
        let (op, len) = (self.signature.name, self.signature.arguments.len());
        let (arguments, at) = (call.signature.arguments, read_at(call.signature));
        let mut own = *call;
        own.signature = self.signature;
        own.views[len..].fill(None);
        let there = |view: Option<View<'a>>| view.expect("the presence of arguments is checked before");
        let (read, write, bounds) = (there(own.views[at].take()), there(call.views[len]), call.views[len + 1]);
        let mut indices = self.signature.arguments.iter().zip(&own.views).filter(|(argument, _)| argument.role == Role::Index);
        if let Some((argument, _)) = indices.find(|(_, view)| view.is_some()) {
            let expected = "excludes slots that are written apart from those that are read";
            return Err(Error::Presence { op, argument: argument.field, expected });
        }
        Ok((own, Slots { read, write, bounds, names: [arguments[at].field, arguments[len].field] }))
    }

    /// Refuses shapes of indices that do not go with the call, and sizes that nobody has memory for.
    fn fits(&self, (own, slots): (&Call<'_>, &Slots<'_>), state: &View<'_>) -> Result<()> {
        let (op, rows, sizes) = (self.signature.name, own.views[0].map_or(0, |view| view.shape()[0]), state.shape());
        slots.check(op, state.device(), rows)?;
        let most = [rows, slots.read.len(), sizes.first().copied().unwrap_or(0)].into_iter().max();
        let columns = slots.write.shape().get(1).copied();
        limit_sizes(op, self.signature.limit.names, sizes.iter().skip(1).copied().chain(most).chain(columns))
    }

    /// The layouts of a call that was checked.
    fn layouts(&self, own: &Call<'_>) -> Vec<&'static str> {
        let reading = Reading::of(self.signature, |at| own.views[at].map(|view| view.shape())).ok();
        reading.map_or(Vec::new(), |reading| reading.layouts.to_vec())
    }
}

impl Step for Slotted {
    fn update(
        &self,
        exec: &Exec,
        call: &Call<'_>,
        state: &mut ViewMut<'_>,
        y: &mut ViewMut<'_>,
        _workspace: Option<ViewMut<'_>>,
    ) -> Result<()> {
        let (own, slots) = self.split(call)?;
        self.fits((&own, &slots), state.shared())?;
        if let Some(stream) = exec.stream() {
            return self.step.launch_between(stream, (&own, &slots), state, y);
        }
        self.step.check_between((&own, &slots), state, y)?;
        let places = slots.places(self.signature.name, y.shape()[0], state.shape()[0])?;
        places.walk((&own, &self.layouts(&own)), (state, y), |call, states, mut y| {
            self.step.update(exec, call, &mut states.view_mut(), &mut y, None)
        })
    }

    fn check(&self, call: &Call<'_>, state: &ViewMut<'_>, y: &ViewMut<'_>) -> Result<()> {
        let (own, slots) = self.split(call)?;
        self.fits((&own, &slots), state.shared())?;
        self.step.check_between((&own, &slots), state, y)
    }

    fn reference(&self, call: &Call<'_>, state: &View<'_>) -> Result<[Dense; 2]> {
        let (own, slots) = self.split(call)?;
        let wide = |complex| if complex { DType::Complex128 } else { DType::F64 };
        let mut y = Tensor::host(wide(own.is_result_complex(0)), &own.like(0).unwrap_or(Shape::of(&[])))?;
        let mut pool = Tensor::from_dense(&Dense::from_view(state), wide(state.dtype().is_complex()));
        self.fits((&own, &slots), state)?;
        self.step.check_between((&own, &slots), &pool.view_mut(), &y.view_mut())?;
        let places = slots.places(self.signature.name, y.shape()[0], pool.shape()[0])?;
        places.walk((&own, &self.layouts(&own)), (&mut pool.view_mut(), &mut y.view_mut()), |call, states, y| {
            let [now, after] = self.step.reference(call, &states.view())?;
            states.copy_from(&after);
            let now = Tensor::from_dense(&now, y.dtype());
            y.copy_from(now.view());
            Ok(())
        })?;
        Ok([y.to_dense(), pool.to_dense()])
    }
}
