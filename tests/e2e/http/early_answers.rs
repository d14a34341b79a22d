//! Answers before the end of the request's body: no client loses them, over any protocol.

use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use testkit::cluster::{Ground, Single};
use testkit::double::{DoubleOptions, Phase, v1_20};
use testkit::kube::cache;
use testkit::pki::LeafOptions;
use testkit::process::{NotFound, Process};
use testkit::proxy::Until;

const PATH: &str = "/api/v1/namespaces/default/configmaps";
/// How often each size is sent.
const SIZES: [(usize, usize); 3] = [(300, 100), (100_000, 100), (2_000_000, 10)];
const PATIENCE: Duration = Duration::from_secs(300);

/// Who is refused, and the header with which: strangers, and who asks for an apiserver that is initialized.
const REFUSED: [(&str, u16, &str); 2] = [
    ("admin", 503, "X-Kubernetes-If-Ready"),
    ("stranger", 401, "X-Some"),
];

/// An apiserver that is not initialized, behind a proxy.
async fn world() -> Single {
    let mut ground = Ground::new().await;
    ground.pki.add_ca("stranger-ca", "stranger");
    let stranger = LeafOptions::client("stranger");
    ground.pki.leaf("stranger", "stranger-ca", &stranger);
    for (size, _) in SIZES {
        std::fs::write(ground.dir.path().join(size.to_string()), vec![b'x'; size]).unwrap();
    }
    let double = DoubleOptions::new(ground.pki.dir(), v1_20()).phase(Phase::NotReady);
    Single::on(ground, double, |options| options.until(Until::Live)).await
}

fn file(world: &Single, name: &str) -> String {
    let path = world.ground.dir.path().join(name);
    path.to_str().unwrap().to_owned()
}

/// Runs a program; what it said.
async fn run(world: &Single, name: &str, mut command: Command, remedy: &str) -> String {
    let log = world.ground.dir.path().join(format!("{name}.log"));
    // Of an earlier run.
    let _ = std::fs::remove_file(&log);
    let mut process = match Process::spawn(name, &mut command, &log) {
        Ok(process) => process,
        Err(NotFound) => testkit::missing(name, remedy),
    };
    let status = process.wait(PATIENCE).await;
    assert!(status.success(), "{status}\n{}", process.log_tail());
    std::fs::read_to_string(log).unwrap()
}

/// Sends a body so often, each on a connection of its own or all on one; all codes, and how each came to its end.
async fn curl(
    world: &Single,
    (certificate, header): (&str, &str),
    size: usize,
    times: usize,
    version: &str,
) -> String {
    let (body, mut config) = (file(world, &size.to_string()), String::new());
    for _ in 0..times {
        writeln!(config, "next\nurl = https://{}{PATH}", world.proxy.addr()).unwrap();
        for (option, value) in [
            ("data-binary", format!("@{body}")),
            ("cert", world.ground.pki.file(&format!("{certificate}.crt"))),
            ("key", world.ground.pki.file(&format!("{certificate}.key"))),
            ("header", format!("{header}: 1")),
            ("header", "Content-Type: application/json".to_owned()),
            ("output", "/dev/null".to_owned()),
            ("write-out", "%{http_code} %{exitcode}\\n".to_owned()),
        ] {
            writeln!(config, "{option} = \"{value}\"").unwrap();
        }
        writeln!(config, "insecure\nsilent\n{version}").unwrap();
    }
    let name = format!("curl-{certificate}-{size}-{version}");
    std::fs::write(file(world, &name), config.trim_start_matches("next\n")).unwrap();
    let mut command = Command::new("curl");
    command.args(["--config", &file(world, &name)]);
    run(world, &name, command, "apt-get install curl").await
}

