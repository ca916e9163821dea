//! A call from its operation's signature alone: sizes by letter, types, layouts in memory, arguments that may be missing, options.

use crate::common::{self, Layout, Rng};
use num_complex::Complex64;
use serde_json::{Value, json};
use statescan::ops::Operation;
use statescan::ops::call::carried;
use statescan::ops::signature::{Argument, Choice, Complex, Role};
use statescan::{DType, Tensor};
use statescan_cases::call::Call;
use statescan_cases::sizes::Sizes;
use statescan_cases::{ops, work};
use std::collections::BTreeMap;

/// How time divides into sequences, where it can.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Packing {
    Whole,
    Bounds,
    /// Runs with one state for each row.
    Runs,
    /// Numbered sequences with a state each.
    Numbered,
}

/// The parts of a call that are not left to chance.
#[derive(Debug, Clone, Default)]
pub struct Fixed {
    pub sizes: Sizes,
    pub dtype: Option<DType>,
    pub packing: Option<Packing>,
    pub layout: Option<Layout>,
    /// Whether all other sizes are small.
    pub small: bool,
}

pub struct Draw<'r> {
    pub rng: &'r mut Rng,
    op: &'static Operation,
    form: Option<&'static str>,
    sizes: BTreeMap<char, usize>,
    /// The place of the layout that every argument of several has.
    layout: usize,
    dtype: DType,
    complex: bool,
    packing: Packing,
    /// Whether rows choose their states.
    indexed: bool,
    /// Letters along which arguments that end with them have one number, in strides of zero.
    shared: Vec<char>,
    /// The layout in memory of all tensors, where they have one.
    memory: Option<Layout>,
    /// The factor of all decay rates.
    decay: f64,
    fixed: &'r Fixed,
}

const SIZES: [usize; 18] = [1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 17, 24, 31, 32, 33];
const STEPS: [usize; 14] = [0, 1, 2, 3, 7, 17, 31, 63, 64, 65, 70, 128, 129, 150];
const TYPES: [DType; 6] = [DType::F32, DType::F32, DType::F32, DType::F64, DType::BF16, DType::F16];
const DECAYS: [f64; 8] = [1.0, 1.0, 1.0, 1.0, 1.0, 0.03, 30.0, 1000.0];
const LAYOUTS: [Layout; 5] = [Layout::Dense, Layout::Dense, Layout::Scattered, Layout::Sliced, Layout::SlicedAcross];

impl<'r> Draw<'r> {
    pub fn new(op: &'static Operation, fixed: &'r Fixed, rng: &'r mut Rng) -> Self {
        let signature = op.signature;
        let has_all = |letters: &str| fixed.sizes.iter().all(|(letter, _)| letters.contains(letter));
        let forms: Vec<_> = signature.forms.iter().copied().filter(|form| has_all(form)).collect();
        let forms = if forms.is_empty() { signature.forms } else { &forms[..] };
        let form = (!forms.is_empty()).then(|| rng.pick(forms));
        let can_be_packed = signature.argument("seq_idx").is_some();
        let packing = match fixed.packing {
            Some(packing) => packing,
            None if can_be_packed => rng.pick(&[Packing::Whole, Packing::Bounds, Packing::Runs, Packing::Numbered]),
            None => Packing::Whole,
        };
        // rows of any rank: as many axes as the sizes ask for
        let rows = signature.arguments[0].layouts;
        let layout = rows.iter().position(|layout| has_all(layout)).filter(|_| rows.len() > 3 && fixed.sizes.iter().count() > 0);
        let layout = layout.unwrap_or_else(|| rng.below(4));
        let (dtype, complex) = (rng.pick(&TYPES), rng.below(3) == 0);
        let indexed = signature.in_place.is_some() && rng.below(2) == 0;
        let (dtype, decay) = (fixed.dtype.unwrap_or(dtype), rng.pick(&DECAYS));
        let shared = if rng.below(4) == 0 { signature.sizes.iter().map(|(letter, _)| *letter).collect() } else { Vec::new() };
        let shared = shared.into_iter().filter(|_| rng.below(2) == 0).collect();
        let memory = (rng.below(2) == 0).then(|| rng.pick(&LAYOUTS));
        Draw { rng, op, form, sizes: BTreeMap::new(), layout, dtype, complex, packing, indexed, shared, memory, decay, fixed }
    }

    pub fn coin(&mut self) -> bool {
        self.rng.below(2) == 0
    }

    pub fn memory(&mut self) -> Layout {
        let own = self.rng.pick(&LAYOUTS);
        self.fixed.layout.or(self.memory).unwrap_or(own)
    }

