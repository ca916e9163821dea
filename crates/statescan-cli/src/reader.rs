//! A model that reads some texts beside each other, on the CPU or on a GPU.

use crate::error::Result;
use statescan::tensor::Device;
use statescan::{DType, Exec};
use statescan_cases::memory::{fits, need};
use statescan_models::{DeviceModel, DeviceState, Logits, Model, Sampler, Snapshot, State, Turn, log_probability};

/// Texts from which on a launch for all of them on a GPU takes less time than one for each: it takes about as long as three of these.
const TOGETHER: usize = 4;

/// Rows that one pass takes on the CPU and on a GPU.
const ROWS: [usize; 2] = [512, 16_384];

/// A model, and what it remembers of each text.
pub(crate) struct Reader<'m> {
    model: &'m Model,
    place: Place,
    after: Vec<After>,
    /// Whether logits of single tokens may stay on a GPU, where the most likely token is found.
    pub(crate) tokens_only: bool,
}

#[allow(clippy::large_enum_variant)] // there is one
enum Place {
    Host(Exec, Vec<State>),
    Device(DeviceModel, Vec<DeviceState>, Option<Together>),
}

/// Texts on a GPU that take a token each in one launch; their own states are those from before. The state of a text that has ended is of no use.
struct Together {
    state: DeviceState,
    texts: Vec<usize>,
}

/// The knowledge of the token after a text.
#[derive(Clone)]
enum After {
    Nothing,
    Logits(Vec<f32>),
    MostLikely(u32),
}

impl After {
    fn new(logits: Option<Vec<f32>>) -> Self {
        logits.map_or(After::Nothing, After::Logits)
    }
}

/// Bytes of states and logits that texts of one group take at most.
const ROOM: usize = 1 << 30;

/// How many of some texts are carried on at once from a state: not more than a pass takes rows, nor than there is memory for.
pub(crate) fn at_once(model: &Model, from: &Snapshot, texts: usize) -> Result<usize> {
    // a copy of each state is made, and logits are copied from those of the pass
    let each = 2 * (from.state.size() + 4 * model.config().vocab).max(1);
    let mut count = texts.min(ROWS[0]).min(ROOM / each).max(1);
    while count > 1 && !fits((count * each) as u64) {
        count /= 2;
    }
    need("the state and the logits of a text", (count * each) as u64)?;
    Ok(count)
}

impl<'m> Reader<'m> {
    /// A model on the executor's device, with weights of projections, embedding and head rounded to a type there, and texts that go on from states.
    pub(crate) fn new(exec: &Exec, model: &'m Model, from: Vec<Snapshot>, dtype: Option<DType>) -> Result<Self> {
        let place = match exec.device() {
            Device::Cpu => Place::Host(exec.clone(), Vec::new()),
            _ => Place::Device(DeviceModel::new(exec, model, dtype)?, Vec::new(), None),
        };
        let mut reader = Reader { model, place, after: Vec::new(), tokens_only: false };
        reader.begin(from)?;
        Ok(reader)
    }

    /// Other texts that go on from states.
    pub(crate) fn begin(&mut self, from: Vec<Snapshot>) -> Result<()> {
        let (new, after): (Vec<_>, Vec<_>) = from.into_iter().map(|from| (from.state, After::new(from.logits))).unzip();
        self.after = after;
        match &mut self.place {
            Place::Host(_, states) => *states = new,
            Place::Device(model, states, together) => {
                *together = None;
                *states = new.iter().map(|state| model.upload(state)).collect::<Result<_, _>>()?;
            }
        }
        Ok(())
    }

    /// Tokens that a pass takes, of all texts together.
    pub(crate) fn rows(&self) -> usize {
        if matches!(self.place, Place::Host(..)) { ROWS[0] } else { ROWS[1] }
    }

    /// Reads more tokens of each text, or none; a text that has no part has ended.
    pub(crate) fn read(&mut self, parts: &[Option<&[u32]>]) -> Result<()> {
        if self.read_together(parts)? {
            return Ok(());
        }
        self.apart()?;
        let parts: Vec<&[u32]> = parts.iter().map(|part| part.unwrap_or_default()).collect();
        match &mut self.place {
            Place::Host(exec, states) => {
                let turns = parts.iter().zip(states).map(|(tokens, state)| Turn { tokens, state });
                let logits = self.model.advance(exec, &mut turns.collect::<Vec<_>>(), Logits::Last)?;
                let mut rows = logits.chunks_exact(self.model.config().vocab);
                for (after, _) in self.after.iter_mut().zip(&parts).filter(|(_, part)| !part.is_empty()) {
                    *after = After::new(rows.next().map(<[f32]>::to_vec));
                }
            }
            Place::Device(model, states, _) => {
                for ((part, state), after) in parts.iter().zip(states).zip(&mut self.after) {
                    *after = match part {
                        [] => continue,
                        [token] if self.tokens_only => After::MostLikely(model.step_greedy(*token, state)?),
                        [token] => After::Logits(model.step(*token, state)?),
                        _ => After::Logits(model.prefill(part, state)?),
                    };
                }
            }
        }
        Ok(())
    }

