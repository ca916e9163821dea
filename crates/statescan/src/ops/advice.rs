//! The advice for a call whose shapes do not fit: it names the sizes' sources and a change that makes the call fit.

use super::check::reading::Reading;
use super::signature::{Role, Signature};
use crate::error::Error;
use crate::tensor::{Shape, View};

type Shapes = [Option<Shape>];

/// An error of shapes with what may help; any other one as it is.
pub(super) fn advised(mut error: Error, signature: &'static Signature, views: &[Option<&View<'_>>]) -> Error {
    if let Error::Shape { argument, help, .. } | Error::Rank { argument, help, .. } = &mut error {
        let shapes: Vec<_> = views.iter().map(|view| view.map(|view| view.shape())).collect();
        if let Some(blamed) = signature.argument(argument) {
            let found = [origins(signature, blamed, &shapes), cure(signature, blamed, &shapes)];
            let found: Vec<_> = found.into_iter().flatten().collect();
            *help = if found.is_empty() { String::new() } else { format!(": {}", found.join("; ")) };
        }
    }
    error
}

/// Says that a shape has two axes exchanged; nothing if that is not the matter.
pub(super) fn exchanged(expected: &Shape, got: &Shape) -> String {
    let pairs = pairs(got.len()).find(|&(first, second)| expected[..] == swapped(got, first, second)[..]);
    pairs.map_or(String::new(), |(first, second)| format!(": it fits with its axes {first} and {second} exchanged"))
}

fn pairs(rank: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rank).flat_map(move |first| (first + 1..rank).map(move |second| (first, second)))
}

fn swapped(shape: &Shape, first: usize, second: usize) -> Shape {
    let mut sizes = shape.to_vec();
    sizes.swap(first, second);
    Shape::of(&sizes)
}

/// The axes of an argument by name, and which arguments its expected sizes come from, where it has others.
fn origins(signature: &'static Signature, blamed: usize, shapes: &Shapes) -> Option<String> {
    let reading = Reading::of(signature, |at| shapes[at]).ok()?;
    let (layout, got) = (reading.layouts[blamed], shapes[blamed]?);
    let expected = reading.sizes.shape(layout, &got);
    let from = |(axis, letter): (usize, char)| {
        let giver = Reading::order(signature).find(|&at| reading.layouts[at].contains(letter))?;
        let differs = giver != blamed && letter.is_ascii_uppercase() && expected[axis] != got[axis];
        let (size, name) = (expected[axis], signature.arguments[giver].field);
        differs.then(|| format!("{} {size} from `{name}`", signature.size_name(letter)))
    };
    let from: Vec<_> = layout.chars().enumerate().filter_map(from).collect();
    let axes = signature.shapes([layout]);
    (!from.is_empty()).then(|| format!("it is {} with {}", axes.trim_start_matches("shape "), from.join(" and ")))
}

/// Whether the shapes of a call fit together.
fn fits(signature: &'static Signature, shapes: &Shapes) -> bool {
    Reading::of(signature, |at| shapes[at]).is_ok_and(|reading| {
        let mut given = shapes.iter().enumerate().filter(|(at, _)| signature.arguments[*at].role != Role::State);
        given.all(|(at, shape)| shape.is_none_or(|shape| reading.sizes.shape(reading.layouts[at], &shape) == shape))
    })
}

/// The change of one argument, or the one exchange of axes, with which the shapes fit.
fn cure(signature: &'static Signature, blamed: usize, shapes: &Shapes) -> Option<String> {
    squeezed(signature, blamed, shapes).or_else(|| {
        let tensors = |at: &usize| matches!(signature.arguments[*at].role, Role::Activation | Role::Parameter);
        let others = (0..shapes.len()).filter(|&at| at != blamed);
        let one = [blamed].into_iter().chain(others).filter(tensors).find_map(|at| {
            let found = pairs(shapes[at]?.len()).find(|&axes| fits(signature, &with_exchanged(shapes, &[at], axes)));
            found.map(|axes| (vec![at], axes))
        });
        let (arguments, (first, second)) = one.or_else(|| together(signature, shapes))?;
        let names: Vec<_> = arguments.iter().map(|&at| format!("`{}`", signature.arguments[at].field)).collect();
        let names = match names.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, before)) => format!("{} and {last}", before.join(", ")),
            None => return None,
        };
        Some(format!("the call fits with axes {first} and {second} of {names} exchanged"))
    })
}

/// An axis of one element that the blamed argument has too much, such as that of a convolution's weight in the frameworks.
fn squeezed(signature: &'static Signature, blamed: usize, shapes: &Shapes) -> Option<String> {
    let shape = shapes[blamed]?;
    let axis = (0..shape.len()).find(|&axis| {
        let mut sizes = shape.to_vec();
        let one = sizes.remove(axis) == 1;
        let mut changed = shapes.to_vec();
        changed[blamed] = Some(Shape::of(&sizes));
        one && fits(signature, &changed)
    })?;
    Some(format!("it fits without its axis {axis}: squeeze({axis})"))
}

