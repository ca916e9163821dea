//! Options of the operations, on the command line.

use crate::error::{Error, Result};
use clap::Args;
use serde_json::{Value, json};
use statescan_cases::ops::Options;

/// Options of the operations; they override those in a file.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Options of the operation")]
pub struct OptionArgs {
    /// Send dt through softplus after the bias
    #[arg(long)]
    pub dt_softplus: bool,
    /// Lowest and highest step
    #[arg(long, value_name = "LOW,HIGH", allow_hyphen_values = true)]
    pub dt_limit: Option<String>,
    /// mamba, zoh, bilinear or dirac
    #[arg(long, value_name = "NAME")]
    pub discretization: Option<String>,
    /// Scan from the last step to the first
    #[arg(long)]
    pub reverse: bool,
    /// Steps in a chunk (a hint)
    #[arg(long, value_name = "N")]
    pub chunk_size: Option<u64>,
    /// Whether the states stand for conjugate pairs
    #[arg(long, value_name = "true|false")]
    pub conj_sym: Option<bool>,
    /// none or silu
    #[arg(long, value_name = "NAME")]
    pub activation: Option<String>,
    /// Arguments that are complex, stored with a trailing axis of 2
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub complex: Vec<String>,
    /// Any option by its name in the metadata
    #[arg(long = "set", value_name = "NAME=JSON")]
    pub set: Vec<String>,
}

impl OptionArgs {
    /// As they would stand in a file.
    ///
    /// # Errors
    /// A value that is not what the option takes.
    pub fn options(&self) -> Result<Options> {
        let mut options = Options::new();
        let mut put = |name: &str, value: Value| options.insert(name.to_string(), value);
        if self.dt_softplus {
            put("dt_softplus", json!(true));
        }
        if self.reverse {
            put("reverse", json!(true));
        }
        if let Some(text) = &self.dt_limit {
            let ends: Vec<&str> = text.split(',').map(str::trim).collect();
            if ends.len() != 2 || ends.iter().any(|end| end.parse::<f64>().is_err()) {
                return Err(Error::Usage { option: "--dt-limit", expected: "two numbers, LOW,HIGH", got: text.clone() });
            }
            put("dt_limit", json!(ends));
        }
        let words = [("discretization", &self.discretization), ("activation", &self.activation)];
        for (name, word) in words {
            if let Some(word) = word {
                put(name, json!(word));
            }
        }
        if let Some(n) = self.chunk_size {
            put("chunk_size", json!(n));
        }
        if let Some(flag) = self.conj_sym {
            put("conj_sym", json!(flag));
        }
        for text in &self.set {
            let bad = || Error::Usage { option: "--set", expected: "NAME=JSON", got: text.clone() };
            let (name, value) = text.split_once('=').ok_or_else(bad)?;
            put(name, serde_json::from_str(value).map_err(|_| bad())?);
        }
        Ok(options)
    }
}
