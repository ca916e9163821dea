//! How targets come out.

use statescan_cases::measure::turns::{self, Turn};

/// How a target came out: its turns, and when they are all there its figure.
pub(super) enum Outcome<T> {
    /// It was measured.
    Measured(T),
    /// Results are not within the bounds of the oracle: what is off.
    Wrong(String),
    /// This machine cannot tell.
    NotHere(&'static str),
}

/// What one round tells of a target.
pub(super) type Round = Outcome<Vec<Turn>>;

impl Outcome<f64> {
    /// The median over all turns of some rounds, or the reason that one of them gives instead.
    pub fn of_rounds(rounds: Vec<Round>) -> Self {
        let mut turns = Vec::new();
        for outcome in rounds {
            match outcome {
                Outcome::Measured(more) => turns.extend(more),
                Outcome::Wrong(what) => return Outcome::Wrong(what),
                Outcome::NotHere(why) => return Outcome::NotHere(why),
            }
        }
        Outcome::Measured(turns::figure(turns))
    }
}
