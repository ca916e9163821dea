//! Parameters of the convolution's kernels.

use crate::cuda::{Address, Strided, params};
use crate::ops::on_cuda::Slots;

params! {
    /// Parameters of every pass.
    pub(super) struct Conv {
        /// (batch, channel, step)
        pub x: Strided,
        /// (channel, tap)
        pub weight: Strided,
        /// (channel)
        pub bias: Strided,
        /// (row, sequence, channel, j): the inputs before a sequence, the latest last.
        pub initial: Strided,
        /// Bounds (sequence), or the sequence of a step (batch, step).
        pub sequences: Strided,
        pub slots: Slots,
        pub batch: i64,
        pub dim: i64,
        pub seqlen: i64,
        /// Count of bounds, or of numbered states.
        pub sequence_count: i64,
    }
}

params! {
    /// Parameters of `causal_conv1d_forward`.
    pub(super) struct ForwardParams {
        pub conv: Conv,
        /// (batch, channel, step)
        pub y: Strided,
        /// The states after whole rows, (row, 0, channel, j).
        pub last: Strided,
        pub channel_blocks: u32,
        pub time_blocks: u32,
    }
}

params! {
    /// Parameters of `causal_conv1d_backward`.
    pub(super) struct BackwardParams {
        pub conv: Conv,
        /// (batch, channel, step)
        pub dy: Strided,
        pub dx: Strided,
        /// Cotangent of the final states, (row, sequence, channel, j).
        pub last: Strided,
        pub dweight: Strided,
        pub dbias: Strided,
        /// Dense (split, channel, tap), the bias after the taps.
        pub partial: Address<f32>,
        pub channel_blocks: u32,
        pub time_blocks: u32,
        pub splits: u32,
        /// (batch, block of steps)
        pub items: u32,
    }
}

params! {
    /// Parameters of `causal_conv1d_states`.
    pub(super) struct StatesParams {
        pub conv: Conv,
        /// (batch, channel, step)
        pub dy: Strided,
        /// Cotangent of the final states.
        pub last: Strided,
        /// (row, sequence, channel, j)
        pub out: Strided,
        /// Rows of `out`.
        pub rows: i64,
        pub sequences: i64,
    }
}

params! {
    /// Parameters of `causal_conv1d_sums`.
    pub(super) struct SumsParams {
        /// Dense (split, channel, tap), the bias after the taps.
        pub partial: Address<f32>,
        pub dweight: Strided,
        pub dbias: Strided,
        pub dim: i64,
        pub splits: i64,
    }
}
