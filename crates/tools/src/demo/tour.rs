//! Runs a step: runs and prints commands, checks answers, and prints a table at the end.

mod known;
mod steps;

use std::net::SocketAddr;
use std::time::Instant;

use crate::shell::{self, Answer, Output};
use crate::stage::Stage;
use crate::terminal::Terminal;

const REROUTED: &str = "kubernetes_apiserver_rerouted_request_total";

pub struct Tour {
    terminal: Terminal,
    stage: Stage,
    started: Instant,
    step: usize,
    checks: Vec<Check>,
}

/// One line of the table at the end.
struct Check {
    step: usize,
    what: &'static str,
    expected: String,
    seen: String,
    ok: bool,
}

impl Tour {
    pub fn new(terminal: Terminal, stage: Stage) -> Self {
        Self {
            terminal,
            stage,
            started: Instant::now(),
            step: 0,
            checks: Vec::new(),
        }
    }

    /// Prints the table; whether everything was as expected.
    pub fn summary(&self) -> bool {
        self.terminal.plain("");
        self.terminal.title("Summary");
        let row = |step: &str, what: &str, expected: &str, seen: &str, ok: &str| {
            let line = format!("  {step:>4}  {what:29}  {expected:31}  {seen:31}  {ok}");
            self.terminal.plain(line.trim_end());
        };
        row("step", "what", "expected", "seen", "");
        for check in &self.checks {
            row(
                &check.step.to_string(),
                check.what,
                &check.expected,
                &fitting(&check.seen),
                &self.terminal.mark(check.ok),
            );
        }
        let failed = self.checks.iter().filter(|check| !check.ok).count();
        let seconds = self.started.elapsed().as_secs_f64();
        let count = self.checks.len();
        if failed == 0 {
            self.terminal.plain(format!(
                "\nAll {count} checks are as expected, after {seconds:.0} s."
            ));
        } else {
            self.terminal.plain(format!(
                "\n{failed} of {count} checks are NOT as expected, after {seconds:.0} s. The ends of the proxies' logs:"
            ));
            for pair in [&self.stage.a, &self.stage.b] {
                self.terminal.plain(pair.proxy.log_tail());
            }
        }
        failed == 0
    }

    /// For people who want to go on by themselves.
    pub fn tell_where_everything_is(&self) {
        let stage = &self.stage;
        self.terminal.plain("");
        self.terminal.title("Everything stays up until Ctrl-C");
        let kubectl = format!("kubectl --kubeconfig={}", stage.kubeconfig.display());
        for (what, value) in [
            (
                "certificates, kubeconfig",
                stage.commands_run_in().display().to_string(),
            ),
            (
                "configurations, logs",
                stage.dir.path().display().to_string(),
            ),
            ("proxy A", format!("https://{}", stage.a.proxy.addr())),
            ("proxy B", format!("https://{}", stage.b.proxy.addr())),
            (
                "A's metrics, health, status",
                format!("http://{}/", stage.a.proxy.admin()),
            ),
            (
                "B's metrics, health, status",
                format!("http://{}/", stage.b.proxy.admin()),
            ),
            (
                "kubectl through A's proxy",
                format!("{kubectl} --context=a get namespaces"),
            ),
            (
                "kubectl through B's proxy",
                format!("{kubectl} --context=b get hpa -A"),
            ),
        ] {
            self.terminal.plain(format!("  {what:28} {value}"));
        }
        self.terminal.plain("");
        self.terminal
            .plain("For the curl commands above: cd to the certificates first.");
    }

    fn heading(&mut self, text: &str) {
        self.step += 1;
        self.terminal.heading(self.step, text);
    }

    fn proxy_a(&self) -> SocketAddr {
        self.stage.a.proxy.addr()
    }

    async fn run(&self, line: &str) -> Output {
        self.terminal.command(line);
        shell::run(line, self.stage.commands_run_in()).await
    }

    /// Runs a curl command, shows what came back, and notes whether status and headers are as expected.
    async fn expect(
        &mut self,
        what: &'static str,
        line: &str,
        code: u16,
        headers: &[(&str, &str)],
    ) -> Answer {
        let output = self.run(line).await;
        let answer = Answer::parse(&output);
        for line in answer.lines() {
            self.terminal.answer(line);
        }
        let mut expected = code.to_string();
        let mut seen = answer.code.to_string();
        for (name, value) in headers {
            let short = name.trim_start_matches("X-Kubernetes-");
            expected.push_str(&format!(", {short} {value}"));
            match answer.header(name) {
                Some(value) => seen.push_str(&format!(", {short} {value}")),
                None => seen.push_str(&format!(", no {short}")),
            }
        }
        let ok = expected == seen;
        self.check(what, &expected, seen, ok);
        answer
    }

    fn check(&mut self, what: &'static str, expected: &str, seen: String, ok: bool) {
        let text = match ok {
            true => format!("{what}: {seen}"),
            false => format!("{what}: expected {expected}, seen {seen}"),
        };
        self.terminal.verdict(ok, &text);
        self.checks.push(Check {
            step: self.step,
            what,
            expected: expected.to_owned(),
            seen,
            ok,
        });
    }

    /// Successful reroutes of A's proxy, as its metrics tell.
    async fn rerouted_so_far(&self) -> u64 {
        let admin = self.stage.a.proxy.admin();
        let line = format!("curl -sS http://{admin}/metrics | grep '^{REROUTED}'");
        let output = self.run(&line).await;
        let lines: Vec<_> = output.stdout.lines().collect();
        if lines.is_empty() {
            self.terminal
                .answer("(no such line yet: nothing was rerouted so far)");
        }
        for line in &lines {
            self.terminal.plain(format!("    {line}"));
        }
        let counts = lines.iter().filter_map(|line| line.rsplit(' ').next());
        counts.filter_map(|count| count.parse::<u64>().ok()).sum()
    }

    async fn has_kubectl(&self) -> bool {
        let dir = self.stage.commands_run_in();
        shell::run("kubectl version --client", dir).await.success
    }
}

/// A table's cell.
fn fitting(text: &str) -> String {
    const WIDTH: usize = 31;
    match text.char_indices().nth(WIDTH) {
        Some(_) => text.chars().take(WIDTH - 3).chain("...".chars()).collect(),
        None => text.to_owned(),
    }
}
