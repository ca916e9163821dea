//! A NaN or an infinity in one element of an argument stays in what depends on it: in its row, its channels, its sequence and, in results, behind its step.

use super::*;
use draw::Packing;
use std::ops::Range;

/// The index of an element.
fn index(shape: &[usize], at: usize) -> Vec<usize> {
    let (mut index, mut rest) = (vec![0; shape.len()], at);
    for (index, &size) in index.iter_mut().zip(shape).rev() {
        (*index, rest) = (rest % size, rest / size);
    }
    index
}

/// The place of an element along the letters of its tensor.
struct Place(Vec<(char, Range<usize>)>);

impl Place {
    /// Along a letter of parts a group of them is all of its parts; a state in place lies in the row that uses it, and one of packed sequences where rows
    /// would be.
    fn new(call: &Call, layout: &str, shape: &[usize], index: &[usize]) -> Self {
        let (sizes, signature) = (call.sizes(), call.op.signature);
        let of_sequences = call.input("cu_seqlens").is_some() && !layout.contains('L');
        let rows = call.inputs.iter().find(|input| input.argument.name.ends_with("_indices"));
        let row = |state: usize| rows.map(|rows| rows.buffer.to_dense().to_real().iter().position(|&row| row == state as f64));
        let one = |((letter, &size), &at): ((char, &usize), &usize)| {
            let whole = signature.facts.independent.iter().find(|(of, groups)| *groups == Some(letter) && sizes.has(*of));
            match whole {
                Some(_) if letter == 'S' => {
                    let row = row(at).unwrap_or(Some(at)).unwrap_or(usize::MAX - 1 - at);
                    ('B', row..row + 1)
                }
                Some(&(of, _)) => (of, at * sizes.get(of) / size..(at + 1) * sizes.get(of) / size),
                None if of_sequences && letter == 'B' => ('S', at..at + 1),
                None => (letter, at..at + 1),
            }
        };
        Place(layout.chars().zip(shape).zip(index).map(one).collect())
    }

    fn along(&self, letter: char) -> Option<&Range<usize>> {
        self.0.iter().find(|(own, _)| *own == letter).map(|(_, range)| range)
    }
}

/// An element that is not finite, where it lies, and what follows from that.
struct Spoilt<'c> {
    call: &'c Call,
    at: Place,
    /// The numbers of sequences at every step of a row, with bounds.
    sequences: Vec<usize>,
}

impl Spoilt<'_> {
    /// Whether an element of a tensor may depend on the one that is not finite.
    fn reaches(&self, at: &Place, is_gradient: bool) -> bool {
        let apart = |&(letter, _): &(char, _)| match (self.at.along(letter), at.along(letter)) {
            (Some(one), Some(other)) => one.end <= other.start || other.end <= one.start,
            _ => false,
        };
        !self.call.op.signature.facts.independent.iter().any(apart) && !self.is_before(at, is_gradient)
    }

    /// Whether an element lies in another sequence, or before the step.
    fn is_before(&self, at: &Place, is_gradient: bool) -> bool {
        let Some(step) = self.at.along('L').map(|range| range.start) else { return false };
        let other = at.along('L').map(|range| range.start);
        if let Some(sequence) = self.sequences.get(step) {
            let other = other.map_or_else(|| at.along('S').map(|range| range.start), |other| self.sequences.get(other).copied());
            return other.is_some_and(|other| other != *sequence);
        }
        let is_before = |other| if self.call.reversed() { other > step } else { other < step };
        !is_gradient && !self.call.op.signature.facts.chunked && other.is_some_and(is_before)
    }
}

fn stays(drawn: &Drawn, at: usize, number: f64, rng: &mut Rng, execs: &[Exec]) {
    let input = &drawn.call.inputs[at];
    let shape = input.buffer.shape();
    let mut values = input.buffer.to_dense();
    let chosen = rng.below(values.data().len());
    values.data_mut()[chosen] = number.into();
    let layout = |name: &str, rank: usize| drawn.call.input(name).and_then(|input| input.argument.layout(rank));
    let bounds = drawn.call.input("cu_seqlens").map(|bounds| bounds.buffer.to_dense().to_real());
    let sequences = bounds
        .iter()
        .flat_map(|bounds| bounds.windows(2).enumerate())
        .flat_map(|(number, bound)| (bound[0] as usize..bound[1] as usize).map(move |_| number));
    let spoilt = Spoilt {
        call: &drawn.call,
        at: Place::new(&drawn.call, layout(input.argument.name, shape.len()).unwrap(), &shape, &index(&shape, chosen)),
        sequences: sequences.collect(),
    };
    let mut copy = drawn.clone();
    copy.call.inputs[at].buffer.copy_from(&values);
    // an element that others share, by strides of zero, cannot be spoilt alone
    if copy.call.inputs[at].buffer.to_dense().data().iter().filter(|value| !value.is_finite()).count() != 1 {
        return;
    }
    let what = format!("{number} in {} at {:?}, seed {}", input.argument.name, index(&shape, chosen), drawn.seed);
    for exec in execs {
        for (tensors, is_gradient) in copy.run(exec).unwrap().iter().zip([false, true]) {
            for (name, tensor) in tensors.iter().filter(|(name, _)| ![SAVED, WORKSPACE].contains(name)) {
                let rank = tensor.shape().len();
                let layout = match is_gradient {
                    true => layout(name, rank).unwrap(),
                    false => ops::result_layout(drawn.call.op, name, rank),
                };
                for (element, value) in tensor.to_dense().data().iter().enumerate().filter(|(_, value)| !value.is_finite()) {
                    let element = index(&tensor.shape(), element);
                    let reaches = spoilt.reaches(&Place::new(&drawn.call, layout, &tensor.shape(), &element), is_gradient);
                    assert!(
                        reaches,
                        "{:?}: {value} in {name} at {element:?}, gradient {is_gradient}, by {what} on {exec:?}",
                        drawn.call.op
                    );
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_stays_where_it_is() {
    let mut rng = Rng::new(number("PROPTEST_RNG_SEED", 1));
    for op in Operation::ALL {
        let can_be_packed = op.signature.argument("cu_seqlens").is_some();
        for packing in [Packing::Whole, Packing::Bounds].into_iter().filter(|&p| can_be_packed || p == Packing::Whole) {
            let fixed = Fixed { dtype: Some(DType::F32), packing: Some(packing), ..Fixed::default() };
            let whole = |drawn: &Drawn| drawn.call.inputs.iter().all(|input| input.buffer.shape().iter().all(|&size| size > 0));
            for (count, drawn) in drawn_as(op, fixed).filter(whole).take(number("STATESCAN_DRAWN", 80) as usize / 8).enumerate() {
                let execs = levels().into_iter().chain(find_gpu().ok().filter(|_| count < 2)).collect::<Vec<_>>();
                let numbers = (0..drawn.call.inputs.len()).filter(|&at| !drawn.call.inputs[at].buffer.dtype().is_index());
                for at in numbers {
                    let number = rng.pick(&[f64::NAN, f64::INFINITY]);
                    stays(&drawn, at, number, &mut rng, &execs);
                }
            }
        }
    }
}
