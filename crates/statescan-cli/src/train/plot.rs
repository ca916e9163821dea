//! The losses of a training as a picture.

use plotters::prelude::*;
use std::ops::Range;

const SIZE: (u32, u32) = (800, 480);
const LOSS: RGBColor = RGBColor(0xa9, 0xc4, 0xdd);
const MEAN: RGBColor = RGBColor(0x0b, 0x3d, 0x6b);
const HELD_OUT: RGBColor = RGBColor(0xc4, 0x51, 0x1d);
/// At most so many points of a line: more than can be told apart.
const POINTS: usize = 2000;

/// A line's name, colour, width, and its bits by step.
type Line = (&'static str, RGBColor, u32, Vec<(f64, f64)>);

/// An SVG picture of the losses of all steps, their running mean, and what the held-out set took after some steps, in bits for a `unit`.
pub(super) fn plot(losses: &[f32], evaluations: &[(usize, f32)], unit: &str) -> String {
    let mut svg = String::new();
    draw(&mut svg, losses, evaluations, unit).expect("nothing keeps a string from being written");
    svg
}

fn draw(svg: &mut String, losses: &[f32], evaluations: &[(usize, f32)], unit: &str) -> Result<(), Box<dyn std::error::Error>> {
    let last = evaluations.iter().map(|(step, _)| *step).fold(losses.len(), usize::max).max(1);
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut builder = ChartBuilder::on(&area);
    let bounds = (0.0..last as f64, range(losses, evaluations));
    let mut chart = builder.margin(20).x_label_area_size(44).y_label_area_size(60).build_cartesian_2d(bounds.0, bounds.1)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().light_line_style(TRANSPARENT).label_style(("sans-serif", 13));
    mesh.x_desc("step").x_label_formatter(&f64::to_string).y_desc(format!("cross entropy in bits/{unit}")).draw()?;
    for (name, color, width, points) in lines(losses, evaluations) {
        let series = chart.draw_series(LineSeries::new(points, color.stroke_width(width)))?;
        let sample = move |(x, y): (i32, i32)| PathElement::new([(x, y), (x + 28, y)], color.stroke_width(width));
        series.label(name).legend(sample);
    }
    let finite = evaluations.iter().filter(|(_, bits)| bits.is_finite());
    chart.draw_series(finite.map(|&(step, bits)| Circle::new((step as f64, bits.into()), 3, HELD_OUT.filled())))?;
    let mut labels = chart.configure_series_labels();
    labels
        .position(SeriesLabelPosition::UpperRight)
        .legend_area_size(36)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(0xcc, 0xcc, 0xcc))
        .draw()?;
    area.present()?;
    Ok(())
}

/// Returns the lines to draw, without numbers that are not finite and, of a long training, with every so many steps.
fn lines(losses: &[f32], evaluations: &[(usize, f32)]) -> [Line; 3] {
    let every = losses.len().div_ceil(POINTS).max(1);
    let of_steps = |bits: Vec<f64>| -> Vec<(f64, f64)> {
        let points = bits.into_iter().enumerate().step_by(every).map(|(step, bits)| (step as f64, bits));
        points.filter(|(_, bits)| bits.is_finite()).collect()
    };
    let held_out = evaluations.iter().map(|&(step, bits)| (step as f64, f64::from(bits))).filter(|(_, bits)| bits.is_finite());
    [
        ("loss of a step", LOSS, 1, of_steps(losses.iter().map(|&loss| loss.into()).collect())),
        ("its running mean", MEAN, 2, of_steps(running_mean(losses))),
        ("held-out set", HELD_OUT, 2, held_out.collect()),
    ]
}

/// Returns the range of the picture: all finite numbers, with some room.
fn range(losses: &[f32], evaluations: &[(usize, f32)]) -> Range<f64> {
    let all = losses.iter().copied().chain(evaluations.iter().map(|(_, bits)| *bits)).filter(|x| x.is_finite());
    let (low, high) = all.fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    if low > high {
        return 0.0..1.0;
    }
    let room = f64::from((high - low).max(0.1)) * 0.05;
    (f64::from(low) - room).max(0.0)..f64::from(high) + room
}

/// The mean of the losses around each step, as many before as behind it, so that it does not lag; fewer near the ends.
fn running_mean(losses: &[f32]) -> Vec<f64> {
    let mut sums = vec![0.0];
    for &loss in losses {
        sums.push(sums[sums.len() - 1] + f64::from(loss));
    }
    let mean = |step: usize| {
        let reach = (losses.len() / 40).min(step).min(losses.len() - 1 - step);
        (sums[step + reach + 1] - sums[step - reach]) / (2 * reach + 1) as f64
    };
    (0..losses.len()).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_mean_of_a_line_is_the_line() {
        let line: Vec<f32> = (0..1000).map(|step| 8.0 - step as f32 / 200.0).collect();
        for (mean, loss) in running_mean(&line).into_iter().zip(&line) {
            assert!((mean - f64::from(*loss)).abs() < 1e-4, "{mean} beside {loss}");
        }
        assert!(running_mean(&[]).is_empty());
    }

    #[test]
    fn a_picture_has_names_ticks_and_every_evaluation() {
        let losses: Vec<f32> = (0..300).map(|step| 2.0 + 6.0 * (-step as f32 / 60.0).exp()).collect();
        let svg = plot(&losses, &[(100, 3.5), (200, 2.6), (300, 2.4)], "byte");
        for text in ["cross entropy in bits/byte", "step", "loss of a step", "its running mean", "held-out set", "200", "5.0"] {
            assert!(svg.contains(&format!(">\n{text}\n</text>")), "{text}: {svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 3);
        for (losses, evaluations) in [(&[][..], &[][..]), (&[8.0], &[]), (&[f32::NAN, 8.0], &[(2, f32::INFINITY)])] {
            let svg = plot(losses, evaluations, "byte");
            assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
