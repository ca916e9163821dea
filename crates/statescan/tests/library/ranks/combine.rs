//! The states of slices in the order of the ranks.

use statescan::ops::ranks::combine;
use statescan::{Exec, View, ViewMut};

#[test]
fn states_pass_through_the_slices_in_order() {
    let exec = Exec::cpu(1);
    // two rows of two heads of three numbers, over two ranks; a decay for each head
    let states: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let decays = [0.5f32, 1.0, 0.0, 2.0, 0.25, 0.5, 1.0, 0.0];
    let initial = [8f32; 12];
    let mut out = [f32::NAN; 12];
    let view = |values| View::new(values, &[2, 2, 3]);
    let (states_view, decays) = (View::new(&states, &[2, 2, 2, 3]).unwrap(), View::new(&decays, &[2, 2, 2]).unwrap());
    let target = ViewMut::new(&mut out, &[2, 2, 3]).unwrap();
    combine(&exec, states_view, decays, Some(view(&initial).unwrap()), target).unwrap();
    for (i, &got) in out.iter().enumerate() {
        let decay = |r: usize| decays.at(&[r, i / 6, i / 3 % 2]).re as f32;
        assert_eq!(got, decay(1) * (decay(0) * 8.0 + states[i]) + states[12 + i]);
    }
}

#[test]
fn a_combination_of_nothing_is_the_initial_state() {
    let (none, mut out) = ([0f32; 0], [f32::NAN; 2]);
    let states = View::new(&none, &[0, 2]).unwrap();
    combine(&Exec::cpu(1), states, states, None, ViewMut::new(&mut out, &[2]).unwrap()).unwrap();
    assert_eq!(out, [0.0; 2]);
}

#[test]
fn wrong_shapes_are_named() {
    let (six, mut out) = ([0f32; 6], [7f32; 3]);
    let states = View::new(&six, &[2, 3]).unwrap();
    for decays in [View::new(&six[..3], &[3]).unwrap(), View::new(&six, &[2, 3, 1]).unwrap()] {
        let error = combine(&Exec::cpu(1), states, decays, None, ViewMut::new(&mut out, &[3]).unwrap()).unwrap_err();
        assert!(error.to_string().starts_with("combine: `decays`"), "{error}");
    }
    let error = combine(&Exec::cpu(1), states, states, Some(states), ViewMut::new(&mut out, &[3]).unwrap()).unwrap_err();
    assert!(error.to_string().starts_with("combine: `initial_state`"), "{error}");
    assert_eq!(out, [7.0; 3]);
}
