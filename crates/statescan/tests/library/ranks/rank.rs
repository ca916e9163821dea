//! One rank: what it computes of its slice, and what it tells the others.

use super::*;

fn part(dense: &Dense, axis: Option<usize>, steps: &std::ops::Range<usize>) -> Dense {
    match axis {
        Some(axis) => Dense::from_view(&dense.view().slice(axis, steps.clone())),
        None => dense.clone(),
    }
}

/// The ranks tell each other by it: everybody puts something in, and gets all of it.
pub struct Exchange {
    slots: Vec<Mutex<Option<Dense>>>,
    barrier: Barrier,
}

impl Exchange {
    pub fn new(ranks: usize) -> Self {
        Exchange { slots: (0..ranks).map(|_| Mutex::new(None)).collect(), barrier: Barrier::new(ranks) }
    }
    pub fn gather(&self, rank: usize, mine: Dense) -> Vec<Dense> {
        *self.slots[rank].lock().unwrap() = Some(mine);
        self.barrier.wait();
        let all = self.slots.iter().map(|slot| slot.lock().unwrap().clone().unwrap()).collect();
        self.barrier.wait();
        all
    }
}

/// Combines summaries, the first one first, by the library.
fn combined(exec: &Exec, states: &[&Dense], decays: &[Dense], initial: Option<&Dense>, dtype: DType, like: &Dense) -> Dense {
    let stack = |all: &[&Dense], shape: &[usize]| {
        let mut whole = Dense::zeros(&[&[all.len()], shape].concat()).unwrap();
        let values: Vec<_> = all.iter().flat_map(|dense| dense.data().iter().copied()).collect();
        whole.data_mut().copy_from_slice(&values);
        Tensor::from_dense(&whole, dtype).to(exec).unwrap()
    };
    let axes = decays.first().map_or(like.shape(), |decay| decay.shape());
    let (states, decays) = (stack(states, &like.shape()), stack(&decays.iter().collect::<Vec<_>>(), &axes));
    let initial = initial.map(|dense| Tensor::from_dense(dense, dtype).to(exec).unwrap());
    let mut out = Tensor::empty(exec, dtype, &like.shape()).unwrap();
    combine(exec, states.view(), decays.view(), initial.as_ref().map(Tensor::view), out.view_mut()).unwrap();
    out.to_host().unwrap().to_dense()
}

/// Multiplies the rows of a state, its first axis.
fn by_rows(dense: &Dense, factors: &[f64]) -> Dense {
    let mut dense = dense.clone();
    let inner = dense.data().len() / factors.len().max(1);
    dense.data_mut().iter_mut().enumerate().for_each(|(i, value)| *value *= factors[i / inner]);
    dense
}

/// Results and gradients of one rank, by their names.
pub type Found = Vec<(&'static str, Tensor)>;

pub struct Rank<'r> {
    pub exec: &'r Exec,
    pub owned: &'r Owned,
    pub tensors: &'r [Option<Tensor>],
    /// The steps of each rank, and where the ranks stand in the order of the scan.
    pub slices: &'r [std::ops::Range<usize>],
    pub order: &'r [usize],
    pub exchange: &'r Exchange,
    pub rank: usize,
}

