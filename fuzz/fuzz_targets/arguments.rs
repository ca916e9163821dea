//! Arguments of any shape, stride, type and value, options of any kind, outputs of any layout: an error or a result, never a panic.
#![no_main]

use arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use num_complex::Complex64;
use serde_json::{Value, json};
use statescan::ops::Operation;
use statescan::ops::signature::{Choice, Role};
use statescan::tensor::Tensor;
use statescan::{DType, Exec, Level};
use statescan_cases::call::Call;
use statescan_cases::ops::{self, Options};
use statescan_cases::pass::{self, Planned};
use statescan_cases::rng::Rng;
use statescan_cases::tensors::Tensors;
use statescan_cases::work;
use std::collections::BTreeMap;
use std::sync::LazyLock;

static EXECS: LazyLock<Vec<Exec>> =
    LazyLock::new(|| Level::available().filter_map(|level| Exec::cpu(1).with_level(level).ok()).collect());

/// The size of each letter, now and then another one.
fn size(u: &mut Unstructured<'_>, sizes: &mut BTreeMap<char, usize>, letter: char) -> Result<usize> {
    if u.ratio(1, 30)? {
        return u.int_in_range(0..=5);
    }
    Ok(match sizes.get(&letter) {
        Some(&size) => size,
        None => {
            let size = if u.ratio(1, 12)? { u.int_in_range(5..=70)? } else { u.int_in_range(0..=4)? };
            sizes.insert(letter, size);
            size
        }
    })
}

/// A tensor of a type and shape, dense or in any strides that its memory allows.
fn buffer(u: &mut Unstructured<'_>, dtype: DType, shape: &[usize]) -> Result<Option<Tensor>> {
    if u.ratio(2, 3)? {
        return Ok(Tensor::host(dtype, shape).ok());
    }
    let strides: Vec<isize> = shape.iter().map(|_| u.int_in_range(-9..=9)).collect::<Result<_>>()?;
    let (offset, elements) = (u.int_in_range(0..=400)?, u.int_in_range(0..=4000)?);
    Ok(Tensor::strided(dtype, shape, &strides, offset, elements).ok())
}

fn fill(u: &mut Unstructured<'_>, buffer: &mut Tensor) -> Result<()> {
    let index = buffer.dtype().is_index();
    let seed: [u8; 16] = u.arbitrary()?;
    let mut at = 0;
    buffer.fill_with(|| {
        let byte = seed[at % seed.len()];
        at += 1;
        match byte {
            _ if index => Complex64::from(f64::from(byte % 8) - 1.0),
            250 => Complex64::new(f64::NAN, 1.0),
            251 => Complex64::new(f64::INFINITY, -1.0),
            252 => Complex64::new(-1e30, 1e30),
            _ => Complex64::new(f64::from(byte) / 64.0 - 2.0, f64::from(byte % 16) / 8.0 - 1.0),
        }
    });
    Ok(())
}

/// A value of an option, or now and then of another kind of option.
fn option(u: &mut Unstructured<'_>, choice: &Choice) -> Result<Value> {
    if u.ratio(1, 10)? {
        let others = [json!(null), json!(true), json!(3), json!(-1.5), json!("zoh"), json!([0, 1]), json!({"a": []})];
        return Ok(u.choose(&others)?.clone());
    }
    let numbers = [json!("-inf"), json!("nan"), json!(0.01), json!(0.5), json!(2), json!("inf")];
    Ok(match *choice {
        Choice::Flag(_) => json!(u.arbitrary::<bool>()?),
        Choice::Count(_) => json!(u.int_in_range(0..=70)?),
        Choice::Number(_) => json!(u.choose(&numbers)?),
        Choice::Interval => json!([u.choose(&numbers)?, u.choose(&numbers)?]),
        Choice::Word(words, _) => json!(u.choose(words)?),
    })
}

fn options(u: &mut Unstructured<'_>, op: &'static Operation) -> Result<Options> {
    let mut options = Options::new();
    for spec in op.signature.options {
        if u.ratio(1, 3)? {
            options.insert(spec.name.to_string(), option(u, &spec.choice)?);
        }
    }
    Ok(options)
}