fn with_exchanged(shapes: &Shapes, arguments: &[usize], (first, second): (usize, usize)) -> Vec<Option<Shape>> {
    let mut changed = shapes.to_vec();
    for &at in arguments {
        changed[at] = changed[at].map(|shape| swapped(&shape, first, second));
    }
    changed
}

/// Arguments that have the same axes in another order: all that have the two letters of the first one's axes, or time and anything there.
fn together(signature: &'static Signature, shapes: &Shapes) -> Option<(Vec<usize>, (usize, usize))> {
    let layout = |at: usize| signature.arguments[at].layout(shapes[at]?.len());
    let leader = signature.leaders.first().copied().unwrap_or(0);
    let letters = layout(leader)?.as_bytes();
    pairs(letters.len()).find_map(|(first, second)| {
        let have = |at: usize, alike: &dyn Fn(u8, u8) -> bool| {
            let own = layout(at).map(str::as_bytes).filter(|own| own.len() > second);
            own.is_some_and(|own| alike(own[first], own[second])) && signature.arguments[at].role != Role::State
        };
        let same = |one: u8, other: u8| [one, other] == [letters[first], letters[second]];
        let timed = |one: u8, other: u8| one == b'L' || other == b'L';
        [&same as &dyn Fn(u8, u8) -> bool, &timed].into_iter().find_map(|alike| {
            let arguments: Vec<_> = (0..shapes.len()).filter(|&at| shapes[at].is_some() && have(at, alike)).collect();
            fits(signature, &with_exchanged(shapes, &arguments, (first, second))).then_some((arguments, (first, second)))
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::ops::{causal_conv1d, linear_scan, selective_scan};
    use crate::{Result, View};

    /// Returns the advice for a selective scan of zeros in these shapes: x, dt, A, B and C.
    fn said(shapes: [&[usize]; 5]) -> String {
        let zeros = [0f32; 256];
        let [x, dt, a, b, c] = shapes.map(|shape| View::new(&zeros[..shape.iter().product()], shape).unwrap());
        selective_scan::final_state_shape(&selective_scan::Args::new(x, dt, a, b, c))
            .map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn sizes_have_origins_and_axes_that_are_exchanged_are_told() {
        assert_eq!(said([&[2, 8, 5], &[2, 8, 5], &[8, 4], &[2, 4, 5], &[2, 4, 5]]), "");
        assert_eq!(
            said([&[2, 5, 8], &[2, 5, 8], &[8, 4], &[2, 5, 4], &[2, 5, 4]]),
            "selective_scan: `a` must have shape (5, 4), got (8, 4): it is (dim, dstate) with dim 5 from `x`; \
             the call fits with axes 1 and 2 of `x`, `dt`, `b` and `c` exchanged"
        );
        assert_eq!(
            said([&[2, 8, 5], &[2, 8, 5], &[8, 4], &[2, 4, 5], &[2, 5, 4]]),
            "selective_scan: `c` must have shape (2, 4, 5), got (2, 5, 4): it is (batch, dstate, seqlen) with dstate 4 from `a` \
             and seqlen 5 from `x`; the call fits with axes 1 and 2 of `c` exchanged"
        );
        // nothing would help here
        assert_eq!(
            said([&[2, 8, 5], &[2, 8, 5], &[8, 4], &[2, 3, 5], &[2, 3, 5]]),
            "selective_scan: `b` must have shape (2, 4, 5), got (2, 3, 5): it is (batch, dstate, seqlen) with dstate 4 from `a`"
        );
    }

    #[test]
    fn a_state_and_a_module_s_weight_are_told_what_they_are() -> Result<()> {
        let zeros = [0f32; 256];
        let of = |shape: &[usize]| View::new(&zeros[..shape.iter().product()], shape).unwrap();
        let args = linear_scan::Args::new(of(&[2, 3, 4]), of(&[2, 3, 4])).initial_state(of(&[3, 2]));
        let refused = linear_scan::final_state_shape(&args).unwrap_err().to_string();
        assert_eq!(
            refused,
            "linear_scan: `initial_state` must have shape (2, 3), got (3, 2): it fits with its axes 0 and 1 exchanged"
        );
        let args = causal_conv1d::Args::new(of(&[2, 8, 5]), of(&[8, 1, 4]));
        let refused = causal_conv1d::final_states_shape(&args).unwrap_err().to_string();
        let words = "it fits without its axis 1: squeeze(1)";
        assert_eq!(refused, format!("causal_conv1d: `weight` must have shape (dim, width), got shape (8, 1, 4): {words}"));
        Ok(())
    }
}
