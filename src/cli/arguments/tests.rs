//! The manual page and the completions of shells in `deploy/debian` are those of this command line.

use clap::CommandFactory;
use clap_complete::Shell;

use super::Arguments;
use crate::reference::assert_current;

const NAME: &str = "kube-interop-proxy";

/// Sections that the command line does not have.
const REST: &str = r#".SH "EXIT STATUS"
.TP
0
A clean stop; no problem; ready.
.TP
1
A failure; problems; not ready; still waiting at the end of the timeout.
.TP
64
Wrong usage or configuration.
.SH FILES
.TP
/etc/kubernetes/kube\-interop\-proxy/proxy.yaml
The configuration, if \fB\-\-config\fR does not name another one.
.TP
/usr/share/doc/kube\-interop\-proxy/examples/config.example.yaml
All keys, with their defaults.
.SH ENVIRONMENT
.TP
RUST_LOG
What \fBrun\fR logs, for example \fBinfo,access=info\fR. It counts more than logging.filter in the configuration.
.SH SIGNALS
.TP
SIGTERM, SIGINT
Stop \fBrun\fR; the second ends it at once.
.SH "SEE ALSO"
\fBkube\-apiserver\fR(1), \fBsystemd.service\fR(5)
"#;

/// One page: the options of each command below its name.
fn manual() -> String {
    let mut command = Arguments::command();
    command.build();
    let page = clap_mangen::Man::new(command.clone()).section("1").date("");
    let mut text = Vec::new();
    page.render_title(&mut text).unwrap();
    page.render_name_section(&mut text).unwrap();
    page.render_synopsis_section(&mut text).unwrap();
    page.render_description_section(&mut text).unwrap();
    text.extend_from_slice(b".SH COMMANDS\n");
    for subcommand in command.get_subcommands() {
        let page = clap_mangen::Man::new(subcommand.clone());
        let mut parts = [Vec::new(), Vec::new(), Vec::new()];
        page.render_synopsis_section(&mut parts[0]).unwrap();
        page.render_description_section(&mut parts[1]).unwrap();
        page.render_options_section(&mut parts[2]).unwrap();
        let [synopsis, description, options] = parts.map(|part| String::from_utf8(part).unwrap());
        text.extend_from_slice(format!(".SS {}\n", subcommand.get_name()).as_bytes());
        let lines = synopsis.lines().chain([".PP"]).chain(description.lines());
        for line in lines.chain(options.lines()) {
            // Once a page, at its head; headings are those of the whole page.
            let once =
                line.starts_with(".SH ") || line.starts_with(".ie ") || line.starts_with(".el ");
            if !once {
                text.extend_from_slice(format!("{line}\n").as_bytes());
            }
        }
    }
    String::from_utf8(text).unwrap() + REST
}

#[test]
fn the_manual_page_in_the_package_is_that_of_the_command_line() {
    assert_current("../deploy/debian/kube-interop-proxy.1", &manual());
}

#[test]
fn the_completions_in_the_package_are_those_of_the_command_line() {
    for (shell, file) in [
        (Shell::Bash, "completion.bash"),
        (Shell::Fish, "completion.fish"),
        (Shell::Zsh, "completion.zsh"),
    ] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut Arguments::command(), NAME, &mut text);
        // clap_complete 4.6 spells a program's name with hyphens in two ways in bash, so options of commands are never
        // completed (clap-rs/clap#6421).
        let text = String::from_utf8(text).unwrap();
        let text = text.replace(
            "kube__subcmd__interop__subcmd__proxy",
            "kube__interop__proxy",
        );
        assert_current(&format!("../deploy/debian/{file}"), &text);
    }
}
