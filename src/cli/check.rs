//! `check`: every problem of a configuration file and, with `--live`, of what the file names.

use std::path::Path;
use std::process::ExitCode;

use super::doctor::{examine, finding};
use super::{block_on, exit_code, terminal};
use crate::config::{self, Config, Problem};
use crate::server::rotate;
use crate::tls::serving::ServingTls;

pub fn run(path: &Path, live: bool) -> ExitCode {
    exit_code(match live {
        true => look(path),
        false => read(path),
    })
}

fn read(path: &Path) -> Result<bool, String> {
    let config = problems_printed(config::check(path));
    let Some(tls) = config.and_then(|config| serving_tls(&config)) else {
        return Ok(false);
    };
    let warning = tls.warning().map(|warning| format!("warning: {warning}\n"));
    let good = format!("{}: no problems\n", path.display());
    terminal::say(&(warning.unwrap_or_default() + &good)).map(|()| true)
}

fn look(path: &Path) -> Result<bool, String> {
    let findings = block_on(async { Ok(examine(path).await) })?;
    let lines = findings.iter().map(|finding| format!("{finding}\n"));
    let text = lines.collect::<String>() + &finding::summary(&findings) + "\n";
    terminal::say(&text)?;
    let is_problem = |it: &finding::Finding| it.level == finding::Level::Problem;
    Ok(!findings.iter().any(is_problem))
}

/// `None`: there were problems, which were printed.
pub fn problems_printed<T>(result: Result<T, Vec<Problem>>) -> Option<T> {
    let print = |problems: Vec<Problem>| problems.iter().for_each(terminal::complain);
    result.map_err(print).ok()
}

/// What the TLS port would use; `None`: it was printed why it cannot be used.
pub fn serving_tls(config: &Config) -> Option<ServingTls> {
    rotate::serving_tls(config).map_err(terminal::complain).ok()
}
