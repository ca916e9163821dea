//! The way back through attention, for sequences that are all there.

use super::heads::Norms;
use super::{Sequence, Weights, apart, columns, heads, projected_queries, rows_mut, turns};
use crate::error::Result;
use crate::mixer::run::{Back, Run, part};
use crate::mixer::weights::{Linear, listed};
use crate::mixer::{Heads, Multiplied, Room, Rooms};
use statescan::{DType, View};

impl Sequence<'_> {
    /// From the gradient by its rows of the last of `own`'s rooms to those by its queries, keys and values as they are rotated, which are added to what is
    /// there but for queries: the columns of its rows of the room before.
    fn backward(&self, run: &Run<'_>, queries: &Room, [scores, turned]: [&mut Room; 2], own: &mut Rooms) -> Result<()> {
        let (device, headdim, count) = (run.device, run.config.attention.headdim, self.rows.len());
        let Rooms { own: [_, dscores, dturned, dhead, drotated, dattended, _], workspace, .. } = own;
        let rooms = [(&mut *dscores, count, count), (&mut *dturned, headdim, count), (&mut *dhead, count, headdim)];
        rooms.into_iter().try_for_each(|(room, rows, columns)| room.grow(device.exec(), DType::F32, rows, columns))?;
        for (shared, queried) in heads(run.config) {
            let (keys, values) = (self.keys.slice(1, shared.clone()), self.values.slice(1, shared.clone()));
            let values = device.transposed(values, turned)?;
            for own in queried {
                let x = part(queries, &self.rows).slice(1, own.clone());
                self.shares(run, &self.rows, [x, keys], scores)?;
                let dy = part(dattended, &self.rows).slice(1, own.clone());
                let of = Multiplied { x: scores.of(count), product: Linear::plain(values), dy };
                let into = Linear::plain(dturned.of_mut(headdim));
                device.product_backward(of, &mut dscores.of_mut(count), false, into, workspace)?;
                device.softmax_backward(&mut dscores.of_mut(count), scores.of(count), run.config.attention.scale)?;
                let of = Multiplied { x, product: Linear::plain(keys), dy: dscores.of(count) };
                let [dqueries, dkeys, dvalues] = apart(rows_mut(drotated, &self.rows), columns(run.config));
                let into = Linear::plain(dhead.of_mut(count));
                device.product_backward(of, &mut dqueries.slice(1, own), false, into, workspace)?;
                device.accumulate(dhead.of(count), &mut dkeys.slice(1, shared.clone()))?;
                device.accumulate(dturned.of(headdim).permute(&[1, 0]), &mut dvalues.slice(1, shared.clone()))?;
            }
        }
        Ok(())
    }
}

/// As [`Run::backward`].
pub(super) fn backward(run: &Run<'_>, mut back: Back<'_>, rooms: &mut Rooms, own: &mut Rooms) -> Result<()> {
    let (count, [wide, width], of_queries) = (back.steps.rows(), columns(run.config), projected_queries(run.config));
    let (device, all) = (run.device, of_queries + 2 * width);
    let (weights, into) = (Weights::<View<'_>>::of(run), Weights::bind(run.config, &mut listed(back.into)));
    let [dprojected, _, _, _, drotated, dattended, dnormed] = &mut own.own;
    let grown = [
        (&mut *dprojected, back.dy.dtype(), all),
        (&mut *drotated, DType::F32, wide + 2 * width),
        (&mut *dattended, DType::F32, wide),
        (&mut *dnormed, DType::F32, if weights.norms.is_some() { wide + width } else { 0 }),
    ];
    grown.into_iter().try_for_each(|(room, dtype, columns)| room.grow(device.exec(), dtype, count, columns))?;
    let of = Multiplied { x: rooms.mixed.of(count), product: weights.o_proj, dy: back.dy };
    device.product_backward(of, &mut dattended.of_mut(count), false, into.o_proj, &mut own.workspace)?;
    let Rooms { mixed, own: [projected, queries, known, scores, turned, ..], .. } = rooms;
    if run.config.attention.gate {
        let (columns, headdim) = (0..of_queries, run.config.attention.headdim);
        let from = [projected.of(count).slice(1, columns.clone()), mixed.of(count)];
        let dqueries = &mut dprojected.of_mut(count).slice(1, columns);
        device.output_gate_backward(from, headdim, &mut dattended.of_mut(count), dqueries)?;
    }
    device.clear(&mut drotated.of_mut(count))?;
    for start in (0..count).step_by(back.steps.steps) {
        let rows = start..start + back.steps.steps;
        let [keys, values] = [0..width, width..2 * width].map(|columns| part(known, &rows).slice(1, columns));
        let sequence = Sequence { rows: rows.clone(), position: 0, keys, values };
        sequence.backward(run, queries, [&mut *scores, &mut *turned], own)?;
        let Rooms { own: [dprojected, _, _, _, drotated, _, dnormed], .. } = &mut *own;
        let back = Heads { back: true, ..turns(run, 0) };
        let to = if weights.norms.is_some() { dnormed } else { &mut *dprojected };
        let both = &mut rows_mut(to, &rows).slice(1, 0..wide + width);
        device.rope(part(drotated, &rows).slice(1, 0..wide + width), &back, both)?;
        let values = &mut rows_mut(dprojected, &rows).slice(1, of_queries + width..all);
        device.cast(part(drotated, &rows).slice(1, wide + width..wide + 2 * width), values)?;
    }
    let Rooms { own: [dprojected, .., dnormed], workspace, .. } = own;
    if let Some((norms, into)) = weights.norms.zip(into.norms) {
        let from = [projected.of(count), dnormed.of(count)];
        Norms::of(run, norms).backward(from, dprojected.of_mut(count), into, workspace)?;
    }
    let parts = [0..of_queries, of_queries..of_queries + width, of_queries + width..all];
    for (i, ((product, into), columns)) in weights.into.into_iter().zip(into.into).zip(parts).enumerate() {
        let of = Multiplied { x: back.x, product, dy: dprojected.of(count).slice(1, columns) };
        device.product_backward(of, &mut back.dx, i > 0, into, workspace)?;
    }
    Ok(())
}
