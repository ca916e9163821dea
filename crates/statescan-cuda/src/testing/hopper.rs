//! Tiles copied by tensor maps, and clusters of blocks.

use super::device::{download, gpu, upload, view};
use super::suite::Suite;
use crate::Scalar;
use crate::{Address, COMMON, Config, DeviceMemory, HOPPER, Launch, MMA, Program, Stream, Swizzle, TensorMap, Tiling, params};

params! {
    struct TilesParams {
        from: TensorMap,
        to: TensorMap,
        /// Elements of a tile along each axis, and how many tiles there are.
        tile: [u32; 5],
        tiles: [u32; 5],
        /// Bytes of a tile.
        bytes: u32,
    }
}

params! {
    struct ClusterParams {
        next: Address<f32>,
        rank: Address<f32>,
    }
}

static TILES: Program<TilesParams> = Program::new("tiles_copied", &[COMMON, MMA, HOPPER], include_str!("tiles.cu"));
static CLUSTER: Program<ClusterParams> = Program::new("clusters_exchange", &[COMMON, MMA, HOPPER], include_str!("cluster.cu"));

/// Blocks of a cluster along x and y.
const CLUSTER_SHAPE: [u32; 3] = [2, 2, 1];

fn tiles_config(rank: usize) -> Config {
    Config::default().int("RANK", rank)
}

fn cluster_config() -> Config {
    Config::default().int("BLOCKS", CLUSTER_SHAPE.iter().product::<u32>() as usize)
}

#[test]
fn copied_tiles_and_clusters_compile() {
    let Some(mut suite) = Suite::new() else { return };
    (1..=5).for_each(|rank| suite.add_for(&["sm_90a"], &TILES, &tiles_config(rank)));
    suite.add_for(&["sm_90a"], &CLUSTER, &cluster_config());
    suite.compile();
}

/// Copies a strided tensor of 16-bit numbers tile by tile into one with other strides; what lies between its elements stays.
fn copies(stream: &Stream, shape: &[usize], from: &[isize], to: &[isize], tile: &[usize], swizzle: Swizzle) {
    let reach = |strides: &[isize]| 1 + shape.iter().zip(strides).map(|(n, s)| (n - 1) * *s as usize).sum::<usize>();
    let source: Vec<u16> = (0..reach(from)).map(|i| i as u16 & 0x3fff).collect();
    let mut expected = vec![0xffffu16; reach(to)];
    let mut index = vec![0; shape.len()];
    for _ in 0..shape.iter().product() {
        let place = |strides: &[isize]| index.iter().zip(strides).map(|(i, s)| i * *s as usize).sum::<usize>();
        expected[place(to)] = source[place(from)];
        // the next index, the last axis first
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    let (source, target) = (upload(stream, &source), upload(stream, &vec![0xffffu16; expected.len()]));
    let tiling =
        |memory: &DeviceMemory, strides| Tiling::new(&view(memory, Scalar::BF16, shape, strides), tile, swizzle).unwrap();
    let (of_source, of_target) = (tiling(&source, from), tiling(&target, to));
    let (tile, tiles, bytes) = (of_source.tile(), of_source.tiles(), of_source.bytes() as u32);
    let (from, to) = (of_source.encode(stream).unwrap(), of_target.encode(stream).unwrap());
    let grid = [tiles[0], tiles[1], tiles[2] * tiles[3] * tiles[4]];
    let launch = Launch { grid, ..Launch::line(1, 32, bytes) };
    let params = TilesParams { from, to, tile, tiles, bytes };
    // SAFETY: the maps are of tensors in memory that is alive, and shared memory has room for a tile.
    unsafe { stream.launch(&TILES, &tiles_config(shape.len()), launch, &params).unwrap() };
    assert_eq!(download::<u16>(&target), expected, "{shape:?} in tiles of {tile:?}, {swizzle:?}");
}

#[test]
fn tensor_maps_copy_strided_tiles() {
    let Some(stream) = gpu("9.0", |capability| capability == (9, 0)) else { return };
    let (none, wide) = (Swizzle::None, Swizzle::Bytes128);
    copies(&stream, &[104], &[1], &[1], &[64], none);
    copies(&stream, &[30, 104], &[104, 1], &[128, 1], &[8, 64], wide);
    // (head, step, channel) out of (step, head, channel): a strided tile of three axes
    for swizzle in [none, wide] {
        copies(&stream, &[3, 70, 64], &[64, 192, 1], &[72 * 70, 72, 1], &[2, 32, 64], swizzle);
    }
    copies(&stream, &[3, 70, 40], &[64, 192, 1], &[40 * 70, 40, 1], &[1, 16, 32], Swizzle::Bytes64);
    copies(&stream, &[3, 70, 40], &[64, 192, 1], &[40 * 70, 40, 1], &[1, 16, 16], Swizzle::Bytes32);
    copies(&stream, &[2, 5, 3, 24], &[24 * 15, 24 * 3, 24, 1], &[24, 48, 240, 1], &[2, 2, 2, 16], none);
    copies(&stream, &[2, 3, 5, 7, 8], &[840, 280, 56, 8, 1], &[8, 16, 48, 240, 1], &[1, 2, 4, 4, 8], none);
}

#[test]
fn clusters_read_each_others_shared_memory() {
    let Some(stream) = gpu("9.0", |capability| capability == (9, 0)) else { return };
    let grid = [6, 4, 2];
    let blocks = grid.iter().product::<u32>() as usize;
    let [next, rank] = [0; 2].map(|_| upload(&stream, &vec![f32::NAN; blocks]));
    let launch = Launch { grid, cluster: Some(CLUSTER_SHAPE), ..Launch::line(1, 32, 0) };
    let params = ClusterParams { next: Address::new(next.address()), rank: Address::new(rank.address()) };
    // SAFETY: both arrays have a number for each block.
    unsafe { stream.launch(&CLUSTER, &cluster_config(), launch, &params).unwrap() };
    let (next, rank) = (download::<f32>(&next), download::<f32>(&rank));
    for block in 0..blocks as u32 {
        let (x, y, z) = (block % 6, block / 6 % 4, block / 24);
        let own = x % 2 + y % 2 * 2;
        let after = (own + 1) % 4;
        let (next_x, next_y) = (x / 2 * 2 + after % 2, y / 2 * 2 + after / 2);
        let expected = (own as f32, (next_x + 6 * (next_y + 4 * z)) as f32);
        assert_eq!((rank[block as usize], next[block as usize]), expected, "block {block}");
    }
}
