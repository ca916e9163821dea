//! Shared memory, laid out once: arrays by name on the host, constants of the same names in the kernel's text.

use super::Config;

/// Dynamic shared memory of a block: arrays side by side.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharedMemory {
    places: Vec<(&'static str, usize)>,
    len: usize,
    beside: Option<usize>,
}

impl SharedMemory {
    /// Adds an array of so many bytes behind the others; `name` is the constant for where it begins. An array without bytes has its constant, too.
    pub fn array(mut self, name: &'static str, bytes: usize) -> Self {
        self.places.push((name, self.len));
        self.len += bytes;
        self
    }

    /// Repeats all arrays `count` times, with a constant for the distance from one copy to the next: arrays have their places in the first copy.
    pub fn times(mut self, distance: &'static str, count: usize) -> Self {
        self.places.push((distance, self.len));
        self.len *= count;
        self
    }

    /// Makes room for something else of so many bytes in the place of all arrays.
    pub fn at_least(self, bytes: usize) -> Self {
        SharedMemory { len: self.len.max(bytes), ..self }
    }

    /// Leaves so many bytes beside the arrays for what the kernel declares itself: the constant `STATIC`, which tests that compile the kernel compare with
    /// what the compiler says.
    pub fn beside(self, bytes: usize) -> Self {
        SharedMemory { beside: Some(bytes), ..self }
    }

    /// The bytes that are left beside the arrays.
    pub fn beside_len(&self) -> usize {
        self.beside.unwrap_or(0)
    }

    /// The length of all arrays and of what lies beside them.
    pub fn whole_len(&self) -> usize {
        self.len + self.beside_len()
    }

    /// The length of all arrays in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no array has bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Config {
    /// The constants of a layout of shared memory.
    pub fn shared(self, memory: &SharedMemory) -> Self {
        let config = memory.places.iter().fold(self, |config, &(name, place)| config.int(name, place));
        match memory.beside {
            Some(bytes) => config.int("STATIC", bytes),
            None => config,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_lie_side_by_side() {
        let memory =
            SharedMemory::default().array("X_AT", 64).array("Z_AT", 0).array("Y_AT", 16).times("STAGE", 3).array("B_AT", 8);
        assert_eq!(memory.places, [("X_AT", 0), ("Z_AT", 64), ("Y_AT", 64), ("STAGE", 80), ("B_AT", 240)]);
        assert_eq!(memory.len(), 248);
        let expected = "constexpr int X_AT = 0;\nconstexpr int Z_AT = 64;\nconstexpr int Y_AT = 64;\nconstexpr int STAGE = 80;\nconstexpr int B_AT = 240;\n";
        assert_eq!(Config::default().shared(&memory).to_string(), expected);
    }
}
