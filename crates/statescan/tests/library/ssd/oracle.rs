//! The oracle against identities.

use super::*;
use statescan::ops::selective_scan;
use statescan::tensor::max_errors;

const EXACT: ErrorBound = ErrorBound { absolute: 1e-13, relative: 1e-13 };

#[track_caller]
fn same(name: &str, got: &Dense, expected: &Dense, bound: ErrorBound) {
    let (absolute, relative, within) = max_errors(got.data(), expected.data(), bound);
    assert!(within, "{name}: {absolute:.2e} ({relative:.2e})");
}

fn small(options: u32) -> Case {
    Case::new(DType::F64, [2, 13, 4, 3, 2, 3], options)
}

#[test]
fn is_a_selective_scan_with_a_scalar_decay_for_each_head() {
    for options in [0, WIDE_SKIP | GATE | BIAS | SOFTPLUS | INITIAL, LIMIT | REVERSE | INITIAL, OWN_DECAY_STEP | BIAS] {
        let case = small(options);
        let inputs = Inputs::new(&case);
        let args = inputs.args(&case);
        let (heads, headdim, dstate) = (case.heads, case.headdim, case.dstate);
        let channels = heads * headdim;
        // (B, L, H, P) -> (B, D, L); one number for each head -> one for each of its channels
        let timed = |view: View<'_>| -> Dense {
            let mut out = Dense::zeros(&[case.batch, channels, case.seqlen]).unwrap();
            for b in 0..case.batch {
                for c in 0..channels {
                    for t in 0..case.seqlen {
                        let index = [b, t, c / headdim, c % headdim];
                        *out.at_mut(&[b, c, t]) = view.at(&index[..view.rank()]);
                    }
                }
            }
            out
        };
        let by_channel = |view: View<'_>, width: usize| -> Dense {
            let mut out = Dense::zeros(&[channels, width]).unwrap();
            for c in 0..channels {
                for n in 0..width {
                    *out.at_mut(&[c, n]) =
                        if view.rank() == 2 { view.at(&[c / headdim, c % headdim]) } else { view.at(&[c / headdim]) };
                }
            }
            out
        };
        let (x, dt, dt_a, z) = (timed(args.x), timed(args.dt), args.dt_a.map(timed), args.z.map(timed));
        let (a, d, bias) = (by_channel(args.a, dstate), args.d.map(|d| by_channel(d, 1)), args.dt_bias.map(|v| by_channel(v, 1)));
        let maps = [args.b, args.c].map(|view| Dense::from_view(&view.permute(&[0, 2, 3, 1])));
        let mut scan =
            selective_scan::Args::new(x.real_view(), dt.real_view(), a.real_view(), maps[0].real_view(), maps[1].real_view());
        scan.z = z.as_ref().map(|v| v.real_view());
        scan.dt_a = dt_a.as_ref().map(|v| v.real_view());
        scan.d = d.as_ref().map(|v| v.real_view().index(1, 0));
        scan.dt_bias = bias.as_ref().map(|v| v.real_view().index(1, 0));
        (scan.dt_softplus, scan.dt_limit, scan.reverse) = (args.dt_softplus, args.dt_limit, args.reverse);
        let initial = args.initial_state.map(|s| {
            let mut out = Dense::zeros(&[case.batch, channels, dstate]).unwrap();
            out.data_mut().copy_from_slice(Dense::from_view(&s).data());
            out
        });
        scan.initial_state = initial.as_ref().map(|v| v.real_view());
        let expected = selective_scan::reference::forward(&scan).unwrap();
        let got = reference::forward(&args).unwrap();
        same("y", &timed(got.y.real_view()), &expected.y, EXACT);
        let (_, _, within) = max_errors(got.final_state.data(), expected.final_state.data(), EXACT);
        assert!(within, "final state");
        // gradients: those shared by the channels of a head add up
        let dy = timed(inputs.dy.view());
        let cotangents = selective_scan::Cotangents::default().y(dy.real_view());
        let expected = selective_scan::reference::backward(&scan, &cotangents).unwrap();
        let got = reference::backward(&args, &Cotangents::default().y(inputs.dy.view())).unwrap();
        same("dx", &timed(got.x.real_view()), &expected.x, EXACT);
        let summed = |by_channel: &Dense| {
            let mut sum = Dense::zeros(&[case.batch, case.seqlen, heads]).unwrap();
            for c in 0..channels {
                for b in 0..case.batch {
                    for t in 0..case.seqlen {
                        *sum.at_mut(&[b, t, c / headdim]) += by_channel.at(&[b, c, t]);
                    }
                }
            }
            sum
        };
        let mut da = Dense::zeros(&[heads]).unwrap();
        for c in 0..channels {
            for n in 0..dstate {
                *da.at_mut(&[c / headdim]) += expected.a.at(&[c, n]);
            }
        }
        same("ddt", &got.dt, &summed(&expected.dt), EXACT);
        for (got, expected) in got.dt_a.iter().zip(&expected.dt_a) {
            same("ddt_a", got, &summed(expected), EXACT);
        }
        same("da", &got.a, &da, EXACT);
        same("db", &Dense::from_view(&got.b.real_view().permute(&[0, 2, 3, 1])), &expected.b, EXACT);
        same("dc", &Dense::from_view(&got.c.real_view().permute(&[0, 2, 3, 1])), &expected.c, EXACT);
    }
}

#[test]
fn without_decay_it_is_a_running_sum() {
    let case = Case::new(DType::F64, [1, 20, 1, 1, 1, 1], 0);
    let mut inputs = Inputs::new(&case);
    inputs.a.fill_with(|| 0.0.into());
    inputs.b.fill_with(|| 1.0.into());
    inputs.c.fill_with(|| 1.0.into());
    let got = reference::forward(&inputs.args(&case)).unwrap();
    let mut sum = 0.0;
    for t in 0..20 {
        sum += inputs.x.view().at(&[0, t, 0, 0]).re * inputs.dt.view().at(&[0, t, 0]).re;
        assert!((got.y.at(&[0, t, 0, 0]).re - sum).abs() < 1e-13);
    }
}