/// The arguments of a call; none if one of them does not fit its memory.
fn call(u: &mut Unstructured<'_>) -> Result<Option<Call>> {
    let all: Vec<_> = ops::all().collect();
    let op = *u.choose(&all)?;
    let options = options(u, op)?;
    let mut call = Call { options, ..Call::new(op) };
    let (complex, mut sizes): (bool, _) = (u.ratio(1, 3)?, BTreeMap::new());
    for argument in ops::arguments(op) {
        if if ops::is_required(op, argument) { u.ratio(1, 60)? } else { u.ratio(1, 2)? } {
            continue;
        }
        let mut shape = Vec::new();
        for letter in u.choose(argument.layouts)?.chars() {
            shape.push(size(u, &mut sizes, letter)?);
        }
        if u.ratio(1, 40)? {
            shape.insert(0, u.int_in_range(0..=2)?);
        }
        let dtypes: &[DType] = match argument.role {
            _ if u.ratio(1, 60)? => &[DType::I32, DType::F32, DType::Complex128],
            Role::Index => &[DType::I32, DType::I64],
            _ if ops::may_be_complex(argument) && complex => &[DType::Complex64, DType::Complex128, DType::F32],
            _ => &[DType::F32, DType::F32, DType::F64, DType::BF16, DType::F16],
        };
        let dtype = *u.choose(dtypes)?;
        let Some(mut tensor) = buffer(u, dtype, &shape)? else { return Ok(None) };
        fill(u, &mut tensor)?;
        call = call.with(argument.name, tensor);
    }
    Ok(Some(call).filter(|call| work::oracle_cost(op, &call.sizes()) <= 2e4))
}

/// Room for results, some of them left out, and cotangents of some; none if there is too much of it.
fn room(u: &mut Unstructured<'_>, call: &Call, planned: Vec<Planned>) -> Result<Option<(Tensors, Tensors)>> {
    let (mut results, mut cotangents) = (Tensors::default(), Tensors::default());
    for plan in planned {
        if plan.shape.iter().product::<usize>() > 1 << 18 {
            return Ok(None);
        }
        if u.ratio(1, 8)? {
            continue;
        }
        let Some(result) = buffer(u, plan.dtype, &plan.shape)? else { return Ok(None) };
        let takes_one = ops::results(call.op).any(|result| result.name == plan.name && result.cotangent);
        if takes_one && u.ratio(3, 4)? {
            let Some(mut cotangent) = buffer(u, plan.dtype, &plan.shape)? else { return Ok(None) };
            fill(u, &mut cotangent)?;
            cotangents.push(plan.name, cotangent);
        }
        results.push(plan.name, result);
    }
    Ok(Some((results, cotangents)))
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let Some(call) = call(u)? else { return Ok(()) };
    let exec = u.choose(&EXECS)?;
    let Ok(planned) = pass::plan(&call, u.arbitrary()?) else { return Ok(()) };
    let Some((mut results, cotangents)) = room(u, &call, planned)? else { return Ok(()) };
    let forward = pass::prepare(&call, &mut results).and_then(|()| pass::forward(exec, &call, &mut results));
    let _ = pass::reference(&call);
    let mut gradients = Tensors::default();
    for input in &call.inputs {
        if u.ratio(3, 4)? {
            let Some(gradient) = buffer(u, input.buffer.dtype(), &input.buffer.shape())? else { return Ok(()) };
            gradients.push(input.argument.name, gradient);
        }
    }
    let saved = if forward.is_ok() { results } else { Tensors::default() };
    let _ = pass::backward(exec, &call, &saved, &cotangents, &mut gradients);
    let _ = pass::reference_backward(&call, &cotangents);
    Ok(())
}

fuzz_target!(|data: &[u8]| {
    // short inputs go on with random numbers that follow from them, so that each describes a whole call
    let mut rng = Rng::new(data.iter().fold(0, |hash: u64, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)));
    let mut bytes = data.to_vec();
    bytes.extend((0..1024).flat_map(|_| rng.bits().to_le_bytes()));
    let _ = run(&mut Unstructured::new(&bytes));
});
