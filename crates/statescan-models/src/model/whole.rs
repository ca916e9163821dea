//! A model on a device, whichever it is, and what training needs of one beside the passes of mixers.

use crate::config::Config;
use crate::error::Result;
use crate::kernels::training::{TokenRows, Zeros};
use crate::mixer::{Device, Last, Linear, Multiplied, Room, Rooms, Run};
use crate::norms::StreamNorm;
use statescan::{DType, View, ViewMut};

/// A model whose weights are on a device.
pub(crate) struct Whole<'m> {
    pub(crate) device: &'m dyn Trains,
    pub(crate) config: &'m Config,
    /// The type of activations and of the weights of products.
    pub(crate) dtype: DType,
    /// Both (vocab, dim).
    pub(crate) embedding: View<'m>,
    pub(crate) head: View<'m>,
    /// The weights of the norms in front of layers, and of that in front of the head.
    pub(crate) norms: Vec<View<'m>>,
    pub(crate) mixers: Vec<Run<'m>>,
}

impl<'m> Whole<'m> {
    /// The norm of the stream in front of a layer, or of the head, whose number is that of layers.
    pub(crate) fn norm(&self, at: usize) -> StreamNorm<'m> {
        StreamNorm { exec: self.device.exec(), weight: self.norms[at], eps: self.config.eps }
    }

    /// A layer from rows of the stream to those that its last product takes, by a pass of its mixer; gives that product. Where the norm of the layer is
    /// behind it, the results of the product are there too.
    pub(crate) fn mix(
        &self,
        layer: usize,
        stream: View<'_>,
        rooms: &mut BlockRooms,
        pass: impl FnOnce(&Run<'m>, View<'_>, &mut Rooms) -> Result<Last<'m>>,
    ) -> Result<Last<'m>> {
        let (rows, BlockRooms { normed, mixer, behind, .. }) = (stream.shape()[0], rooms);
        normed.grow(self.device.exec(), self.dtype, rows, self.config.dim)?;
        if !self.config.norm_is_behind(layer) {
            self.norm(layer).forward(stream, normed.of_mut(rows))?;
            return pass(&self.mixers[layer], normed.of(rows), mixer);
        }
        behind.grow(self.device.exec(), DType::F32, rows, self.config.dim)?;
        self.device.cast(stream, &mut normed.of_mut(rows))?;
        let last = pass(&self.mixers[layer], normed.of(rows), mixer)?;
        self.device.product(mixer.mixed.of(rows), last, &mut behind.of_mut(rows))?;
        Ok(last)
    }

    /// The stream behind a layer: that before it, or without it `y` itself, and what the layer adds.
    pub(crate) fn add(
        &self,
        (layer, product): (usize, Last<'_>),
        rooms: &BlockRooms,
        zeros: Option<Zeros>,
        stream: (Option<View<'_>>, &mut ViewMut<'_>),
        room: &mut Room,
    ) -> Result<()> {
        let ((before, y), factor) = (stream, self.config.scales.residual);
        let rows = y.shape()[0];
        if !self.config.norm_is_behind(layer) {
            return self.device.add(Added { x: rooms.mixer.mixed.of(rows), product, factor, zeros }, before, y, room);
        }
        room.grow(self.device.exec(), DType::F32, rows, self.config.dim)?;
        self.norm(layer).forward(rooms.behind.of(rows), room.of_mut(rows))?;
        match before {
            // the factor is 1 where norms are behind layers, and zeros are for training
            None => self.device.accumulate(room.of(rows), y),
            Some(before) => {
                self.device.dropout(room.of(rows), zeros, factor, y)?;
                self.device.accumulate(before, y)
            }
        }
    }

    /// The products of the head with rows of the stream, which are normalized first: logits, but for what divides them.
    pub(crate) fn head(&self, stream: View<'_>, mut normed: ViewMut<'_>, logits: &mut ViewMut<'_>) -> Result<()> {
        self.norm(self.mixers.len()).forward(stream, normed.reborrow())?;
        self.device.product(normed.as_view(), Linear::plain(self.head), logits)
    }
}

/// Room for all rows between the stream before a block and its last product.
#[derive(Default)]
pub(crate) struct BlockRooms {
    pub(crate) normed: Room,
    pub(crate) mixer: Rooms,
    /// The results of the last product, where a norm follows it.
    pub(crate) behind: Room,
}

/// Room for a pass: the stream between blocks, what a block makes of it, and a term of the stream.
#[derive(Default)]
pub(crate) struct PassRooms {
    pub(crate) stream: Room,
    pub(crate) block: BlockRooms,
    pub(crate) added: Room,
}

/// The term that a layer adds to the stream: its last product, of rows `x`, times a factor, with random zeros.
pub(crate) struct Added<'a> {
    pub(crate) x: View<'a>,
    pub(crate) product: Linear<View<'a>>,
    pub(crate) factor: f32,
    pub(crate) zeros: Option<Zeros>,
}

/// Rows of logits, whose losses and gradients are asked for.
pub(crate) struct LogitRows<'g> {
    pub(crate) logits: &'g mut Room,
    /// The gradients by the products of the head go here.
    pub(crate) gradient: &'g mut Room,
    /// (rows, 1) of what losses are on the device.
    pub(crate) losses: ViewMut<'g>,
    /// (rows, 1) in i32.
    pub(crate) targets: View<'g>,
    /// Rows of the whole batch, and the factor of all gradients.
    pub(crate) batch: usize,
    pub(crate) unit: f32,
    /// Divides logits.
    pub(crate) divisor: f32,
}

/// The operations of a device that training needs.
pub(crate) trait Trains: Device {
    /// The type of losses, and their mean from what `cross_entropy` left of so many rows.
    fn losses(&self) -> DType;
    fn mean(&self, losses: &Room, rows: usize) -> Result<f64>;

    /// `factor` times rows of a table by tokens, (rows, 1).
    fn embedding(&self, table: View<'_>, tokens: View<'_>, factor: f32, y: &mut ViewMut<'_>) -> Result<()>;

    /// Adds `factor` times rows to those of a table by their tokens, which are sorted on a GPU.
    fn embedding_backward(
        &self,
        tokens: (View<'_>, Option<&TokenRows>),
        dy: View<'_>,
        factor: f32,
        table: &mut ViewMut<'_>,
    ) -> Result<()>;

    /// The stream behind a layer: that before it, or without it `y` itself, and what the layer adds. It may use a room. Zeros are for a stream that was
    /// elsewhere before.
    fn add(&self, added: Added<'_>, before: Option<View<'_>>, y: &mut ViewMut<'_>, room: &mut Room) -> Result<()>;

    /// `factor` times rows with random zeros.
    fn dropout(&self, x: View<'_>, zeros: Option<Zeros>, factor: f32, y: &mut ViewMut<'_>) -> Result<()>;

    fn cross_entropy(&self, of: LogitRows<'_>) -> Result<()>;

    /// The gradients of a product, as [`Device::product_backward`]; with `add` that by the weight is added to what is there.
    fn head_backward(&self, of: Multiplied<'_>, dx: &mut ViewMut<'_>, dweight: &mut ViewMut<'_>, add: bool) -> Result<()>;

    /// `y = y x`, number by number.
    fn scale(&self, y: &mut ViewMut<'_>, x: View<'_>) -> Result<()>;
}
