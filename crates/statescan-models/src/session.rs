//! [`Session`]: a sequence with its tokens, so that steps can be taken back.

use crate::error::{Error, Result};
use crate::model::Model;
use crate::state::State;
use statescan::Exec;
use std::collections::VecDeque;

/// Tokens between states that are kept.
const APART: usize = 64;

/// A sequence that a model reads: its tokens, its state, and some of the states before.
///
/// To take steps back, the nearest state before them is fetched and the tokens since then are read again, at most 64 of them where a state is
/// kept there; the result has the same bits as if the steps had never been.
#[derive(Debug, Clone)]
pub struct Session {
    tokens: Vec<u32>,
    state: State,
    /// States after so many tokens, the oldest first.
    kept: VecDeque<(usize, State)>,
    most_kept: usize,
    start: State,
}

impl Session {
    /// A sequence that goes on from a state. Up to `kept` states are kept on the way.
    pub fn new(state: State, kept: usize) -> Self {
        Session { tokens: Vec::new(), start: state.clone(), state, kept: VecDeque::new(), most_kept: kept }
    }

    /// The tokens that were read since the session began.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the model's state now.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Reads at least one token more; the logits after the last one.
    ///
    /// # Errors
    /// As [`Model::prefill`]. Nothing has been read then.
    pub fn read(&mut self, model: &Model, exec: &Exec, tokens: &[u32]) -> Result<Vec<f32>> {
        let (mut state, mut kept, mut rest) = (self.state.clone(), Vec::new(), tokens);
        loop {
            let read = self.tokens.len() + tokens.len() - rest.len();
            let (now, later) = rest.split_at(rest.len().min(APART - read % APART));
            let logits = model.prefill(exec, now, &mut state)?;
            if (read + now.len()).is_multiple_of(APART) && self.most_kept > 0 {
                kept.push((read + now.len(), state.clone()));
            }
            if later.is_empty() {
                self.tokens.extend_from_slice(tokens);
                self.state = state;
                self.kept.extend(kept);
                let surplus = self.kept.len().saturating_sub(self.most_kept);
                self.kept.drain(..surplus);
                return Ok(logits);
            }
            rest = later;
        }
    }

    /// Takes the last steps back.
    ///
    /// # Errors
    /// If there were not so many.
    pub fn roll_back(&mut self, model: &Model, exec: &Exec, steps: usize) -> Result<()> {
        let taken = self.tokens.len();
        let length = taken.checked_sub(steps).ok_or(Error::Rollback { steps, taken })?;
        if steps == 0 {
            return Ok(());
        }
        while self.kept.back().is_some_and(|(read, _)| *read > length) {
            self.kept.pop_back();
        }
        let (read, mut state) = self.kept.back().map_or((0, self.start.clone()), |(read, state)| (*read, state.clone()));
        if read < length {
            model.prefill(exec, &self.tokens[read..length], &mut state)?;
        }
        self.state = state;
        self.tokens.truncate(length);
        Ok(())
    }
}
