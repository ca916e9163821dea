//! From logits to tokens.

use statescan_models::Sampler;

const LOGITS: [f32; 5] = [1.0, 3.0, 0.0, 3.0, -1.0];

fn counts(mut sampler: Sampler) -> [usize; 5] {
    let mut counts = [0; 5];
    (0..20_000).for_each(|_| counts[sampler.draw(&LOGITS) as usize] += 1);
    counts
}

#[test]
fn the_most_likely_token_is_the_first_of_equals() {
    assert_eq!(Sampler::greedy().draw(&LOGITS), 1);
    assert_eq!(Sampler::new(1.0, 1, 1.0, 5).unwrap().draw(&LOGITS), 1);
    assert_eq!(Sampler::greedy().draw(&[-1.0]), 0);
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
}

#[test]
fn a_seed_gives_the_same_tokens() {
    let draw = |seed| {
        let mut sampler = Sampler::new(2.0, 0, 1.0, seed).unwrap();
        [(); 32].map(|()| sampler.draw(&LOGITS))
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn settings_out_of_range_are_refused() {
    for (temperature, top_p) in [(-1.0, 1.0), (f64::NAN, 1.0), (f64::INFINITY, 1.0), (1.0, 0.0), (1.0, 1.5), (1.0, f64::NAN)] {
        assert!(Sampler::new(temperature, 0, top_p, 0).is_err());
    }
}
