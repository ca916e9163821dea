//! A model on a device, whichever it is, and what training needs of one beside the passes of mixers.

use crate::config::Config;
use crate::error::Result;
use crate::kernels::training::{TokenRows, Zeros};
use crate::mixer::{Device, Linear, Multiplied, Part, Room, Rooms, Run};
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

    /// A layer from rows of the stream to those that its last product takes; gives that product. Where the norm of the layer is behind it, the results of the
    /// product are there too.
    pub(crate) fn mix(
        &self,
        layer: usize,
        part: Part<'_>,
        stream: View<'_>,
        rooms: &mut BlockRooms,
        keep: bool,
    ) -> Result<Linear<View<'m>>> {
        let (rows, BlockRooms { normed, mixer, behind, .. }) = (part.steps.rows(), rooms);
        normed.grow(self.device.exec(), self.dtype, rows, self.config.dim)?;
        if !self.config.norm_is_behind(layer) {
            self.norm(layer).forward(stream, normed.of_mut(rows))?;
            return self.mixers[layer].forward(normed.of(rows), vec![part], mixer, keep);
        }
        behind.grow(self.device.exec(), DType::F32, rows, self.config.dim)?;
        self.device.dropout(stream, None, 1.0, &mut normed.of_mut(rows))?;
        let last = self.mixers[layer].forward(normed.of(rows), vec![part], mixer, keep)?;
        self.device.product(mixer.mixed.of(rows), last, &mut behind.of_mut(rows))?;
        Ok(last)
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
    /// These results normed, where they are added to the stream in place.
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
    fn embed(&self, table: View<'_>, tokens: View<'_>, factor: f32, y: &mut ViewMut<'_>) -> Result<()>;

    /// Adds `factor` times rows to those of a table by their tokens, which are sorted on a GPU.
    fn embed_backward(
        &self,
        tokens: (View<'_>, Option<&TokenRows>),
        dy: View<'_>,
        factor: f32,
        table: &mut ViewMut<'_>,
    ) -> Result<()>;

    /// The stream behind a layer: that before it, and what the layer adds. It may use a room of its size.
    fn add(&self, added: Added<'_>, before: View<'_>, y: &mut ViewMut<'_>, room: &mut ViewMut<'_>) -> Result<()>;

    /// `factor` times rows with random zeros.
    fn dropout(&self, x: View<'_>, zeros: Option<Zeros>, factor: f32, y: &mut ViewMut<'_>) -> Result<()>;

    fn cross_entropy(&self, of: LogitRows<'_>) -> Result<()>;

    /// The gradients of a product, as [`Device::product_backward`]; with `add` that by the weight is added to what is there.
    fn head_backward(&self, of: Multiplied<'_>, dx: &mut ViewMut<'_>, dweight: &mut ViewMut<'_>, add: bool) -> Result<()>;

    /// `y = y x`, number by number.
    fn scale(&self, y: &mut ViewMut<'_>, x: View<'_>) -> Result<()>;
}
