//! The losses of a training as a picture.

use std::fmt::Write;
use std::ops::Range;

const SIZE: [f64; 2] = [800.0, 480.0];
/// Where the axes begin and end, from the left and from the top.
const ACROSS: [f64; 2] = [72.0, 776.0];
const DOWN: [f64; 2] = [20.0, 420.0];
const LOSS: &str = "#a9c4dd";
const MEAN: &str = "#0b3d6b";
const HELD_OUT: &str = "#c4511d";
/// At most so many points of a line: more than can be told apart.
const POINTS: usize = 2000;

/// An SVG picture of the losses of all steps, their running mean, and what the held-out set took after some steps, in bits for a `unit`.
pub(super) fn plot(losses: &[f32], evaluations: &[(usize, f32)], unit: &str) -> String {
    let last = evaluations.iter().map(|(step, _)| *step).fold(losses.len(), usize::max).max(1);
    let axes = Axes { steps: last as f64, bits: range(losses, evaluations) };
    let steps =
        |values: Vec<f64>| -> Vec<(f64, f64)> { values.into_iter().enumerate().map(|(step, y)| (step as f64, y)).collect() };
    let mut all = axes.draw(unit);
    all += &axes.line(&steps(losses.iter().map(|&loss| f64::from(loss)).collect()), LOSS, 1.0);
    all += &axes.line(&steps(running_mean(losses)), MEAN, 2.0);
    let points: Vec<_> = evaluations.iter().map(|&(step, bits)| (step as f64, f64::from(bits))).collect();
    all += &axes.line(&points, HELD_OUT, 1.5);
    for (x, y) in points.into_iter().filter(|(_, bits)| bits.is_finite()) {
        all += &point(axes.x(x), axes.y(y));
    }
    all += &legend();
    let [width, height] = SIZE;
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13" fill="#222">
<rect width="{width}" height="{height}" fill="white"/>
{all}</svg>
"##
    )
}

/// What the axes show.
struct Axes {
    steps: f64,
    bits: Range<f64>,
}

impl Axes {
    fn x(&self, step: f64) -> f64 {
        ACROSS[0] + (ACROSS[1] - ACROSS[0]) * step / self.steps
    }

    fn y(&self, bits: f64) -> f64 {
        DOWN[1] - (DOWN[1] - DOWN[0]) * (bits - self.bits.start) / (self.bits.end - self.bits.start)
    }

    /// Lines at ticks, their numbers, and the names of both axes.
    fn draw(&self, unit: &str) -> String {
        let ([left, right], [top, bottom], mut out) = (ACROSS, DOWN, String::new());
        let (middle, center) = ((left + right) / 2.0, (top + bottom) / 2.0);
        for (bits, number) in ticks(self.bits.clone(), 8) {
            let y = self.y(bits);
            out += &stroke([left, y], [right, y], "#e3e3e3");
            out += &text([left - 8.0, y + 4.5], "end", &number);
        }
        for (step, number) in ticks(0.0..self.steps, 8) {
            let x = self.x(step);
            out += &stroke([x, bottom], [x, bottom + 5.0], "#222");
            out += &text([x, bottom + 21.0], "middle", &number);
        }
        out += &stroke([left, bottom], [right, bottom], "#222");
        out += &stroke([left, top], [left, bottom], "#222");
        out += &text([middle, bottom + 46.0], "middle", "step");
        let name = format!("cross entropy in bits/{unit}");
        let turned = format!(r#"<g transform="rotate(-90 20 {center})">"#);
        out + &turned + &text([20.0, center], "middle", &name) + "</g>\n"
    }

    /// Points in the order of steps, those that are not finite left out.
    fn line(&self, points: &[(f64, f64)], color: &str, width: f64) -> String {
        let every = points.len().div_ceil(POINTS).max(1);
        let mut places = String::new();
        for (i, &(x, y)) in points.iter().enumerate() {
            if (i % every == 0 || i + 1 == points.len()) && y.is_finite() {
                // writing to a string cannot fail
                let _ = write!(places, "{:.1},{:.1} ", self.x(x), self.y(y));
            }
        }
        let places = places.trim_end();
        format!("<polyline points=\"{places}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\"/>\n")
    }
}

/// The names of the lines, in the corner where losses seldom are.
fn legend() -> String {
    let (left, mut y) = (ACROSS[1] - 178.0, DOWN[0] + 22.0);
    let mut out = format!(
        "<rect x=\"{}\" y=\"{}\" width=\"186\" height=\"76\" fill=\"white\" fill-opacity=\"0.85\" stroke=\"#ccc\"/>\n",
        left - 8.0,
        y - 18.0
    );
    for (color, width, name) in [(LOSS, 1.0, "loss of a step"), (MEAN, 2.0, "its running mean"), (HELD_OUT, 1.5, "held-out set")]
    {
        let _ = writeln!(
            out,
            r#"<line x1="{left}" y1="{y}" x2="{}" y2="{y}" stroke="{color}" stroke-width="{width}"/>"#,
            left + 28.0
        );
        if color == HELD_OUT {
            out += &point(left + 14.0, y);
        }
        out += &text([left + 38.0, y + 4.5], "start", name);
        y += 22.0;
    }
    out
}

fn point(x: f64, y: f64) -> String {
    format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{HELD_OUT}\"/>\n")
}

fn stroke([x1, y1]: [f64; 2], [x2, y2]: [f64; 2], color: &str) -> String {
    format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{color}\"/>\n")
}

fn text([x, y]: [f64; 2], anchor: &str, text: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n")
}

/// Round numbers in a range, at most `most` of them, and how they are written.
fn ticks(range: Range<f64>, most: usize) -> Vec<(f64, String)> {
    let rough = (range.end - range.start) / most as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| *step >= rough).unwrap_or(rough);
    let digits = (-step.log10().floor()).max(0.0) as usize;
    let (first, last) = ((range.start / step).ceil() as i64, (range.end / step).floor() as i64);
    (first..=last).map(|i| i as f64 * step).map(|tick| (tick, format!("{tick:.digits$}"))).collect()
}

/// What the picture shows: everything that is finite, with some room.
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
    fn ticks_are_round_and_few() {
        let numbers = |range, most| ticks(range, most).into_iter().map(|(_, number)| number).collect::<Vec<_>>();
        assert_eq!(numbers(0.0..1300.0, 8), ["0", "200", "400", "600", "800", "1000", "1200"]);
        assert_eq!(numbers(1.9..8.2, 8), ["2", "3", "4", "5", "6", "7", "8"]);
        assert_eq!(numbers(2.01..2.12, 8), ["2.02", "2.04", "2.06", "2.08", "2.10", "2.12"]);
        assert_eq!(numbers(0.0..1.0, 8), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
    }

    #[test]
    fn a_picture_has_names_ticks_and_every_evaluation() {
        let losses: Vec<f32> = (0..300).map(|step| 2.0 + 6.0 * (-step as f32 / 60.0).exp()).collect();
        let svg = plot(&losses, &[(100, 3.5), (200, 2.6), (300, 2.4)], "byte");
        for text in ["cross entropy in bits/byte", "step", "loss of a step", "its running mean", "held-out set", "200", "5"] {
            assert!(svg.contains(&format!(">{text}</text>")), "{text}: {svg}");
        }
        // three points, and that of the legend
        assert_eq!(svg.matches("<circle").count(), 4);
        for (losses, evaluations) in [(&[][..], &[][..]), (&[8.0], &[]), (&[f32::NAN, 8.0], &[(2, f32::INFINITY)])] {
            let svg = plot(losses, evaluations, "byte");
            assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
