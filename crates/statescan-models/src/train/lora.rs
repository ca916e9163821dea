//! [`Lora`]: projections that move by a product of two small matrices alone (Hu et al., "LoRA: low-rank adaptation of large language models", 2021).

use crate::device::decays;
use crate::error::Result;
use crate::random::Random;
use crate::tensors::{Array, Tensors};
use statescan::linear;
use statescan::{Exec, View, ViewMut};

/// The rank of the matrices by which projections move, and the factor of their product.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lora {
    /// Rows of the first matrix, and columns of the second one.
    pub rank: usize,
    /// Their product is added `alpha / rank` times.
    pub alpha: f64,
}

/// A model that stays as it was, and what its projections move by: `W + alpha / rank B A`.
pub(super) struct Adapted {
    pub(super) lora: Lora,
    pub(super) base: Tensors,
}

/// The names of both matrices of a projection.
fn names(projection: &str) -> [String; 2] {
    let stem = projection.trim_end_matches("weight");
    ["A", "B"].map(|letter| format!("{stem}lora_{letter}.weight"))
}

fn view<'d>(data: &'d [f32], [rows, columns]: [usize; 2]) -> Result<View<'d>> {
    Ok(View::new(data, &[rows, columns])?)
}

fn view_mut<'d>(data: &'d mut [f32], [rows, columns]: [usize; 2]) -> Result<ViewMut<'d>> {
    Ok(ViewMut::new(data, &[rows, columns])?)
}

impl Adapted {
    /// The projections, and their sizes.
    fn projections(base: &Tensors) -> impl Iterator<Item = (&String, [usize; 2])> {
        base.iter().filter(|(name, _)| decays(name)).filter_map(|(name, array)| Some((name, array.shape[..].try_into().ok()?)))
    }

    /// Returns the matrices that are learned: first ones are random, second ones zero, so that nothing is moved yet.
    pub(super) fn begin(lora: Lora, base: &Tensors, random: &mut Random) -> Tensors {
        let mut matrices = Tensors::new();
        for (name, [outputs, inputs]) in Self::projections(base) {
            let ([first, second], bound) = (names(name), (inputs as f64).sqrt().recip());
            let data = (0..lora.rank * inputs).map(|_| random.uniform(-bound, bound) as f32).collect();
            matrices.insert(first, Array { shape: vec![lora.rank, inputs], data });
            matrices.insert(second, Array { shape: vec![outputs, lora.rank], data: vec![0.0; outputs * lora.rank] });
        }
        matrices
    }

    fn factor(&self) -> f32 {
        (self.lora.alpha / self.lora.rank as f64) as f32
    }

    /// The weights of the model that it is now: each projection with the product of its matrices.
    pub(super) fn merged(&self, matrices: &Tensors) -> Result<Tensors> {
        let (mut merged, exec) = (self.base.clone(), Exec::cpu(0));
        for (name, sizes @ [outputs, inputs]) in Self::projections(&self.base) {
            let ([first, second], rank) = (names(name).map(|name| &matrices[&name].data[..]), self.lora.rank);
            let base = &self.base[name].data;
            let mut product = vec![0.0; outputs * inputs];
            // the gradient by x of x A' is that of the result times A
            let mut into = linear::Gradients::default().x(view_mut(&mut product, sizes)?);
            linear::backward(&exec, view(base, sizes)?, view(first, [rank, inputs])?, view(second, [outputs, rank])?, &mut into)?;
            if let Some(weight) = merged.get_mut(name) {
                weight.data.iter_mut().zip(&product).for_each(|(w, moved)| *w += self.factor() * moved);
            }
        }
        Ok(merged)
    }

    /// Adds the gradients by the matrices, of those by the projections that they move.
    pub(super) fn add_gradients(&self, by: &Tensors, matrices: &Tensors, sum: &mut Tensors) -> Result<()> {
        let (rank, exec) = (self.lora.rank, &Exec::cpu(0));
        for (name, sizes @ [outputs, inputs]) in Self::projections(&self.base) {
            let (keys, dweight) = (names(name), view(&by[name].data, sizes)?);
            let [first, second] = [0, 1].map(|i| &matrices[&keys[i]].data[..]);
            let (first, second) = (view(first, [rank, inputs])?, view(second, [outputs, rank])?);
            let [mut dfirst, mut dsecond] = [rank * inputs, outputs * rank].map(|len| vec![0.0; len]);
            let mut into = linear::Gradients::default().weight(view_mut(&mut dfirst, [rank, inputs])?);
            linear::backward(exec, dweight, first, second, &mut into)?;
            linear::forward(exec, dweight, first, None, view_mut(&mut dsecond, [outputs, rank])?)?;
            for (key, gradient) in keys.iter().zip([dfirst, dsecond]) {
                if let Some(sum) = sum.get_mut(key) {
                    sum.data.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += self.factor() * g);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_by_matrices_are_those_of_the_merged_weights() {
        let (name, [outputs, inputs], rank) = ("a.in_proj.weight", [5, 4], 2);
        let mut random = Random::new(3);
        let mut array = |shape: [usize; 2]| {
            let data = (0..shape[0] * shape[1]).map(|_| random.uniform(-1.0, 1.0) as f32).collect();
            Array { shape: shape.to_vec(), data }
        };
        let base = Tensors::from([(name.to_owned(), array([outputs, inputs])), ("norm.weight".to_owned(), array([1, 4]))]);
        let by = Tensors::from([(name.to_owned(), array([outputs, inputs]))]);
        let keys = names(name);
        let matrices = Tensors::from([(keys[0].clone(), array([rank, inputs])), (keys[1].clone(), array([outputs, rank]))]);
        let adapted = Adapted { lora: Lora { rank, alpha: 3.0 }, base };
        let mut found = crate::tensors::zeros_like(&matrices);
        adapted.add_gradients(&by, &matrices, &mut found).unwrap();
        let value = |matrices: &Tensors| {
            let merged = adapted.merged(matrices).unwrap();
            assert_eq!(merged["norm.weight"], adapted.base["norm.weight"]);
            merged[name].data.iter().zip(&by[name].data).map(|(w, g)| f64::from(w * g)).sum::<f64>()
        };
        for key in &keys {
            for i in 0..matrices[key].data.len() {
                let moved = |by: f32| {
                    let mut matrices = matrices.clone();
                    matrices.get_mut(key).unwrap().data[i] += by;
                    value(&matrices)
                };
                // the value is linear in each number
                let (slope, got) = (moved(0.5) - moved(-0.5), f64::from(found[key].data[i]));
                assert!((slope - got).abs() < 1e-5, "{key} {i}: {got} is not {slope}");
            }
        }
    }
}
