//! Runs this machine's kubectl, or another, against any server, as any user, with a separate cache.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::pki::{Pki, SERVER_NAME};

#[derive(Clone)]
pub struct Kubectl {
    program: PathBuf,
    /// What every call begins with.
    arguments: Vec<String>,
    home: PathBuf,
}

#[derive(Clone, Debug)]
pub struct Output {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

impl Kubectl {
    /// Without identity. Its discovery cache goes below `dir`, one for each server.
    pub fn new(addr: SocketAddr, pki: &Pki, dir: &Path) -> Self {
        let home = dir.join("kubectl");
        std::fs::create_dir_all(&home).expect("directory for kubectl");
        let arguments = vec![
            format!("--server=https://{addr}"),
            format!("--certificate-authority={}", pki.file("ca.crt")),
            format!("--tls-server-name={SERVER_NAME}"),
            format!("--cache-dir={}", home.display()),
        ];
        Self {
            program: PathBuf::from("kubectl"),
            arguments,
            home,
        }
    }

    /// In the place of this machine's.
    pub fn program(self, program: PathBuf) -> Self {
        Self { program, ..self }
    }

    /// Empties its cache: the next call asks for discovery again.
    pub fn forget(&self) {
        std::fs::remove_dir_all(&self.home).expect("the directory of kubectl");
        std::fs::create_dir(&self.home).expect("the directory of kubectl");
    }

    pub fn cert(mut self, pki: &Pki, name: &str) -> Self {
        let (cert, key) = (
            pki.file(&format!("{name}.crt")),
            pki.file(&format!("{name}.key")),
        );
        self.arguments.push(format!("--client-certificate={cert}"));
        self.arguments.push(format!("--client-key={key}"));
        self
    }

    pub fn token(mut self, token: &str) -> Self {
        self.arguments.push(format!("--token={token}"));
        self
    }

    /// Standard output; panics with standard error unless it succeeds.
    pub async fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments).await;
        assert!(
            output.success,
            "kubectl {arguments:?} failed\n{}",
            output.stderr
        );
        output.stdout
    }

    pub async fn output(&self, arguments: &[&str]) -> Output {
        self.output_with_input(arguments, "").await
    }

    /// Not started yet, for commands that do not end by themselves.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .args(arguments)
            // No user configuration.
            .env("HOME", &self.home)
            .env_remove("KUBECONFIG");
        command
    }

    /// For `-f -`.
    pub async fn output_with_input(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = self.command(arguments);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let input = input.to_owned();
        let run = tokio::task::spawn_blocking(move || run(command, &input));
        run.await.expect("a thread for kubectl")
    }
}

fn run(mut command: Command, input: &str) -> Output {
    use std::io::Write as _;

    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            super::missing("kubectl", "run tests/install.sh --tests");
        }
        Err(error) => panic!("kubectl does not start: {error}"),
    };
    if let Some(mut stdin) = child.stdin.take() {
        // It may end without reading.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().expect("kubectl's output");
    Output {
        success: output.status.success(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