    /// The call, which the operation may refuse: not all that is drawn fits together. Nothing where the oracle would take longer.
    pub fn call(&mut self, longest: f64) -> Option<Call> {
        let mut shapes = Vec::new();
        for argument in ops::arguments(self.op) {
            if self.is_there(argument)
                && let Some((letters, shape)) = self.shape(argument)
            {
                shapes.push((argument, letters, shape));
            }
        }
        // most draws are too long, and most of the time would go into their numbers
        let mut sizes = Sizes::default();
        for (letter, size) in shapes.iter().flat_map(|(_, letters, shape)| letters.chars().zip(shape.iter().copied())) {
            sizes = if sizes.has(letter) { sizes } else { sizes.with(letter, size) };
        }
        if work::oracle_cost(self.op, &sizes) > longest {
            return None;
        }
        let mut call = Call::new(self.op);
        for (argument, letters, shape) in shapes {
            call = call.with(argument.name, self.argument(argument, letters, &shape));
        }
        for option in self.op.signature.options {
            if self.coin() {
                call = call.set(option.name, self.option(&option.choice));
            }
        }
        // the length of one number divides it out: in 16 bits nothing is left of its gradient, a difference of equal terms
        if self.dtype.size() == 2 && sizes.has('N') && sizes.get('N') == 1 && self.op.signature.option("qk_l2norm").is_some() {
            call = call.set("qk_l2norm", false);
        }
        Some(call)
    }

    fn is_there(&mut self, argument: &Argument) -> bool {
        match argument.name {
            "cu_seqlens" => self.packing == Packing::Bounds,
            "seq_idx" => matches!(self.packing, Packing::Runs | Packing::Numbered),
            name if name.ends_with("_indices") => self.indexed,
            _ => ops::is_required(self.op, argument) || self.coin(),
        }
    }

    fn shape(&mut self, argument: &'static Argument) -> Option<(&'static str, Vec<usize>)> {
        let letters = self.letters(argument)?;
        let mut shape: Vec<usize> = letters.chars().map(|letter| self.size(letter)).collect();
        if argument.is_state() && self.packing == Packing::Bounds {
            shape[0] = self.size('S');
        }
        Some((letters, shape))
    }

    fn argument(&mut self, argument: &'static Argument, letters: &str, shape: &[usize]) -> Tensor {
        if argument.role == Role::Index {
            return self.index(argument.name, shape);
        }
        let (dtype, layout, decay) = (self.dtype_of(argument), self.memory(), self.decay);
        let name = (argument.name, self.op.signature.name);
        // the length of a key is about 1
        let last = (shape.last().copied().unwrap_or(1).max(1) as f64).sqrt();
        let alike = letters.chars().rev().take_while(|letter| self.shared.contains(letter)).count();
        // a row of equal numbers is all rounding to a norm: it has no variance, and each sum errs to the same side
        if alike > 0 && name != ("x", "norm") && !ops::is_state(self.op, argument) && self.rng.below(4) > 0 {
            let own = &shape[..shape.len() - alike];
            let mut strides: Vec<_> = (0..own.len()).map(|axis| own[axis + 1..].iter().product::<usize>() as isize).collect();
            strides.resize(shape.len(), 0);
            let mut tensor = Tensor::strided(dtype, shape, &strides, 0, own.iter().product()).unwrap();
            tensor.fill_with(|| number(name, last, decay, self.rng));
            return tensor;
        }
        common::random(self.rng, dtype, shape, layout, |rng| number(name, last, decay, rng))
    }

