//! Weights that a model begins with: projections by their width, step sizes between 0.001 and 0.1, decays of 1, 2, ..

use crate::config::Config;
use crate::random::Random;

/// The elements of a tensor, by its name in checkpoints.
pub(crate) fn initial(config: &Config, name: &str, shape: &[usize], random: &mut Random) -> Vec<f32> {
    let len = shape.iter().product();
    let fan_in = shape.iter().skip(1).product::<usize>().max(1) as f64;
    let mut uniform = |bound: f64| (0..len).map(|_| random.uniform(-bound, bound) as f32).collect();
    let mixers = ["mixer.", "mamba.", "linear_attn.", "self_attn.", "feed_forward.", "shared_mlp.", "mlp."];
    match mixers.iter().find_map(|mixer| Some(name.rsplit_once(mixer)?.1)).unwrap_or(name) {
        "A_log" if config.has_heads() => (0..len).map(|_| random.uniform(1.0, 16.0).ln() as f32).collect(),
        "A_log" => (0..len).map(|i| ((i % config.dstate + 1) as f32).ln()).collect(),
        "D" => vec![1.0; len],
        "dt_proj.bias" | "dt_bias" => (0..len).map(|_| random.step_bias() as f32).collect(),
        // the results of all blocks are added, so that each must be smaller, the more blocks there are
        "out_proj.weight" | "o_proj.weight" | "down_proj.weight" | "output_linear.weight" => {
            uniform((fan_in * config.layers.len() as f64).sqrt().recip())
        }
        part if part.ends_with(".bias") => vec![0.0; len],
        "norm.weight" => vec![1.0; len],
        part if part.contains("norm") => vec![1.0 - config.norm_offset(); len],
        part if part == config.embedding() => (0..len).map(|_| (0.1 * random.normal()) as f32).collect(),
        _ => uniform(fan_in.sqrt().recip()),
    }
}
