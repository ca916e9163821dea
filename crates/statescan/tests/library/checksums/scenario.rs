//! The calls whose results are compared, drawn from the signatures.

use crate::common::{self, Layout, Rng};
use num_complex::Complex64;
use statescan::ops::call::{Value, carried};
use statescan::ops::signature::{Argument, Choice, Complex, Role};
use statescan::ops::{Call, Operation};
use statescan::{DType, Tensor};

/// Sizes and options of calls; an operation ignores what it does not have.
pub struct Scenario {
    pub name: &'static str,
    /// Operations that it is for; all where there are none.
    of: &'static [&'static str],
    sizes: &'static [(char, usize)],
    complex: bool,
    /// Whether arguments that may be missing are there.
    full: bool,
    packed: bool,
    /// Rules are by the number of their word.
    rule: Option<usize>,
    reverse: bool,
    pub layout: Layout,
}

const PLAIN: Scenario = Scenario {
    name: "plain",
    of: &[],
    sizes: &[
        ('B', 2),
        ('D', 37),
        ('H', 3),
        ('J', 6),
        ('P', 12),
        ('E', 2),
        ('F', 1),
        ('L', 83),
        ('N', 8),
        ('G', 1),
        ('W', 4),
        ('T', 1),
        ('A', 3),
    ],
    complex: false,
    full: false,
    packed: false,
    rule: None,
    reverse: false,
    layout: Layout::Dense,
};

/// Channels enough for whole vectors, several groups, every option; then what takes other ways through the kernels.
pub const SCENARIOS: &[Scenario] = &[
    PLAIN,
    Scenario {
        name: "options",
        sizes: &[
            ('B', 2),
            ('D', 32),
            ('H', 4),
            ('J', 4),
            ('P', 8),
            ('E', 2),
            ('F', 2),
            ('L', 130),
            ('N', 6),
            ('G', 2),
            ('W', 3),
            ('T', 3),
            ('A', 3),
        ],
        full: true,
        layout: Layout::Scattered,
        reverse: true,
        ..PLAIN
    },
    Scenario {
        name: "across",
        sizes: &[
            ('B', 1),
            ('D', 21),
            ('H', 2),
            ('J', 4),
            ('P', 16),
            ('E', 1),
            ('F', 3),
            ('L', 71),
            ('N', 16),
            ('G', 1),
            ('W', 4),
            ('T', 1),
            ('A', 5),
        ],
        full: true,
        layout: Layout::SlicedAcross,
        ..PLAIN
    },
    Scenario { name: "packed", packed: true, full: true, ..PLAIN },
    Scenario { name: "complex", complex: true, full: true, rule: Some(1), layout: Layout::Sliced, ..PLAIN },
    Scenario { name: "bilinear", of: SCANS, rule: Some(2), full: true, ..PLAIN },
    Scenario { name: "dirac", of: SCANS, rule: Some(3), complex: true, ..PLAIN },
    Scenario {
        name: "few channels",
        of: &["selective_scan", "linear_scan", "causal_conv1d"],
        sizes: &[('B', 1), ('D', 5), ('E', 1), ('F', 1), ('L', 330), ('N', 16), ('G', 1), ('W', 2)],
        ..PLAIN
    },
    Scenario {
        name: "long rows",
        of: &["selective_scan", "ssd"],
        sizes: &[('B', 2), ('D', 160), ('H', 2), ('P', 24), ('L', 300), ('N', 12), ('G', 1)],
        full: true,
        ..PLAIN
    },
];
const SCANS: &[&str] = &["selective_scan", "selective_state_update", "simplified_scan", "simplified_state_update"];

impl Scenario {
    pub fn is_of(&self, operation: &Operation) -> bool {
        let signature = operation.signature;
        let can_be_packed = signature.argument("seq_idx").is_some();
        let listed = self.of.is_empty() || self.of.contains(&signature.name);
        listed && (!self.packed || can_be_packed)
    }

    /// Whether calls have so many steps.
    pub fn has_steps(&self, steps: usize) -> bool {
        self.size('L') == steps
    }

    /// Whether there is a call in a type. Complex numbers have no halves, and a linear scan has no other arguments than those in the type.
    pub fn has_type(&self, operation: &Operation, dtype: DType) -> bool {
        !self.complex || dtype.size() > 2 || operation.signature.name != "linear_scan"
    }

    /// The arguments by position.
    pub fn inputs(&self, operation: &Operation, dtype: DType, rng: &mut Rng) -> Vec<Option<Tensor>> {
        let arguments = operation.signature.arguments.iter();
        arguments.map(|argument| self.input(operation, argument, dtype, rng)).collect()
    }

