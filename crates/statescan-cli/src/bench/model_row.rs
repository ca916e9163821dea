//! A measurement of a language model, as JSON and as a line.

use crate::text;
use serde_json::json;
use statescan::DType;
use statescan::tensor::Device;
use statescan_models::Config;
use std::time::Duration;

/// Rows of the embedding, as published.
pub(super) const VOCAB: usize = 50280;

/// One measurement.
pub(super) struct Row {
    pub(super) size: String,
    pub(super) dtype: DType,
    pub(super) device: Device,
    pub(super) threads: usize,
    pub(super) pass: &'static str,
    pub(super) tokens: usize,
    /// The work that alone would take the time of the floor.
    pub(super) floor: &'static str,
    pub(super) time: Duration,
    pub(super) share: f64,
}

impl Row {
    fn rate(&self) -> f64 {
        self.tokens as f64 / self.time.as_secs_f64()
    }

    pub(super) fn json(&self) -> String {
        let Row { size, dtype, device, threads, pass, tokens, floor, time, share } = self;
        json!({
            "model": if size.contains('-') { size.clone() } else { format!("mamba-{size}") },
            "dtype": dtype.to_string(),
            "device": device.to_string(),
            "threads": threads,
            "pass": pass,
            "tokens": tokens,
            "median_ns": time.as_nanos() as u64,
            "tokens_per_s": self.rate(),
            "floor": floor,
            "floor_share": share,
        })
        .to_string()
    }

    pub(super) fn line(&self) -> String {
        let Row { size, dtype, threads, pass, tokens, floor, time, share, .. } = self;
        let share = format!("{:.0} % of {floor}", 100.0 * share);
        let threads = if self.device == Device::Cpu { threads.to_string() } else { self.device.to_string() };
        let (tokens, rate) = (tokens.to_string(), text::figure(self.rate()));
        columns(&[size, &dtype.to_string(), &threads, pass, &tokens, &text::time(*time), &rate, &share])
    }
}

pub(super) fn columns(fields: &[&str; 8]) -> String {
    let [size, dtype, threads, pass, tokens, median, rate, share] = fields;
    format!("{size:<11} {dtype:<5} {threads:>7} {pass:<8} {tokens:>6} {median:>10} {rate:>9}  {share}")
}

/// The shapes of all projections.
pub(super) fn shapes(config: &Config) -> Vec<[usize; 2]> {
    let all = config.tensors().into_iter();
    let projections = all.filter(|(name, shape)| name.contains("proj") && shape.len() == 2);
    projections.map(|(_, shape)| [shape[0], shape[1]]).collect()
}