#[tokio::test]
async fn curl_loses_no_refusal_of_what_it_uploads() {
    let world = world().await;
    for (certificate, code, header) in REFUSED {
        for version in ["http2", "http1.1"] {
            for (size, times) in SIZES {
                let said = curl(&world, (certificate, header), size, times, version).await;
                let expected = format!("{code} 0\n").repeat(times);
                assert_eq!(said, expected, "{certificate}, {version}, {size} bytes");
            }
        }
    }
}

#[tokio::test]
async fn pythons_client_loses_no_refusal_of_what_it_uploads() {
    const PROGRAM: &str = r#"
import http.client, ssl, sys
host, port, cert, key, path, header, size, times = sys.argv[1:]
context = ssl._create_unverified_context()
context.load_cert_chain(cert, key)
for _ in range(int(times)):
    connection = http.client.HTTPSConnection(host, int(port), context=context)
    connection.request("POST", path, b"x" * int(size), {header: "1"})
    answer = connection.getresponse()
    print(answer.status, len(answer.read()) > 0)
"#;
    let world = world().await;
    let addr = world.proxy.addr();
    for (certificate, code, header) in REFUSED {
        for (size, times) in SIZES {
            let mut command = Command::new("/usr/bin/python3");
            let pki = |end| world.ground.pki.file(&format!("{certificate}.{end}"));
            command.args([
                "-c",
                PROGRAM,
                &addr.ip().to_string(),
                &addr.port().to_string(),
            ]);
            command.args([
                &pki("crt"),
                &pki("key"),
                PATH,
                header,
                &size.to_string(),
                &times.to_string(),
            ]);
            let said = run(&world, "python3", command, "apt-get install python3").await;
            assert_eq!(
                said,
                format!("{code} True\n").repeat(times),
                "{certificate}, {size} bytes"
            );
        }
    }
}

#[tokio::test]
async fn gos_client_loses_no_refusal_of_what_it_uploads() {
    const PROGRAM: &str = r#"package main

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
)

func main() {
	url, cert, key := os.Args[1], os.Args[2], os.Args[3]
	size, _ := strconv.Atoi(os.Args[4])
	times, _ := strconv.Atoi(os.Args[5])
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		panic(err)
	}
	// Whatever CAs the server names.
	mine := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	config := &tls.Config{GetClientCertificate: mine, InsecureSkipVerify: true}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: os.Args[6] == "2"}}
	for i := 0; i < times; i++ {
		request, _ := http.NewRequest("POST", url, bytes.NewReader(make([]byte, size)))
		request.Header.Set(os.Args[7], "1")
		answer, err := client.Do(request)
		if err != nil {
			fmt.Println(err)
			continue
		}
		body, err := io.ReadAll(answer.Body)
		fmt.Println(answer.StatusCode, answer.ProtoMajor, len(body) > 0, err)
		answer.Body.Close()
	}
}
"#;
    let world = world().await;
    std::fs::write(file(&world, "main.go"), PROGRAM).unwrap();
    let mut command = Command::new("/usr/lib/go/bin/go");
    command
        .args([
            "build",
            "-o",
            &file(&world, "uploader"),
            &file(&world, "main.go"),
        ])
        .env("GOCACHE", cache().join("go-build"))
        .envs([
            ("GO111MODULE", "off"),
            ("GOENV", "off"),
            ("CGO_ENABLED", "0"),
        ]);
    run(&world, "go", command, "run tests/install.sh --kubernetes").await;
    let url = format!("https://{}{PATH}", world.proxy.addr());
    for (certificate, code, header) in REFUSED {
        let pki = |end| world.ground.pki.file(&format!("{certificate}.{end}"));
        for version in ["2", "1"] {
            for (size, times) in SIZES {
                let mut command = Command::new(file(&world, "uploader"));
                command.args([&url, &pki("crt"), &pki("key"), &size.to_string()]);
                command.args([&times.to_string(), version, header]);
                let said = run(&world, "uploader", command, "").await;
                let expected = format!("{code} {version} true <nil>\n").repeat(times);
                assert_eq!(said, expected, "{certificate}, {size} bytes");
            }
        }
    }
}
