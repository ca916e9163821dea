//! What other people's implementations computed.

use super::*;
use safetensors::SafeTensors;
use std::path::PathBuf;

fn folder() -> PathBuf {
    let given = std::env::var_os("STATESCAN_VECTORS").map(PathBuf::from);
    given.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vectors"))
}

fn tensor(file: &SafeTensors<'_>, name: &str) -> Option<Buffer> {
    let view = file.tensor(name).ok()?;
    let mut buffer = Buffer::zeros(DType::F32, view.shape()).unwrap();
    let mut values = view.data().chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap()));
    buffer.fill_with(|| Complex64::from(f64::from(values.next().unwrap())));
    Some(buffer)
}

fn close(name: &str, got: &Buffer, expected: &Buffer, factor: f64) {
    assert_close(name, got, &expected.to_dense(), ErrorBound { absolute: 1e-5 * factor, relative: 1e-4 * factor });
}

fn check_file(case: &str) {
    let path = folder().join(format!("ssd_{case}.safetensors"));
    let Ok(bytes) = std::fs::read(&path) else {
        println!("skipped: {} is not there", path.display());
        return;
    };
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let metadata = SafeTensors::read_metadata(&bytes).unwrap().1.metadata().clone().unwrap();
    let input = |name: &str| tensor(&file, &format!("in.{name}"));
    let [x, dt, a, b, c] = ["x", "dt", "A", "B", "C"].map(|name| input(name).unwrap());
    let [d, z, bias] = ["D", "z", "dt_bias"].map(input);
    fn view(buffer: &Option<Buffer>) -> Option<View<'_>> {
        buffer.as_ref().map(|b| b.view())
    }
    let args = Args {
        d: view(&d),
        z: view(&z),
        dt_bias: view(&bias),
        dt_softplus: metadata["case"].contains("\"dt_softplus\": true"),
        ..Args::new(x.view(), dt.view(), a.view(), b.view(), c.view())
    };
    let cotangent = ["y", "final_state"].map(|name| tensor(&file, &format!("cot.{name}")));
    let cotangents = Cotangents { y: view(&cotangent[0]), final_state: view(&cotangent[1]) };
    let oracle = |dense: &Dense| Buffer::from_dense(dense, DType::F64);
    let forward = reference::forward(&args).unwrap();
    let backward = reference::backward(&args, &cotangents).unwrap();
    let exec = Exec::cpu(2);
    let zeros = |shape: &[usize]| Buffer::zeros(DType::F32, shape).unwrap();
    let (mut y, mut last) = (zeros(&x.shape()), zeros(&ssd::final_state_shape(&args).unwrap()));
    ssd::forward(&exec, &args, &mut Outputs { y: Some(y.view_mut()), final_state: Some(last.view_mut()), checkpoints: None })
        .unwrap();
    for (name, got, exact) in [("y", &y, &forward.y), ("final_state", &last, &forward.final_state)] {
        let Some(expected) = tensor(&file, &format!("out.{name}")) else { continue };
        close(&format!("{case}: oracle {name}"), &oracle(exact), &expected, 1.0);
        close(&format!("{case}: {name}"), got, &expected, 1.0);
    }
    let fresh = |like: &Option<Buffer>| zeros(&like.as_ref().map_or(vec![0], |b| b.shape().to_vec()));
    let [mut gx, mut gdt, mut ga, mut gb, mut gc] = [&x, &dt, &a, &b, &c].map(|v| zeros(&v.shape()));
    let [mut gd, mut gz, mut gbias] = [&d, &z, &bias].map(fresh);
    let mut grads = Gradients {
        x: Some(gx.view_mut()),
        dt: Some(gdt.view_mut()),
        a: Some(ga.view_mut()),
        b: Some(gb.view_mut()),
        c: Some(gc.view_mut()),
        d: d.is_some().then(|| gd.view_mut()),
        z: z.is_some().then(|| gz.view_mut()),
        dt_bias: bias.is_some().then(|| gbias.view_mut()),
        initial_state: None,
    };
    ssd::backward(&exec, &args, None, &cotangents, &mut grads).unwrap();
    for (name, ours, got) in [
        ("x", "x", &gx),
        ("dt", "dt", &gdt),
        ("A", "a", &ga),
        ("B", "b", &gb),
        ("C", "c", &gc),
        ("D", "d", &gd),
        ("z", "z", &gz),
        ("dt_bias", "dt_bias", &gbias),
    ] {
        let Some(expected) = tensor(&file, &format!("grad.{name}")) else { continue };
        close(&format!("{case}: oracle's gradient by {name}"), &oracle(of(&backward, ours)), &expected, 10.0);
        close(&format!("{case}: gradient by {name}"), got, &expected, 10.0);
    }
}

#[test]
fn agree_with_the_origins() {
    for case in ["basic", "chunked", "dhp", "full"] {
        check_file(case);
    }
}