    /// Reads a token of each text that goes on, all at once where a GPU has enough of them, and says whether there is nothing else to read. Texts that have ended lie among the others until
    /// these are half.
    fn read_together(&mut self, parts: &[Option<&[u32]>]) -> Result<bool> {
        let going: Vec<usize> = (0..parts.len()).filter(|&text| parts[text].is_some()).collect();
        if going.is_empty() {
            return Ok(true);
        }
        let is_device = matches!(self.place, Place::Device(..)) && self.model.config().bytes_per_token() == 0;
        if !is_device || going.len() < TOGETHER || parts.iter().flatten().any(|part| part.len() != 1) {
            return Ok(false);
        }
        if matches!(&self.place, Place::Device(.., Some(now)) if now.texts.len() >= 2 * going.len()) {
            self.apart()?;
        }
        let Place::Device(model, states, together) = &mut self.place else { return Ok(false) };
        let now = match together {
            Some(now) => now,
            None => {
                let state = model.join(&going.iter().map(|&text| &states[text]).collect::<Vec<_>>())?;
                together.insert(Together { state, texts: going })
            }
        };
        let tokens: Vec<u32> = now.texts.iter().map(|&text| parts[text].map_or(0, |part| part[0])).collect();
        let after: Vec<After> = match self.tokens_only {
            true => model.steps_greedy(&tokens, &mut now.state)?.into_iter().map(After::MostLikely).collect(),
            false => {
                let logits = model.prefill(&tokens, &mut now.state)?;
                logits.chunks_exact(self.model.config().vocab).map(|row| After::Logits(row.to_vec())).collect()
            }
        };
        for (&text, after) in now.texts.iter().zip(after).filter(|(text, _)| parts[**text].is_some()) {
            self.after[text] = after;
        }
        Ok(true)
    }

    /// Gives each text a state of its own.
    fn apart(&mut self) -> Result<()> {
        let Place::Device(_, states, together) = &mut self.place else { return Ok(()) };
        let Some(Together { state, texts }) = together.take() else { return Ok(()) };
        for (sequence, text) in texts.into_iter().enumerate() {
            states[text] = state.part_of(sequence)?;
        }
        Ok(())
    }

    /// The model.
    pub(crate) fn model(&self) -> &Model {
        self.model
    }

    /// Texts that are read.
    pub(crate) fn texts(&self) -> usize {
        self.after.len()
    }

    /// Makes so many texts of the first one, each of which goes on by itself.
    pub(crate) fn branch(&mut self, texts: usize) -> Result<()> {
        self.apart()?;
        match &mut self.place {
            Place::Host(_, states) => states.resize(texts, states[0].clone()),
            Place::Device(model, states, _) => {
                let state = states[0].download(0)?;
                while states.len() < texts {
                    states.push(model.upload(&state)?);
                }
            }
        }
        self.after.resize(texts, self.after[0].clone());
        Ok(())
    }

    /// Draws the token after a text; none where nothing is known of it.
    pub(crate) fn draw(&self, text: usize, sampler: &mut Sampler) -> Result<Option<u32>> {
        match &self.after[text] {
            After::Nothing => Ok(None),
            After::Logits(logits) => Ok(Some(sampler.draw(logits)?)),
            After::MostLikely(token) => Ok(Some(*token)),
        }
    }

    /// The logarithm of a token's probability after a text, where logits are there.
    pub(crate) fn log_probability(&self, text: usize, token: u32) -> Option<f64> {
        match &self.after[text] {
            After::Logits(logits) => Some(log_probability(logits, token)),
            _ => None,
        }
    }

    /// Returns the model's state after a text.
    pub(crate) fn snapshot(&mut self, text: usize) -> Result<Snapshot> {
        self.apart()?;
        let state = match &self.place {
            Place::Host(_, states) => states[text].clone(),
            Place::Device(_, states, _) => states[text].download(0)?,
        };
        let logits = match &self.after[text] {
            After::Logits(logits) => Some(logits.clone()),
            _ => None,
        };
        Ok(Snapshot { state, logits })
    }

    /// Goes on with a text from another state.
    pub(crate) fn restore(&mut self, text: usize, from: Snapshot) -> Result<()> {
        self.apart()?;
        match &mut self.place {
            Place::Host(_, states) => states[text] = from.state,
            Place::Device(model, states, _) => states[text] = model.upload(&from.state)?,
        }
        self.after[text] = After::new(from.logits);
        Ok(())
    }

    /// Tokens that were read of a text.
    pub(crate) fn position(&self, text: usize) -> u64 {
        match &self.place {
            Place::Host(_, states) => states[text].position(),
            Place::Device(_, states, together) => {
                let of = |now: &Together| Some(now.state.positions()[now.texts.iter().position(|&other| other == text)?]);
                together.as_ref().and_then(of).unwrap_or_else(|| states[text].position())
            }
        }
    }

    /// Bytes of what is remembered of a text.
    pub(crate) fn size(&self, text: usize) -> usize {
        let grown = usize::try_from(self.position(text)).unwrap_or(usize::MAX);
        self.model.state().size().saturating_add(grown.saturating_mul(self.model.config().bytes_per_token()))
    }

    /// Bytes that a step has to read.
    pub(crate) fn bytes_per_step(&self) -> usize {
        match &self.place {
            Place::Host(..) => self.model.bytes_per_step(),
            Place::Device(model, ..) => model.bytes_per_step(),
        }
    }
}