impl Rank<'_> {
    fn to(&self, dense: &Dense, dtype: DType) -> Tensor {
        Tensor::from_dense(dense, dtype).to(self.exec).unwrap()
    }

    /// Whether the sequence of each row goes on from the ranks before this one, 1, or starts with it, 0.
    fn continues(&self, rank: usize) -> Vec<f64> {
        let (owned, place) = (self.owned, self.order.iter().position(|&other| other == rank).unwrap());
        let seqlen = self.slices.last().unwrap().end;
        let rows = if owned.packing == Packing::Index { 2 } else { return Vec::new() };
        let steps = |rank: usize| Some(self.slices[rank].clone()).filter(|steps| !steps.is_empty());
        let before = self.order[..place].iter().rev().find_map(|&other| steps(other));
        (0..rows)
            .map(|row| match (steps(rank), &before) {
                (Some(own), Some(before)) => {
                    let (first, last) = if owned.reverse { (own.end - 1, before.start) } else { (own.start, before.end - 1) };
                    f64::from(owned.index[row * seqlen + first] == owned.index[row * seqlen + last])
                }
                _ => 1.0,
            })
            .collect()
    }

    fn masked(&self, rank: usize, dense: &Dense) -> Dense {
        let factors = self.continues(rank);
        if factors.is_empty() { dense.clone() } else { by_rows(dense, &factors) }
    }

    pub fn run(&self) -> Result<Found, Error> {
        let (exec, owned, operation, steps) = (self.exec, self.owned, self.owned.operation, self.slices[self.rank].clone());
        let signature = operation.signature;
        let place = self.order.iter().position(|&rank| rank == self.rank).unwrap();
        let (before, after) = (&self.order[..place], &self.order[place + 1..]);
        let mut call = owned.of(self.tensors, steps.clone());
        let clipped: Vec<i64> =
            owned.bounds.iter().map(|&bound| bound.clamp(steps.start as i64, steps.end as i64) - steps.start as i64).collect();
        let clipped = Tensor::from_slice(exec, &clipped, &[clipped.len()]).unwrap();
        if owned.packing == Packing::Bounds {
            call.views[owned.at("cu_seqlens").unwrap()] = Some(clipped.view());
        }
        let initial_at = owned.at("initial_state").unwrap();
        let given = self.tensors[initial_at].as_ref().map(|tensor| tensor.to_host().unwrap().to_dense());

        let (planned, seen) = (operation.result(&call, 1)?, Mutex::new(Workspace::default()));
        let shape = planned.shape;
        let decay = signature.decay.unwrap();
        let dropped = signature.results[1].layouts[0].len() - decay.layouts[0].len();
        let decay_dtype = if call.is_complex(decay.complex) { DType::Complex64 } else { DType::F32 };
        let mut own_state = Tensor::empty(exec, planned.dtype, &shape)?;
        let mut own_decay = Tensor::empty(exec, decay_dtype, &shape[..shape.len() - dropped])?;
        let mut workspace = seen.lock().unwrap();
        let len = operation.summary_workspace_len(exec, &call)?;
        let scratch = if len > 0 { Some(workspace.view_mut(exec, len)?) } else { None };
        let summary = Summary::default().state(own_state.view_mut()).decay(own_decay.view_mut()).workspace(scratch);
        let summarized = operation.summary(exec, &call, summary);
        let home = |tensor: &Tensor| tensor.to_host().unwrap().to_dense();
        let states = self.exchange.gather(self.rank, home(&own_state));
        let decays = self.exchange.gather(self.rank, home(&own_decay));
        summarized?;

        let like = Dense::zeros(&shape).unwrap();
        let pick = |from: &[Dense], ranks: &[usize]| ranks.iter().map(|&rank| self.masked(rank, &from[rank])).collect::<Vec<_>>();
        let found: Vec<_> = before.iter().map(|&rank| &states[rank]).collect();
        let entering = combined(exec, &found, &pick(&decays, before), given.as_ref(), planned.dtype, &like);
        // the caller's state may be real where the scan is complex
        let entering = self.to(&self.masked(self.rank, &entering), planned.dtype);
        call.views[initial_at] = Some(entering.view());

        let mut results: Found = Vec::new();
        let mut out = Written::default();
        for at in 0..2 {
            let planned = operation.result(&call, at)?;
            results.push((signature.results[at].name, Tensor::empty(exec, planned.dtype, &planned.shape)?));
        }
        for ((_, tensor), view) in results.iter_mut().zip(&mut out.views) {
            *view = Some(tensor.view_mut());
        }
        let len = operation.workspace_len(exec, &call)?;
        out.workspace = if len > 0 { Some(workspace.view_mut(exec, len)?) } else { None };
        operation.forward(exec, &call, &mut out)?;

        // the cotangent for the ranks before this one, without the share of the ranks behind it
        let y = part(&owned.cotangents[0], Owned::time(signature.results[0].layout(owned.cotangents[0].shape().len())), &steps);
        let y = self.to(&y, operation.result(&call, 0)?.dtype);
        let last = if after.is_empty() { owned.cotangents[1].clone() } else { like.clone() };
        let backward = |last: &Dense, all: bool, workspace: &mut Workspace| -> Result<Found, Error> {
            let last = self.to(last, planned.dtype);
            let cotangents = Given { cotangents: [Some(y.view()), Some(last.view())], ..Given::default() };
            let mut found: Found = Vec::new();
            let mut places = Vec::new();
            for (at, argument) in signature.arguments.iter().enumerate().filter(|(_, argument)| argument.gradient) {
                if let Some(view) = call.views[at].filter(|_| all || at == initial_at) {
                    found.push((argument.name, Tensor::empty(exec, view.dtype(), &view.shape())?));
                    places.push(at);
                }
            }
            let mut grads = Written::default();
            for (at, (_, tensor)) in places.into_iter().zip(&mut found) {
                grads.views[at] = Some(tensor.view_mut());
            }
            let len = operation.backward_workspace_len(exec, &call, false)?;
            grads.workspace = if len > 0 { Some(workspace.view_mut(exec, len)?) } else { None };
            operation.backward(exec, &call, &cotangents, &mut grads)?;
            Ok(found)
        };
        let flowing = backward(&last, false, &mut workspace)?;
        let flowing = self.exchange.gather(self.rank, home(&flowing[0].1));
        let reversed: Vec<usize> = after.iter().rev().copied().collect();
        let conjugate = |mut dense: Dense| {
            dense.data_mut().iter_mut().for_each(|value| *value = value.conj());
            dense
        };
        let flowing = pick(&flowing, &reversed);
        let conjugates: Vec<_> = pick(&decays, &reversed).into_iter().map(conjugate).collect();
        let coming = combined(exec, &flowing.iter().collect::<Vec<_>>(), &conjugates, None, planned.dtype, &like);
        let last = if after.is_empty() { last } else { coming };
        results.extend(backward(&last, true, &mut workspace)?);
        Ok(results.into_iter().map(|(name, tensor)| (name, tensor.to_host().unwrap())).collect())
    }
}