    fn input(&self, operation: &Operation, argument: &Argument, dtype: DType, rng: &mut Rng) -> Option<Tensor> {
        let layout = self.layout_of(operation, argument)?;
        let shape: Vec<usize> = layout.chars().map(|letter| self.size(letter)).collect();
        match argument.role {
            Role::Index if argument.name == "seq_idx" => {
                // rising numbers with a sequence of one step among them
                let at = |t: usize| [0, 20, 21].iter().filter(|&&start| t >= start).count() as i64 - 1;
                let values: Vec<i64> = (0..shape.iter().product()).map(|i| at(i % shape[1])).collect();
                let mut next = values.iter();
                let mut index = Tensor::host(DType::I32, &shape).unwrap();
                index.fill_with(|| (*next.next().unwrap() as f64).into());
                Some(index)
            }
            Role::Index if argument.name == "cache_seqlens" => Some(common::indices(DType::I32, &[7, 2][..shape[0]])),
            Role::Index => Some(common::indices(DType::I64, &[2, 0][..shape[0]])),
            role => {
                let complex = self.complex && argument.complex != Complex::Never;
                let dtype = match role {
                    Role::Activation if complex && dtype.size() > 2 => carried(dtype, true),
                    Role::Activation => dtype,
                    _ => carried(dtype, complex),
                };
                Some(common::random(rng, dtype, &shape, self.layout, |rng| value(argument.name, operation, rng)))
            }
        }
    }

    /// The layout that an argument has here; none where it is not there.
    fn layout_of(&self, operation: &Operation, argument: &Argument) -> Option<&'static str> {
        let wanted = match argument.name {
            "cu_seqlens" => false,
            "seq_idx" => self.packed,
            // with it a simplified scan is `s5_inner`, which has lines of its own
            "D" if operation.signature.name == "simplified_scan" => false,
            _ => argument.required || self.full,
        };
        let form = operation.signature.forms.first();
        let known = |layout: &&&'static str| {
            let in_form = form.is_none_or(|form| layout.chars().all(|letter| form.contains(letter)));
            in_form && layout.chars().all(|letter| letter.is_ascii_digit() || (self.has(letter) || letter == 'S' && self.packed))
        };
        let layouts = argument.layouts.iter().filter(known);
        layouts.max_by_key(|layout| layout.len()).copied().filter(|_| wanted)
    }

    /// V is what a filter remembers.
    fn has(&self, letter: char) -> bool {
        match letter {
            'V' => self.has('W'),
            _ => self.sizes.iter().any(|(own, _)| *own == letter),
        }
    }

    fn size(&self, letter: char) -> usize {
        match letter {
            // states of packed sequences, or to choose from by an index
            'S' => {
                if self.full {
                    3
                } else {
                    self.size('B')
                }
            }
            'V' => self.size('W') - 1,
            'M' => self.size('W') + 1,
            _ if letter.is_ascii_digit() => letter as usize - '0' as usize,
            _ => self.sizes.iter().find(|(own, _)| *own == letter).map_or(1, |(_, size)| *size),
        }
    }

    /// Sets the options.
    pub fn set(&self, call: &mut Call<'_>) {
        for (value, option) in call.values.iter_mut().zip(call.signature.options) {
            *value = match (option.name, option.choice) {
                ("dt_limit", _) if self.full => Value::Interval(0.05, 0.9),
                ("reverse", _) => Value::Flag(self.reverse),
                (_, Choice::Flag(_)) => Value::Flag(self.full),
                ("activation", _) => Value::Word(self.full.then_some(0)),
                ("discretization", Choice::Word(..)) if self.rule.is_some() => Value::Word(self.rule),
                _ => *value,
            };
        }
    }

    /// The state of an operation in place.
    pub fn state(&self, argument: &Argument, dtype: DType, rng: &mut Rng) -> Tensor {
        let layout = argument.layouts[0];
        let shape: Vec<usize> = layout.chars().map(|letter| self.size(letter)).collect();
        let dtype = carried(dtype, argument.complex != Complex::Never && (self.complex || argument.complex == Complex::Always));
        common::normal(rng, dtype, &shape, self.layout, 0.5)
    }
}

/// Decays that keep a state for a while, small steps, and otherwise numbers around 0.
fn value(name: &str, operation: &Operation, rng: &mut Rng) -> Complex64 {
    let is_decay = operation.signature.name == "linear_scan";
    let re = match name {
        "a" | "A" if is_decay => rng.uniform(0.5, 1.0),
        "A" => rng.uniform(-2.0, -0.1),
        "dt" | "delta" | "deltaA" => rng.uniform(0.01, 0.5),
        _ => rng.uniform(-1.0, 1.0),
    };
    Complex64::new(re, rng.uniform(-0.5, 0.5))
}
