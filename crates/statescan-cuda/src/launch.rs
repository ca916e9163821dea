//! How a kernel is launched: plain numbers, checked against those of a device.

#[cfg(feature = "driver")]
use crate::Numbers;
use crate::{Error, Result};

/// Blocks, threads and memory of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(not(feature = "driver"), allow(dead_code))] // only a driver reads all of it
pub struct Launch {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Blocks of a cluster along x, y and z: they run at the same time and read each other's shared memory.
    pub cluster: Option<[u32; 3]>,
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block in bytes.
    pub shared: u32,
}

/// The most blocks along x, y and z.
#[cfg(feature = "driver")]
const GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
/// The most threads of a block.
#[cfg(feature = "driver")]
const THREADS: u32 = 1024;
/// The most blocks of a cluster that every device with clusters can launch.
#[cfg(feature = "driver")]
const CLUSTER: u64 = 8;

impl Launch {
    /// Blocks along x, without clusters.
    pub const fn line(blocks: u32, threads: u32, shared: u32) -> Launch {
        Launch { grid: [blocks, 1, 1], cluster: None, threads, shared }
    }

    /// Blocks of so many threads along x, without shared memory; `op` is whom an error names.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there are more of them than a launch can have.
    pub fn new(op: &'static str, blocks: Option<usize>, threads: usize) -> Result<Launch> {
        let blocks = blocks.and_then(|n| u32::try_from(n).ok()).filter(|&n| n <= i32::MAX as u32);
        let why = "so many elements need more blocks than a launch can have";
        Ok(Launch::line(blocks.ok_or(Error::Unavailable { what: op, why })?, threads as u32, 0))
    }

    /// A thread for each of so many elements.
    ///
    /// # Errors
    /// As [`Launch::new`].
    pub fn elementwise(op: &'static str, count: Option<usize>, threads: usize) -> Result<Launch> {
        Self::new(op, count.map(|n| n.div_ceil(threads)), threads)
    }

    /// All blocks.
    pub fn blocks(&self) -> usize {
        self.grid.iter().fold(1, |n, &blocks| n.saturating_mul(blocks as usize))
    }

    /// Whether a device can launch it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the limit that does not hold.
    #[cfg(feature = "driver")]
    pub fn check(&self, kernel: &'static str, numbers: &Numbers) -> Result<()> {
        let whole_clusters = |cluster: [u32; 3]| {
            let blocks = cluster.iter().fold(1, |n: u64, &blocks| n.saturating_mul(blocks.into()));
            (1..=CLUSTER).contains(&blocks) && self.grid.iter().zip(cluster).all(|(blocks, of)| blocks.is_multiple_of(of))
        };
        let why = if self.grid.iter().zip(GRID).any(|(blocks, most)| !(1..=most).contains(blocks)) {
            "a launch has 1 to 2147483647 blocks along x, and 1 to 65535 along y and z"
        } else if !(1..=THREADS).contains(&self.threads) {
            "a block has 1 to 1024 threads"
        } else if self.shared as usize > numbers.shared_per_block {
            "a block needs more shared memory than it can have on this device"
        } else if self.cluster.is_some() && !numbers.has_clusters() {
            "clusters of blocks need a device of compute capability 9.0"
        } else if !self.cluster.is_none_or(whole_clusters) {
            "a cluster has 1 to 8 blocks, and a launch has whole clusters"
        } else {
            return Ok(());
        };
        Err(Error::Unavailable { what: kernel, why })
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;

    const OLD: Numbers = Numbers { capability: (8, 0), ..Numbers::H200 };

    #[test]
    fn launches_are_checked_against_the_device() {
        let plain = Launch::line(10, 128, 0);
        let refused = |launch: Launch, numbers: &Numbers| match launch.check("kernel", numbers) {
            Ok(()) => "",
            Err(Error::Unavailable { what: "kernel", why }) => why,
            Err(error) => panic!("{error}"),
        };
        for launch in [
            plain,
            Launch { grid: [i32::MAX as u32, 65_535, 65_535], threads: 1024, shared: 227 << 10, ..plain },
            Launch { grid: [12, 6, 1], cluster: Some([4, 2, 1]), ..plain },
        ] {
            assert_eq!(refused(launch, &Numbers::H200), "");
        }
        assert_eq!(refused(plain, &OLD), "");
        let clustered = |cluster| Launch { grid: [8, 9, 1], cluster: Some(cluster), ..plain };
        for (launch, numbers, word) in [
            (Launch::line(0, 128, 0), Numbers::H200, "blocks along x"),
            (Launch::line(1 << 31, 128, 0), Numbers::H200, "blocks along x"),
            (Launch { grid: [1, 65_536, 1], ..plain }, Numbers::H200, "along y and z"),
            (Launch { grid: [1, 1, 0], ..plain }, Numbers::H200, "along y and z"),
            (Launch::line(1, 0, 0), Numbers::H200, "threads"),
            (Launch::line(1, 1025, 0), Numbers::H200, "threads"),
            (Launch::line(1, 128, 100 << 10), Numbers::SMALL, "shared memory"),
            (clustered([2, 1, 1]), OLD, "capability 9.0"),
            (clustered([8, 3, 1]), Numbers::H200, "1 to 8 blocks"),
            (clustered([1, 2, 1]), Numbers::H200, "whole clusters"),
            (clustered([0, 1, 1]), Numbers::H200, "1 to 8 blocks"),
        ] {
            let why = refused(launch, &numbers);
            assert!(why.contains(word), "{launch:?} {why}");
        }
    }

    #[test]
    fn a_line_of_blocks_covers_its_elements() {
        let launch = Launch::elementwise("op", Some(1000), 128).unwrap();
        assert_eq!((launch, launch.blocks()), (Launch::line(8, 128, 0), 8));
        assert_eq!(Launch { grid: [3, 5, 7], ..launch }.blocks(), 105);
        assert!(Launch::new("op", Some(1 << 31), 128).is_err() && Launch::new("op", None, 128).is_err());
    }
}
