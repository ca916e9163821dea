//! From logits to tokens.

use crate::common::Random;
use statescan_models::{Sampler, log_probability};

const LOGITS: [f32; 5] = [1.0, 3.0, 0.0, 3.0, -1.0];

fn counts(mut sampler: Sampler) -> [usize; 5] {
    let mut counts = [0; 5];
    (0..20_000).for_each(|_| counts[sampler.draw(&LOGITS).unwrap() as usize] += 1);
    counts
}

#[test]
fn the_most_likely_token_is_the_first_of_equals() {
    assert_eq!(Sampler::greedy().draw(&LOGITS).unwrap(), 1);
    assert_eq!(Sampler::new(1.0, 1, 1.0, 5).unwrap().draw(&LOGITS).unwrap(), 1);
    assert_eq!(Sampler::greedy().draw(&[-1.0]).unwrap(), 0);
}

#[test]
fn tokens_are_drawn_as_often_as_they_are_likely() {
    for temperature in [0.5, 1.0, 2.0] {
        let weights = LOGITS.map(|x| (f64::from(x) / temperature).exp());
        let whole: f64 = weights.iter().sum();
        let counts = counts(Sampler::new(temperature, 0, 1.0, 7).unwrap());
        for (count, weight) in counts.into_iter().zip(weights) {
            let expected = 20_000.0 * weight / whole;
            assert!((count as f64 - expected).abs() < 5.0 * expected.sqrt() + 1.0, "{count} for {expected}");
        }
    }
}

#[test]
fn unlikely_tokens_are_cut_off() {
    let some = |counts: [usize; 5]| counts.map(|count| count > 0);
    assert_eq!(some(counts(Sampler::new(3.0, 3, 1.0, 1).unwrap())), [true, true, false, true, false]);
    assert_eq!(some(counts(Sampler::new(1.0, 0, 0.8, 1).unwrap())), [false, true, false, true, false]);
    assert_eq!(some(counts(Sampler::new(1.0, 0, 1e-9, 1).unwrap())), [false, true, false, false, false]);
    assert_eq!(some(counts(Sampler::new(3.0, 99, 1.0, 1).unwrap())), [true; 5]);
    // by the temperature 2 token 0 has 1 / e of the probability of the most likely ones, token 2 less than a quarter
    let min_p = |share| Sampler::new(2.0, 0, 1.0, 1).unwrap().with_min_p(share).unwrap();
    assert_eq!(some(counts(min_p(0.25))), [true, true, false, true, false]);
    assert_eq!(some(counts(min_p(1.0))), [false, true, false, true, false], "those that are as likely as the most likely one");
    assert_eq!(counts(min_p(0.0)), counts(Sampler::new(2.0, 0, 1.0, 1).unwrap()), "0 changes nothing");
}

#[test]
fn a_seed_gives_the_same_tokens() {
    let draw = |seed| {
        let mut sampler = Sampler::new(2.0, 0, 1.0, seed).unwrap();
        [(); 32].map(|()| sampler.draw(&LOGITS).unwrap())
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn settings_out_of_range_are_refused() {
    for (temperature, top_p) in [(-1.0, 1.0), (f64::NAN, 1.0), (f64::INFINITY, 1.0), (1.0, 0.0), (1.0, 1.5), (1.0, f64::NAN)] {
        assert!(Sampler::new(temperature, 0, top_p, 0).is_err());
    }
    for min_p in [-0.1, 1.1, f64::NAN] {
        let error = Sampler::greedy().with_min_p(min_p).unwrap_err().to_string();
        assert_eq!(error, format!("`min-p` must be from 0 to 1, got {min_p}"));
    }
    for penalty in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = Sampler::greedy().with_repetition_penalty(penalty, 8).unwrap_err().to_string();
        assert_eq!(error, format!("`repetition-penalty` must be a positive number, got {penalty}"));
    }
}

#[test]
fn logits_that_are_no_numbers_are_refused() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for mut sampler in [Sampler::greedy(), Sampler::new(1.0, 2, 0.9, 1).unwrap()] {
        for (logits, got) in
            [(&[0.0, nan][..], "NaN at token 1"), (&[inf, 0.0], "inf at token 0"), (&[-inf], "1 of -inf"), (&[], "0 of -inf")]
        {
            let error = sampler.draw(logits).unwrap_err().to_string();
            assert!(error.starts_with("logits to draw from must be finite") && error.ends_with(got), "{error}");
        }
        assert_eq!(sampler.draw(&[-inf, 0.0, -inf]).unwrap(), 1, "tokens can be forbidden");
    }
}

