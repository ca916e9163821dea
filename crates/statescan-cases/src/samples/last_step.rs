//! The last step of a scan, as a call of the operation that makes one step.

use crate::call::Call;
use crate::compute;
use crate::error::Result;
use crate::memory::{self, Limits};
use crate::ops;
use crate::part::{Part, narrow};
use statescan::Exec;
use statescan::ops::Operation;
use statescan::tensor::{Dense, Tensor};

/// The last step of a scan, with the state that the steps before leave.
pub(super) fn last_step(op: &'static Operation, scan: Call) -> Result<Call> {
    let steps = scan.steps();
    let before = narrow(&scan, &Part([('L', 0..steps - 1)].into()))?;
    let mut results = memory::results(&before, false, Limits::default())?;
    compute::forward(&Exec::cpu(1), &before, &mut results)?;
    let mut call = Call { options: scan.options.clone(), ..Call::new(op) };
    let last = ops::results(scan.op).find(|result| result.is_state).and_then(|result| results.get(result.name));
    if let (Some(argument), Some(state)) = (op.signature.in_place, last) {
        call = call.with(argument.name, state.clone());
    }
    for input in &scan.inputs {
        let view = input.buffer.view();
        let time = input.argument.layout(view.rank()).and_then(|layout| layout.find('L'));
        let last = time.map_or(view, |axis| view.index(axis, steps - 1));
        call = call.with(input.argument.name, Tensor::from_dense(&Dense::from_view(&last), view.dtype()));
    }
    Ok(call)
}
