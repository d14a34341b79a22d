//! What the process of each proxy used in a run, as an SVG picture. Pure.

use std::fmt::Write as _;
use std::time::Duration;

use crate::memory::Sample;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 46.0;
const PANEL: f64 = 120.0;
/// Between two panels.
const GAP: f64 = 40.0;
/// So many points has a line at most; each is the greatest of its time.
const POINTS: usize = 240;
/// Of each proxy, in light and in dark surroundings.
const COLOURS: [[&str; 2]; 3] = [
    ["#0a4f9e", "#79b8ff"],
    ["#8a5a00", "#e3b341"],
    ["#1a6b33", "#6fd28c"],
];

struct Panel {
    title: &'static str,
    of: fn(&Sample) -> f64,
}

const PANELS: [Panel; 3] = [
    Panel {
        title: "resident memory, MiB",
        of: |sample| sample.memory as f64 / 1024.0,
    },
    Panel {
        title: "open files",
        of: |sample| sample.files as f64,
    },
    Panel {
        title: "tasks",
        of: |sample| sample.tasks as f64,
    },
];

/// `what`: what the run was. `kept`: the proxy whose process was never ended.
pub fn draw(what: &str, samples: &[Vec<Sample>], kept: usize) -> String {
    let end = samples
        .iter()
        .flatten()
        .map(|sample| sample.at)
        .max()
        .unwrap_or_default();
    let height = TOP + PANELS.len() as f64 * (PANEL + GAP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" aria-labelledby=\"title desc\">\n  \
         <title id=\"title\">Memory, open files and tasks of three proxies: {what}</title>\n  \
         <desc id=\"desc\">{}</desc>\n{}",
        described(samples, kept),
        style()
    );
    let _ = writeln!(
        svg,
        "  <rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\"/>"
    );
    let _ = writeln!(
        svg,
        "  <text x=\"{LEFT}\" y=\"22\">{what}; proxy {kept} ran from the beginning to the end</text>"
    );
    for (number, panel) in PANELS.iter().enumerate() {
        let top = TOP + number as f64 * (PANEL + GAP);
        draw_panel(&mut svg, panel, samples, top, end);
    }
    svg.push_str("</svg>\n");
    svg
}

/// The same in words.
fn described(samples: &[Vec<Sample>], kept: usize) -> String {
    let own = samples.get(kept).map(Vec::as_slice).unwrap_or_default();
    let told = PANELS.iter().map(|panel| {
        let quarter = |from: usize| {
            let part = &own[own.len() * from / 4..own.len() * (from + 1) / 4];
            part.iter().map(panel.of).fold(0.0, f64::max)
        };
        format!(
            "{}: at most {:.0} in the first quarter, {:.0} in the last",
            panel.title,
            quarter(0),
            quarter(3)
        )
    });
    format!("Of proxy {kept}: {}.", told.collect::<Vec<_>>().join("; "))
}

fn style() -> String {
    let mut style = "  <style>\n    .ground { fill: #ffffff; }\n    text { fill: #1f2328; font-family: sans-serif; font-size: 13px; }\n    \
                     .axis { stroke: #57606a; fill: none; }\n    .line { fill: none; stroke-width: 1.5; }\n"
        .to_owned();
    let colours = |scheme: usize| {
        let each = COLOURS.iter().enumerate();
        let rules = each
            .map(|(proxy, colours)| format!("    .p{proxy} {{ stroke: {}; }}\n", colours[scheme]));
        rules.collect::<String>()
    };
    let (light, dark) = (colours(0), colours(1));
    let _ = write!(
        style,
        "{light}    @media (prefers-color-scheme: dark) {{\n    .ground {{ fill: #0d1117; }}\n    text {{ fill: #e6edf3; }}\n    \
         .axis {{ stroke: #9aa4ae; }}\n{dark}    }}\n  </style>\n"
    );
    style
}

fn draw_panel(svg: &mut String, panel: &Panel, samples: &[Vec<Sample>], top: f64, end: Duration) {
    let bottom = top + PANEL;
    let most = samples.iter().flatten().map(panel.of).fold(1.0, f64::max);
    let x = |at: Duration| {
        LEFT + (WIDTH - LEFT - RIGHT) * at.as_secs_f64() / end.as_secs_f64().max(1.0)
    };
    let y = |value: f64| bottom - PANEL * value / most;
    let _ = writeln!(
        svg,
        "  <path class=\"axis\" d=\"M{LEFT} {top}V{bottom}H{}\"/>\n  <text x=\"{LEFT}\" y=\"{}\">{}, 0 to {most:.0}</text>",
        WIDTH - RIGHT,
        top - 6.0,
        panel.title
    );
    for quarter in 1..=4 {
        let at = end * quarter / 4;
        let minutes = at.as_secs_f64() / 60.0;
        let _ = writeln!(
            svg,
            "  <text x=\"{:.0}\" y=\"{}\" text-anchor=\"end\">{minutes:.0} min</text>",
            x(at),
            bottom + 16.0
        );
    }
    for (proxy, samples) in samples.iter().enumerate() {
        for process in samples.chunk_by(|one, next| one.pid == next.pid) {
            let step = samples.len().div_ceil(POINTS).max(1);
            let points = process.chunks(step).map(|some| {
                let value = some.iter().map(panel.of).fold(0.0, f64::max);
                format!("{:.1} {:.1}", x(some[0].at), y(value))
            });
            let points: Vec<_> = points.collect();
            let _ = writeln!(
                svg,
                "  <path class=\"line p{proxy}\" d=\"M{}\"/>",
                points.join("L")
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_a_line_in_each_panel_and_no_more_points_than_one_can_see() {
        let sample = |second: u64, pid| Sample {
            pid,
            at: Duration::from_secs(second),
            memory: 20_480,
            files: 40,
            tasks: second as usize,
        };
        let kept: Vec<_> = (0..14_400)
            .step_by(5)
            .map(|second| sample(second, 1))
            .collect();
        let other: Vec<_> = (0..14_400)
            .step_by(5)
            .map(|second| sample(second, 2 + second as u32 / 4_000))
            .collect();
        let svg = draw("a run", &[kept, other, Vec::new()], 0);
        let lines: Vec<_> = svg
            .lines()
            .filter(|line| line.contains("class=\"line"))
            .collect();
        assert_eq!(lines.len(), PANELS.len() * (1 + 4));
        assert!(lines.iter().all(|line| line.matches('L').count() < POINTS));
        assert!(
            svg.contains("tasks: at most 3595 in the first quarter, 14395 in the last"),
            "{svg}"
        );
    }
}