    /// The layout of an argument: one of the call's form; of rows of any rank all have as many axes.
    fn letters(&mut self, argument: &'static Argument) -> Option<&'static str> {
        let numbered = self.packing == Packing::Numbered;
        let fits = |layout: &str| {
            let of_form = self.form.is_none_or(|form| layout.chars().all(|l| l.is_ascii_digit() || form.contains(l)));
            of_form && (!argument.is_state() || self.op.signature.in_place.is_some() || layout.contains('S') == numbered)
        };
        let all: Vec<_> = argument.layouts.iter().copied().filter(|layout| fits(layout)).collect();
        match all.len() {
            0 => None,
            4.. => all.get(self.layout).copied(),
            _ => Some(self.rng.pick(&all)),
        }
    }

    fn size(&mut self, letter: char) -> usize {
        if let Some(digit) = letter.to_digit(10) {
            return digit as usize;
        }
        let (small, one) = (self.fixed.small, letter == 'B' && self.packing == Packing::Bounds);
        if self.fixed.sizes.has(letter) && !one {
            return self.fixed.sizes.get(letter);
        }
        if self.op.signature.free.contains(letter) {
            // as many groups as divide what they are groups of
            let grouped = self
                .op
                .signature
                .facts
                .independent
                .iter()
                .find(|(of, groups)| *groups == Some(letter) && self.form.is_none_or(|form| form.contains(*of)));
            let of = grouped.map_or(1, |(of, _)| self.size(*of)).max(1);
            let divisors: Vec<_> = (1..=of).filter(|n| of % n == 0).collect();
            return self.rng.pick(&divisors);
        }
        if let Some(&size) = self.sizes.get(&letter) {
            return size;
        }
        let grouped = self.op.signature.facts.independent.iter().find(|(of, groups)| *of == letter && groups.is_some());
        let size = match letter {
            'B' if one => 1,
            'L' if small => self.rng.pick(&[5, 7]),
            'L' => self.rng.pick(&STEPS),
            'K' => self.size('S') + 1,
            'W' => 2 + self.rng.below(7),
            'V' => self.size('W') - 1,
            'M' => self.size('W') - 1 + self.rng.below(4),
            'S' if self.op.signature.in_place.is_some() => self.size('B') + if self.indexed { self.rng.below(4) } else { 0 },
            'S' => 1 + self.rng.below(4),
            _ if !small && self.rng.below(40) == 0 => 0,
            'B' => 1 + self.rng.below(3),
            'T' => self.rng.pick(&[1, 2, 5, 9]),
            _ => match grouped {
                Some((_, Some(groups))) if !self.op.signature.free.contains(*groups) => {
                    self.size(*groups) * (1 + self.rng.below(3))
                }
                _ if small => 1 + self.rng.below(3),
                _ => self.rng.pick(&SIZES),
            },
        };
        self.sizes.insert(letter, size);
        size
    }

    fn dtype_of(&mut self, argument: &Argument) -> DType {
        let may = argument.complex != Complex::Never;
        let in_place = ops::is_state(self.op, argument);
        // a state in place is complex as what moves it is
        let steps = self.op.signature.in_place.is_some();
        let complex =
            may && (in_place && argument.complex == Complex::Always || self.complex && (steps || self.rng.below(4) > 0));
        let short = self.dtype.size() == 2;
        match argument.role {
            Role::Activation if complex && !short => carried(self.dtype, true),
            Role::Activation => self.dtype,
            // a state in place has a type of its own
            _ if in_place && !complex && self.fixed.dtype.is_none() && self.rng.below(3) == 0 => self.rng.pick(&TYPES),
            _ if short && !complex && self.rng.below(4) == 0 => self.dtype,
            _ => carried(self.dtype, complex),
        }
    }

    fn index(&mut self, name: &str, shape: &[usize]) -> Tensor {
        let (all, steps) = (shape.iter().product::<usize>(), shape.last().copied().unwrap_or(1).max(1));
        let values: Vec<i64> = match name {
            "cu_seqlens" => {
                let steps = self.size('L');
                let mut bounds: Vec<i64> = (0..all).map(|_| self.rng.below(steps + 1) as i64).collect();
                (bounds[0], bounds[all - 1]) = (0, steps as i64);
                bounds.sort_unstable();
                bounds
            }
            "seq_idx" => {
                let sequences = self.size('S');
                let mut last = 0;
                let mut step = |at: usize| {
                    if at.is_multiple_of(steps) {
                        last = 0;
                    }
                    if self.rng.below(8) == 0 {
                        let numbered = self.packing == Packing::Numbered;
                        last = if numbered { (last + 1).min(sequences as i64 - 1) } else { self.rng.below(9) as i64 - 2 };
                    }
                    last
                };
                (0..all).map(&mut step).collect()
            }
            name if name.ends_with("_indices") => {
                let states = self.size('S') as i64;
                (0..all as i64).map(|row| if self.rng.below(3) == 0 { -1 - row } else { states - 1 - row }).collect()
            }
            _ => (0..all).map(|_| self.rng.below(40) as i64).collect(),
        };
        let (dtype, layout) = (self.rng.pick(&[DType::I32, DType::I64]), self.memory());
        let mut values = values.into_iter();
        common::random(self.rng, dtype, shape, layout, |_| (values.next().unwrap() as f64).into())
    }

    fn option(&mut self, choice: &Choice) -> Value {
        match *choice {
            Choice::Flag(_) => json!(self.coin()),
            Choice::Count(_) => json!(1 + self.rng.below(3)),
            Choice::Number(default) => json!(self.rng.pick(&[default, 0.3, -2.0])),
            Choice::Interval => json!([0.05, 0.9]),
            Choice::Word(words, _) => json!(self.rng.pick(words)),
        }
    }
}

/// Decays that keep a state for a while, small steps, and otherwise numbers around 0.
fn number((name, op): (&str, &str), last: f64, decay: f64, rng: &mut Rng) -> Complex64 {
    let re = match name {
        "a" if op == "linear_scan" => rng.uniform(0.5, 1.0),
        "A" => decay * rng.uniform(-2.0, -0.1),
        "dt" | "delta" | "deltaA" | "dt_a" => rng.uniform(0.01, 0.5),
        // steps stay positive, so that nothing grows
        "dt_bias" if !op.starts_with("gated") => rng.uniform(0.0, 0.2),
        "g" => decay * rng.uniform(-1.0, 0.0),
        "beta" => rng.uniform(0.0, 1.0),
        "k" => rng.uniform(-1.0, 1.0) / last,
        _ => rng.uniform(-1.0, 1.0),
    };
    Complex64::new(re, rng.uniform(-0.5, 0.5))
}
