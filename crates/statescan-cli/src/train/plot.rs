//! The loss of every step as a picture.

use std::fmt::Write;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const MARGIN: f64 = 48.0;

/// An SVG picture of losses in bits for a byte, with their running mean.
pub(super) fn plot(losses: &[f32]) -> String {
    let highest = losses.iter().fold(1.0, |most: f64, &loss| most.max(f64::from(loss))).ceil();
    let x = |step: usize| MARGIN + (WIDTH - 2.0 * MARGIN) * step as f64 / losses.len().max(2).saturating_sub(1) as f64;
    let y = |loss: f64| HEIGHT - MARGIN - (HEIGHT - 2.0 * MARGIN) * loss / highest;
    let mut mean = f64::from(losses.first().copied().unwrap_or_default());
    let (mut points, mut smooth) = (String::new(), String::new());
    for (step, &loss) in losses.iter().enumerate() {
        mean += 0.05 * (f64::from(loss) - mean);
        // writing to a string cannot fail
        let _ = write!(points, "{:.1},{:.1} ", x(step), y(f64::from(loss)));
        let _ = write!(smooth, "{:.1},{:.1} ", x(step), y(mean));
    }
    let mut lines = String::new();
    for bits in 0..=highest as usize {
        let (left, right, at) = (MARGIN, WIDTH - MARGIN, y(bits as f64));
        let _ = writeln!(lines, r##"<line x1="{left}" y1="{at:.1}" x2="{right}" y2="{at:.1}" stroke="#ddd"/>"##);
        let _ = writeln!(lines, r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{bits}</text>"#, left - 8.0, at + 4.0);
    }
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">
<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>
{lines}<polyline points="{points}" fill="none" stroke="#9bc" stroke-width="1"/>
<polyline points="{smooth}" fill="none" stroke="#036" stroke-width="2"/>
<text x="{MARGIN}" y="24">bits for a byte, {steps} steps</text>
</svg>
"##,
        steps = losses.len()
    )
}