#[test]
fn a_penalty_keeps_the_latest_tokens_from_coming_again() {
    let mut sampler = Sampler::greedy().with_repetition_penalty(4.0, 2).unwrap();
    assert!(!sampler.is_greedy());
    let drawn = [(); 4].map(|()| sampler.draw(&LOGITS).unwrap());
    assert_eq!(drawn, [1, 3, 0, 1], "both of the largest are divided by four, then the first one is forgotten");
    let mut told = Sampler::greedy().with_repetition_penalty(4.0, 2).unwrap();
    told.see(&[0, 0, 1, 99]);
    assert_eq!(told.draw(&LOGITS).unwrap(), 3, "token 1 is among the latest two");
    let mut negative = Sampler::greedy().with_repetition_penalty(4.0, 2).unwrap();
    negative.see(&[0]);
    assert_eq!(negative.draw(&[-1.0, -2.0]).unwrap(), 1, "negative logits are multiplied");
    let one = Sampler::new(2.0, 0, 1.0, 1).unwrap().with_repetition_penalty(1.0, 64).unwrap();
    assert_eq!(counts(one), counts(Sampler::new(2.0, 0, 1.0, 1).unwrap()), "1 changes nothing");
}

#[test]
fn settings_change_and_random_numbers_go_on() {
    let with = |temperature, seed| Sampler::new(temperature, 0, 1.0, seed).unwrap();
    let draw = |sampler: &mut Sampler| [(); 16].map(|()| sampler.draw(&LOGITS).unwrap());
    let (mut one, mut other) = (with(2.0, 3), with(2.0, 3));
    assert_eq!(draw(&mut one), draw(&mut other));
    let mut changed = with(2.0, 3).after(&other);
    let next = draw(&mut one);
    assert_eq!(draw(&mut changed), next, "they do not begin anew");
    assert_eq!(draw(&mut with(2.0, 4).after(&other)), draw(&mut with(2.0, 4)), "another seed is one");
    let mut told = Sampler::greedy().with_repetition_penalty(4.0, 2).unwrap();
    told.see(&[1]);
    assert_eq!(
        Sampler::greedy().with_repetition_penalty(4.0, 1).unwrap().after(&told).draw(&LOGITS).unwrap(),
        3,
        "token 1 is known"
    );
}

#[test]
fn probabilities_are_those_of_the_softmax() {
    let whole: f64 = LOGITS.iter().map(|&x| f64::from(x).exp()).sum();
    for (token, &logit) in LOGITS.iter().enumerate() {
        let expected = (f64::from(logit).exp() / whole).ln();
        assert!((log_probability(&LOGITS, token as u32) - expected).abs() < 1e-6);
    }
}

/// The token that a number from 0 to 1 draws from the tokens in the order of their logits.
fn from_sorted(logits: &[f32], (temperature, top_k, top_p, min_p): (f64, usize, f64, f64), uniform: f64) -> usize {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    order.truncate(if top_k == 0 { logits.len() } else { top_k });
    let weight = |token: &usize| f64::from(((logits[*token] - logits[order[0]]) / temperature as f32).exp());
    let (weights, mut kept, mut sum): (Vec<f64>, _, _) = (order.iter().map(weight).collect(), 0, 0.0);
    let least = top_p * weights.iter().sum::<f64>();
    while kept < order.len() && weights[kept] >= min_p && (kept == 0 || sum < least) {
        sum += weights[kept];
        kept += 1;
    }
    let mut left = uniform * sum;
    let drawn = weights[..kept].iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    order[drawn.unwrap_or(kept - 1)]
}

#[test]
fn tokens_are_those_that_a_sorted_list_of_all_would_give() {
    let mut numbers = Random(7);
    for case in 0..300 {
        let count = [1, 2, 3, 50, 1000][case % 5];
        // some are equal
        let logits: Vec<f32> = (0..count).map(|_| (40.0 * numbers.uniform()).round() / 4.0).collect();
        let (top_k, top_p, min_p) = ([0, 1, 40][case % 3], [1.0, 0.95, 0.3, 1e-9][case % 4], [0.0, 0.05, 1.0][case / 5 % 3]);
        let (temperature, seed) = ([0.3, 1.0, 5.0][case % 3], case as u64);
        let mut sampler = Sampler::new(temperature, top_k, top_p, seed).unwrap().with_min_p(min_p).unwrap();
        let mut uniform = Random(seed);
        for _ in 0..8 {
            let uniform = (uniform.bits() >> 11) as f64 / (1u64 << 53) as f64;
            let expected = from_sorted(&logits, (temperature, top_k, top_p, min_p), uniform);
            assert_eq!(sampler.draw(&logits).unwrap() as usize, expected, "case {case}");
        }
    }
}
