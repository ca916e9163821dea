//! The decays of a selective scan are learned from its results, by its gradients: `cargo run --release --example gradient`.

use statescan::ops::selective_scan::{self, Args, Cotangents, Gradients, Outputs};
use statescan::{Exec, Result, Tensor};

const SHAPE: [usize; 3] = [2, 4, 60];
const STATES: usize = 1;

/// The inputs of the scan beside the decays.
struct Inputs {
    exec: Exec,
    x: Tensor,
    dt: Tensor,
    maps: Tensor,
}

impl Inputs {
    fn new() -> Result<Self> {
        let exec = Exec::cpu(0);
        let [batch, channels, steps] = SHAPE;
        let waves: Vec<f32> = (0..batch * channels * steps).map(|at| (at as f32 * 0.7).sin()).collect();
        let x = Tensor::from_slice(&exec, &waves, &SHAPE)?;
        let dt = Tensor::from_slice(&exec, &vec![0.2f32; waves.len()], &SHAPE)?;
        let maps = Tensor::from_slice(&exec, &vec![1f32; batch * STATES * steps], &[batch, STATES, steps])?;
        Ok(Inputs { exec, x, dt, maps })
    }

    fn args<'a>(&'a self, a: &'a Tensor) -> Args<'a> {
        Args::new(self.x.view(), self.dt.view(), a.view(), self.maps.view(), self.maps.view())
    }

    fn scan(&self, a: &Tensor) -> Result<Vec<f32>> {
        let mut y = Tensor::like(&self.exec, &self.x.view())?;
        selective_scan::forward(&self.exec, &self.args(a), &mut Outputs::default().y(y.view_mut()))?;
        y.to_vec()
    }

    /// A step of descent: the mean square error before it.
    fn learn(&self, a: &mut Tensor, target: &[f32], rate: f32) -> Result<f32> {
        let y = self.scan(a)?;
        let errors: Vec<f32> = y.iter().zip(target).map(|(y, target)| y - target).collect();
        let count = errors.len() as f32;
        let by_y: Vec<f32> = errors.iter().map(|error| 2.0 * error / count).collect();
        let (by_y, mut by_a) = (Tensor::from_slice(&self.exec, &by_y, &SHAPE)?, Tensor::like(&self.exec, &a.view())?);
        let (cotangents, mut gradients) = (Cotangents::default().y(by_y.view()), Gradients::default().a(by_a.view_mut()));
        selective_scan::backward(&self.exec, &self.args(a), None, &cotangents, &mut gradients)?;
        let steps = a.to_vec::<f32>()?.into_iter().zip(by_a.to_vec::<f32>()?);
        a.write(&steps.map(|(a, by_a)| a - rate * by_a).collect::<Vec<f32>>())?;
        Ok(errors.iter().map(|error| error * error).sum::<f32>() / count)
    }
}

fn learned(steps: usize) -> Result<(Vec<f32>, Vec<f32>)> {
    let inputs = Inputs::new()?;
    let decays = |values: [f32; 4]| Tensor::from_slice(&inputs.exec, &values, &[SHAPE[1], STATES]);
    let target = inputs.scan(&decays([-0.2, -0.5, -1.0, -2.0])?)?;
    let mut a = decays([-1.0; 4])?;
    let errors = (0..steps).map(|_| inputs.learn(&mut a, &target, 5.0)).collect::<Result<_>>()?;
    Ok((errors, a.to_vec()?))
}

fn main() -> Result<()> {
    let (errors, a) = learned(2000)?;
    println!("mean square error: {:.5} at first, {:.1e} at last", errors[0], errors[errors.len() - 1]);
    println!("decays: {a:.3?}");
    Ok(())
}

#[test]
fn it_learns() {
    let (errors, a) = learned(50).unwrap();
    assert!(errors[49] < 0.5 * errors[0], "{errors:?}");
    assert!(a[0] > -1.0 && a[3] < -1.0, "{a:?}");
}
