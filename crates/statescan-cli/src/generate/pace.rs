//! How fast a text was read and written.

use crate::error::Result;
use crate::language::Language;
use crate::output::note;
use crate::reader::Reader;
use statescan::cuda::Ceilings;
use statescan::tensor::Device;
use statescan_cases::measure::ceilings::reading_time;
use statescan_cases::measure::floors::Floors;
use std::time::Duration;

/// Tokens, and how long they took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    pub(crate) tokens: usize,
    pub(crate) time: Duration,
}

impl Pace {
    fn print(&self, what: &str, floor: Option<(f64, &str)>) {
        if self.tokens == 0 {
            return;
        }
        let each = self.time.as_nanos().max(1) as f64 / self.tokens as f64;
        let share = |(ns, of)| format!(", {:.0} % of the floor of {of}", 100.0 * ns / each);
        note!("{what}  {} tokens, {:.1} tokens/s{}", self.tokens, 1e9 / each, floor.map_or(String::new(), share));
    }
}

/// Prints the pace of prefill and decoding, with `floors` beside what this machine could do at most, which has to be measured; products of GPUs have
/// no figure of their own here.
pub(crate) fn report(language: &Language, reader: &Reader<'_>, [prefill, decode]: [Pace; 2], floors: bool) -> Result<()> {
    if !floors {
        prefill.print("prefill", None);
        decode.print("decode ", None);
        return Ok(());
    }
    let exec = &language.exec;
    let (bytes, products) = match exec.device() {
        Device::Cpu => {
            let products = 2.0 * language.model.products_per_token() as f64 / Floors::measure(exec.threads()).flops;
            (reading_time(reader.bytes_per_step(), exec.threads()), Some(products))
        }
        _ => (reader.bytes_per_step() as f64 / Ceilings::measure(exec)?.bytes, None),
    };
    let floor = |products: f64| (products.max(bytes / prefill.tokens.max(1) as f64), "products");
    prefill.print("prefill", products.map(floor));
    decode.print("decode ", Some((bytes.max(products.unwrap_or(0.0)), "reading")));
    Ok(())
}
