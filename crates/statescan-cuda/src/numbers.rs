//! The numbers of a device that plans and launches depend on, so that plans are made and tested without one.

/// The numbers of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Numbers {
    /// Compute capability, (major, minor).
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Shared memory that a block may have, in bytes.
    pub shared_per_block: usize,
    /// Shared memory of a multiprocessor, in bytes.
    pub shared_per_multiprocessor: usize,
}

impl Numbers {
    /// Whether blocks can be launched in clusters.
    #[cfg_attr(not(feature = "driver"), allow(dead_code))] // only a driver launches
    pub fn has_clusters(&self) -> bool {
        self.capability >= (9, 0)
    }

    /// Whether a kernel can begin before the one in front of it has ended.
    #[cfg_attr(not(feature = "driver"), allow(dead_code))] // only a driver launches
    pub fn has_early_starts(&self) -> bool {
        self.capability >= (9, 0)
    }

    /// As many multiprocessors, and of all else at most what a device has.
    #[cfg_attr(not(feature = "driver"), allow(dead_code))] // only a driver has a device
    pub(crate) fn within(self, device: &Numbers) -> Numbers {
        Numbers {
            capability: self.capability.min(device.capability),
            multiprocessors: self.multiprocessors,
            shared_per_block: self.shared_per_block.min(device.shared_per_block),
            shared_per_multiprocessor: self.shared_per_multiprocessor.min(device.shared_per_multiprocessor),
        }
    }

    /// Returns the numbers as words of a key.
    #[cfg_attr(not(feature = "driver"), allow(dead_code))] // only a driver has keys
    pub(crate) fn words(self) -> [u64; 5] {
        let Numbers { capability: (major, minor), multiprocessors, shared_per_block, shared_per_multiprocessor } = self;
        [u64::from(major), u64::from(minor), multiprocessors as u64, shared_per_block as u64, shared_per_multiprocessor as u64]
    }

    /// The architecture that kernels are compiled for, such as `sm_90a`: on Hopper with the instructions that no other
    /// architecture has.
    #[cfg_attr(not(feature = "driver"), allow(dead_code))] // only a compiler reads it
    pub fn architecture(&self) -> String {
        let (major, minor) = self.capability;
        let specific = if self.capability == (9, 0) { "a" } else { "" };
        format!("sm_{major}{minor}{specific}")
    }
}

/// Devices that plans are tested with.
impl Numbers {
    /// Hopper.
    pub const H200: Numbers =
        Numbers { capability: (9, 0), multiprocessors: 132, shared_per_block: 227 << 10, shared_per_multiprocessor: 228 << 10 };
    /// The shared memory of consumers' devices.
    pub const SMALL: Numbers =
        Numbers { capability: (12, 0), multiprocessors: 80, shared_per_block: 99 << 10, shared_per_multiprocessor: 100 << 10 };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_for_others_fit_on_a_device() {
        let planned = Numbers { multiprocessors: 500, ..Numbers::H200 }.within(&Numbers { capability: (8, 9), ..Numbers::SMALL });
        assert_eq!(planned, Numbers { capability: (8, 9), multiprocessors: 500, ..Numbers::SMALL });
        let planned = Numbers { capability: (8, 0), ..Numbers::SMALL }.within(&Numbers::H200);
        assert_eq!(planned, Numbers { capability: (8, 0), ..Numbers::SMALL });
    }

    #[test]
    fn hopper_has_an_architecture_of_its_own() {
        let of = |capability| Numbers { capability, ..Numbers::H200 }.architecture();
        assert_eq!([of((8, 0)), of((8, 9)), of((9, 0)), of((12, 0))], ["sm_80", "sm_89", "sm_90a", "sm_120"]);
    }
}
