//! Rounds, medians, and tables in Markdown.

use super::lab::Subject;

/// Everything is measured once in each round, so that what else the machine does hits all alike. The figures of each
/// subject.
pub async fn rounds(
    subjects: &mut [Subject],
    rounds: usize,
    mut measure: impl AsyncFnMut(&mut Subject) -> f64,
) -> Vec<Vec<f64>> {
    let mut figures = vec![Vec::new(); subjects.len()];
    for _ in 0..rounds {
        for (subject, figures) in subjects.iter_mut().zip(&mut figures) {
            figures.push(measure(subject).await);
        }
    }
    figures
}

/// Prints the head of a table with one column for each subject, HAProxy first and the proxy last.
pub fn head(title: &str, names: &[&str]) {
    println!("\n{title}\n");
    println!("| work | {} | ratio | goal |", names.join(" | "));
    println!("|---{}|", "|---".repeat(names.len() + 2));
}

pub fn names(subjects: &[Subject]) -> Vec<&'static str> {
    subjects.iter().map(|subject| subject.name).collect()
}

/// Medians of the subjects' figures, and the median of the rounds' ratios of the last to the first.
pub fn row(work: &str, figures: &[Vec<f64>], goal: &str) {
    let medians: Vec<_> = figures
        .iter()
        .map(|figures| figure(median(figures)))
        .collect();
    println!(
        "| {work} | {} | {} | {goal} |",
        medians.join(" | "),
        ratio(figures)
    );
}

fn ratio(figures: &[Vec<f64>]) -> String {
    let (Some(first), Some(last)) = (figures.first(), figures.last()) else {
        return String::new();
    };
    let ratios: Vec<_> = last
        .iter()
        .zip(first)
        .map(|(ours, theirs)| ours / theirs)
        .collect();
    format!("{:.2}", median(&ratios))
}

/// Three digits.
pub fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}
