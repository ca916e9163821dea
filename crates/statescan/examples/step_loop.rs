//! A prompt is scanned at once, and what follows goes one step at a time from the state that it has left: `cargo run --release --example step_loop`.

use statescan::ops::selective_scan::{self, Args, Outputs, update};
use statescan::{DType, Exec, Result, Tensor};

const CHANNELS: usize = 8;
const STATES: usize = 4;

/// A tensor of waves.
fn waves(exec: &Exec, shape: &[usize], (factor, shift): (f32, f32)) -> Result<Tensor> {
    let values: Vec<f32> = (0..shape.iter().product()).map(|at| factor * (at as f32 * 1.3).sin() + shift).collect();
    Tensor::from_slice(exec, &values, shape)
}

/// The last results of a scan over `seqlen` steps, and of one over the prompt with a step for each of the others.
fn both(seqlen: usize, prompt: usize) -> Result<[Vec<f32>; 2]> {
    let exec = Exec::cpu(0);
    let shape = [1, CHANNELS, seqlen];
    let (x, dt) = (waves(&exec, &shape, (1.0, 0.0))?, waves(&exec, &shape, (0.1, 0.2))?);
    let a = waves(&exec, &[CHANNELS, STATES], (0.4, -0.6))?;
    let (b, c) = (waves(&exec, &[1, STATES, seqlen], (1.0, 0.0))?, waves(&exec, &[1, STATES, seqlen], (0.5, 0.5))?);

    // a part of time is a view
    let scan = |steps: usize, state: &mut Tensor| -> Result<Tensor> {
        let [x, dt, b, c] = [&x, &dt, &b, &c].map(|tensor| tensor.view().slice(2, 0..steps));
        let mut y = Tensor::zeros(&exec, DType::F32, &[1, CHANNELS, steps])?;
        let mut out = Outputs::default().y(y.view_mut()).final_state(state.view_mut());
        selective_scan::forward(&exec, &Args::new(x, dt, a.view(), b, c), &mut out)?;
        Ok(y)
    };
    let mut state = Tensor::zeros(&exec, DType::F32, &[1, CHANNELS, STATES])?;
    let whole = scan(seqlen, &mut state)?;
    let whole = Tensor::from_host(&exec, &whole.view().index(2, seqlen - 1))?.to_vec()?;

    scan(prompt, &mut state)?;
    let mut y = Tensor::zeros(&exec, DType::F32, &[1, CHANNELS])?;
    for step in prompt..seqlen {
        let [x, dt, b, c] = [&x, &dt, &b, &c].map(|tensor| tensor.view().index(2, step));
        update::update(&exec, &update::Args::new(x, dt, a.view(), b, c), &mut state.view_mut(), &mut y.view_mut())?;
    }
    Ok([whole, y.to_vec()?])
}

fn main() -> Result<()> {
    let [whole, stepped] = both(100, 60)?;
    println!("scanned at once:  {whole:.4?}");
    println!("prompt and steps: {stepped:.4?}");
    Ok(())
}

#[test]
fn steps_go_on_from_the_prompt() {
    let [whole, stepped] = both(20, 12).unwrap();
    assert!(whole.iter().zip(&stepped).all(|(one, other)| (one - other).abs() < 1e-5), "{whole:?} {stepped:?}");
}
