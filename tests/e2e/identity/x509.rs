//! Client certificates of all kinds, sent to a real kube-apiserver directly and through the proxy: both accept or
//! reject alike.

use std::net::SocketAddr;
use std::process::Command;

use tokio::task::JoinSet;

use testkit::cluster::Ground;
use testkit::kube::{self, KubeApiServer, Need};
use testkit::openssl::{Forge, Wanted};
use testkit::pki::SERVER_NAME;
use testkit::proxy::{Proxy, Until};

/// Only administrators may, and every certificate here is one's.
const PATH: &str = "/api/v1/namespaces";
const GOOD: u16 = 200;
/// The certificate counts for nothing.
const BAD: u16 = 401;
/// The client has nothing to sign with that the server knows, and comes without its certificate.
const ANONYMOUS: u16 = 403;
/// Clients that ask beside each other.
const AT_ONCE: usize = 8;
/// So many requests each of them sends: to start curl takes longer.
const IN_A_ROW: usize = 40;
const CLIENT: &str = "openssl_conf = it\n[it]\nssl_conf = ssl\n[ssl]\nsystem_default = lax\n[lax]\n\
    CipherString = DEFAULT@SECLEVEL=0\n";

/// A certificate, what is presented with it, and what kube-apiserver says.
struct Case {
    name: String,
    /// TLS 1.2 and TLS 1.3.
    expected: [u16; 2],
}

/// Makes certificates, and trusts some.
struct Table {
    forge: Forge,
    trusted: Vec<String>,
    cases: Vec<Case>,
}

impl Table {
    fn root(&mut self, name: &str, wanted: &Wanted) {
        self.forge.root(name, wanted);
        self.trusted.push(name.to_owned());
    }

    /// Presents `leaf` and `between`.
    fn case(&mut self, name: &str, leaf: &str, between: &[&str], expected: u16) {
        let mut chain = vec![leaf];
        chain.extend(between);
        self.forge.join(&format!("case-{name}.crt"), &chain);
        let key = self.forge.path(&format!("case-{name}.key"));
        std::fs::copy(self.forge.path(&format!("{leaf}.key")), key).unwrap();
        self.cases.push(Case {
            name: name.to_owned(),
            expected: [expected; 2],
        });
    }

    /// A leaf that is presented alone.
    fn leaf(&mut self, name: &str, issuer: &str, wanted: &Wanted, expected: u16) {
        self.forge.issue(name, issuer, wanted);
        self.case(name, name, &[], expected);
    }

    /// A leaf below an authority of its own, both presented.
    fn below(&mut self, name: &str, authority: &Wanted, leaf: &Wanted, expected: u16) {
        let between = format!("{name}-ca");
        self.forge.issue(&between, "root", authority);
        self.forge.issue(name, &between, leaf);
        self.case(name, name, &[&between], expected);
    }

    /// A leaf below a root of its own.
    fn under(&mut self, name: &str, root: &Wanted, leaf: &Wanted, expected: u16) {
        let root_name = format!("{name}-root");
        self.root(&root_name, root);
        self.leaf(name, &root_name, leaf, expected);
    }

    fn keys(&mut self) {
        for (name, algorithm) in [
            ("rsa-2048", "rsa:2048"),
            ("rsa-3072", "rsa:3072"),
            ("rsa-4096", "rsa:4096"),
            ("rsa-8192", "rsa:8192"),
            ("p256", "ec:P-256"),
            ("p384", "ec:P-384"),
            ("p521", "ec:P-521"),
            ("ed25519", "ed25519"),
        ] {
            self.forge.key(name, algorithm);
            self.leaf(name, "root", &Wanted::client(), GOOD);
        }
        self.forge.key("p224", "ec:P-224");
        self.leaf("p224", "root", &Wanted::client(), GOOD);
        // TLS 1.3 has no word for this curve.
        self.cases.last_mut().unwrap().expected = [GOOD, ANONYMOUS];
        self.forge.key("rsa-pss-key", "rsa-pss");
        self.leaf("rsa-pss-key", "root", &Wanted::client(), ANONYMOUS);
    }

    fn signatures(&mut self) {
        for (kind, algorithm) in [
            ("rsa", "rsa:2048"),
            ("rsa-8192", "rsa:8192"),
            ("p224", "ec:P-224"),
            ("p256", "ec:P-256"),
            ("p384", "ec:P-384"),
            ("p521", "ec:P-521"),
        ] {
            let ca = format!("by-{kind}");
            self.forge.key(&ca, algorithm);
            self.root(&ca, &Wanted::authority(&ca));
            for (hash, expected) in [
                ("sha1", BAD),
                ("sha224", BAD),
                ("sha256", GOOD),
                ("sha384", GOOD),
                ("sha512", GOOD),
            ] {
                let wanted = Wanted::client().hash(hash);
                self.leaf(&format!("{ca}-{hash}"), &ca, &wanted, expected);
                if kind == "rsa" && expected == GOOD {
                    self.leaf(&format!("{ca}-pss-{hash}"), &ca, &wanted.pss(), expected);
                }
            }
        }
        self.forge.key("by-ed25519", "ed25519");
        self.root("by-ed25519", &Wanted::authority("by-ed25519"));
        self.leaf("by-ed25519-leaf", "by-ed25519", &Wanted::client(), GOOD);
    }

    fn versions(&mut self) {
        self.leaf("v1", "root", &Wanted::bare(), GOOD);
        self.forge.issue_as_usual("v1-as-usual", "root");
        self.case("v1-as-usual", "v1-as-usual", &[], GOOD);
        for name in ["v1", "v1-as-usual"] {
            assert_eq!(self.forge.version(name), 1, "{name}");
        }
        self.under(
            "v1-root",
            &Wanted::new("/CN=v1-root"),
            &Wanted::client(),
            GOOD,
        );
        self.below(
            "v1-between",
            &Wanted::new("/CN=v1-between"),
            &Wanted::client(),
            BAD,
        );
        let ca = Wanted::client().extension("basicConstraints=critical,CA:TRUE");
        self.leaf("ca-leaf", "root", &ca, GOOD);
        let plain = Wanted::client().extension("basicConstraints=CA:FALSE");
        self.leaf("plain-leaf", "root", &plain, GOOD);
        for (name, extension) in [
            ("no-ca", "basicConstraints=critical,CA:FALSE"),
            ("no-word", "subjectKeyIdentifier=hash"),
        ] {
            let wanted = |cn: &str| Wanted::new(&format!("/CN={cn}")).extension(extension);
            let root = format!("{name}-root");
            self.under(&root, &wanted(&root), &Wanted::client(), BAD);
            let between = format!("{name}-between");
            self.below(&between, &wanted(&between), &Wanted::client(), BAD);
        }
    }

    fn times(&mut self) {
        let client = Wanted::client;
        self.leaf("expired", "root", &client().expired(), BAD);
        self.leaf("not-yet", "root", &client().not_yet(), BAD);
        self.below(
            "expired-between",
            &Wanted::authority("past").expired(),
            &client(),
            BAD,
        );
        self.below(
            "not-yet-between",
            &Wanted::authority("later").not_yet(),
            &client(),
            BAD,
        );
        self.under(
            "expired-root",
            &Wanted::authority("past root").expired(),
            &client(),
            BAD,
        );
        self.under(
            "not-yet-root",
            &Wanted::authority("later root").not_yet(),
            &client(),
            BAD,
        );
    }

    fn path_lengths(&mut self) {
        let limited = |cn: &str, most: u8| {
            let line = format!("basicConstraints=critical,CA:TRUE,pathlen:{most}");
            Wanted::new(&format!("/CN={cn}")).extension(&line)
        };
        let client = Wanted::client;
        self.below("path-kept", &limited("path-kept", 0), &client(), GOOD);
        self.under(
            "path-kept-root",
            &limited("path-kept-root", 0),
            &client(),
            GOOD,
        );
        for (most, expected) in [(0, BAD), (1, GOOD)] {
            let [root, between, leaf] =
                ["root", "between", "leaf"].map(|part| format!("path-{most}-{part}"));
            self.root(&root, &limited(&root, most));
            self.forge
                .issue(&between, &root, &Wanted::authority(&between));
            self.forge.issue(&leaf, &between, &client());
            self.case(&leaf, &leaf, &[&between], expected);
        }
    }

    fn names(&mut self) {
        let root = |cn: &str, line: &str| {
            Wanted::authority(cn).extension(&format!("nameConstraints={line}"))
        };
        for (name, constraint, alternative, expected) in [
            (
                "dns-in",
                "permitted;DNS:example.com",
                "DNS:a.example.com",
                GOOD,
            ),
            (
                "dns-same",
                "permitted;DNS:example.com",
                "DNS:EXAMPLE.com",
                GOOD,
            ),
            (
                "dns-out",
                "permitted;DNS:example.com",
                "DNS:a.example.org",
                BAD,
            ),
            (
                "dns-like",
                "permitted;DNS:example.com",
                "DNS:anexample.com",
                BAD,
            ),
            (
                "dns-below",
                "permitted;DNS:.example.com",
                "DNS:example.com",
                BAD,
            ),
            (
                "dns-excluded",
                "excluded;DNS:example.com",
                "DNS:a.example.com",
                BAD,
            ),
            (
                "dns-not-excluded",
                "excluded;DNS:example.com",
                "DNS:example.org",
                GOOD,
            ),
            (
                "dns-star",
                "permitted;DNS:example.com",
                "DNS:*.example.com",
                GOOD,
            ),
            (
                "ip-in",
                "permitted;IP:10.0.0.0/255.0.0.0",
                "IP:10.1.2.3",
                GOOD,
            ),
            (
                "ip-out",
                "permitted;IP:10.0.0.0/255.0.0.0",
                "IP:192.0.2.1",
                BAD,
            ),
            (
                "ip-six",
                "permitted;IP:10.0.0.0/255.0.0.0",
                "IP:2001:db8::1",
                BAD,
            ),
            (
                "ip-excluded",
                "excluded;IP:10.0.0.0/255.0.0.0",
                "IP:10.1.2.3",
                BAD,
            ),
            (
                "email-in",
                "permitted;email:example.com",
                "email:joe@example.com",
                GOOD,
            ),
            (
                "email-out",
                "permitted;email:example.com",
                "email:joe@example.org",
                BAD,
            ),
            (
                "email-same",
                "permitted;email:joe@example.com",
                "email:joe@EXAMPLE.com",
                GOOD,
            ),
            (
                "email-other",
                "permitted;email:joe@example.com",
                "email:Joe@example.com",
                BAD,
            ),
            (
                "uri-in",
                "permitted;URI:example.com",
                "URI:spiffe://example.com/joe",
                GOOD,
            ),
            (
                "uri-port",
                "permitted;URI:example.com",
                "URI:https://a.example.com:1/",
                GOOD,
            ),
            (
                "uri-out",
                "permitted;URI:example.com",
                "URI:spiffe://example.org/joe",
                BAD,
            ),
            (
                "uri-ip",
                "permitted;URI:example.com",
                "URI:https://192.0.2.1/",
                BAD,
            ),
            (
                "uri-none",
                "permitted;URI:example.com",
                "URI:urn:uuid:1",
                BAD,
            ),
            (
                "other-kind",
                "permitted;DNS:example.com",
                "IP:192.0.2.1",
                GOOD,
            ),
            ("no-name", "permitted;DNS:example.com", "", GOOD),
        ] {
            let name = format!("names-{name}");
            let leaf = match alternative {
                "" => Wanted::client(),
                _ => Wanted::client().extension(&format!("subjectAltName={alternative}")),
            };
            self.under(
                &name,
                &root(&name, &format!("critical,{constraint}")),
                &leaf,
                expected,
            );
        }
        let joe = Wanted::client().extension("subjectAltName=DNS:a.example.org");
        let line = "critical,permitted;DNS:example.com";
        self.below("names-between", &root("names-between", line), &joe, BAD);
        // Go understands no directory names.
        for (name, critical, expected) in [("dn", "", GOOD), ("dn-critical", "critical,", BAD)] {
            let name = format!("names-{name}");
            let line = format!("{critical}permitted;dirName:other\n[other]\nO=other");
            self.under(&name, &root(&name, &line), &Wanted::client(), expected);
        }
        let odd = Wanted::client().extension("subjectAltName=DNS:a..example.com");
        self.leaf("names-odd", "root", &odd, GOOD);
    }

    fn extensions(&mut self) {
        const UNKNOWN: &str = "1.2.3.4.5=critical,DER:05:00";
        let client = Wanted::client;
        let authority = Wanted::authority;
        self.leaf(
            "unknown",
            "root",
            &client().extension("1.2.3.4.5=DER:05:00"),
            GOOD,
        );
        self.leaf(
            "unknown-critical",
            "root",
            &client().extension(UNKNOWN),
            BAD,
        );
        let odd = |cn: &str| authority(cn).extension(UNKNOWN);
        self.below("unknown-between", &odd("unknown-between"), &client(), BAD);
        self.under("unknown-root", &odd("unknown-root"), &client(), BAD);
        let policy = "policyConstraints=critical,requireExplicitPolicy:0";
        self.below(
            "policy",
            &authority("policy").extension(policy),
            &client(),
            BAD,
        );
        let all = client().extension("keyUsage=critical,digitalSignature\nsubjectKeyIdentifier=hash\n\
            authorityKeyIdentifier=keyid\ncertificatePolicies=1.2.3.4\n\
            authorityInfoAccess=OCSP;URI:http://a.example/\ncrlDistributionPoints=URI:http://a.example/");
        self.leaf("all", "root", &all, GOOD);
        for (usage, expected) in [
            ("digitalSignature", BAD),
            ("keyCertSign", GOOD),
            ("cRLSign,keyCertSign", GOOD),
        ] {
            let name = format!("may-{usage}");
            let line = format!("keyUsage=critical,{usage}");
            self.below(
                &name,
                &authority(&name).extension(&line),
                &client(),
                expected,
            );
        }
    }

    fn usages(&mut self) {
        let usage = |wanted: Wanted, usages: &str| match usages {
            "" => wanted,
            _ => wanted.extension(&format!("extendedKeyUsage={usages}")),
        };
        // With one extension at least, so that they are of X.509 v3.
        let leaf = || Wanted::bare().extension("basicConstraints=CA:FALSE");
        for (name, root, between, own, expected) in [
            ("none", "", "", "", GOOD),
            ("client", "", "", "clientAuth", GOOD),
            ("server", "", "", "serverAuth", BAD),
            ("both", "", "", "serverAuth,clientAuth", GOOD),
            ("any", "", "", "anyExtendedKeyUsage", GOOD),
            ("code", "", "", "codeSigning", BAD),
            ("odd", "", "", "1.2.3.4.5", BAD),
            ("between-client", "", "clientAuth", "", GOOD),
            ("between-server", "", "serverAuth", "clientAuth", BAD),
            ("between-server-none", "", "serverAuth", "", BAD),
            ("between-any", "", "anyExtendedKeyUsage", "clientAuth", GOOD),
            ("between-odd", "", "1.2.3.4.5", "clientAuth", BAD),
            (
                "root-client",
                "clientAuth",
                "clientAuth",
                "clientAuth",
                GOOD,
            ),
            ("root-server", "serverAuth", "", "clientAuth", BAD),
        ] {
            let [root_name, between_name, name] =
                ["-root", "-between", ""].map(|part| format!("usage-{name}{part}"));
            self.root(&root_name, &usage(Wanted::authority(&root_name), root));
            let authority = usage(Wanted::authority(&between_name), between);
            self.forge.issue(&between_name, &root_name, &authority);
            self.forge.issue(&name, &between_name, &usage(leaf(), own));
            self.case(&name, &name, &[&between_name], expected);
        }
    }

    fn ways(&mut self) {
        let (client, authority) = (Wanted::client, Wanted::authority);
        let forge = &self.forge;
        forge.issue("first", "root", &authority("first"));
        forge.issue("second", "first", &authority("second"));
        forge.issue("deep", "second", &client());
        forge.root("stranger", &authority("stranger"));
        forge.issue("strange", "stranger", &client());
        forge.issue("old", "stranger", &authority("old").expired());
        for (name, between, expected) in [
            ("deep", &["second", "first"][..], GOOD),
            ("wrong-order", &["first", "second"], GOOD),
            ("missing", &["second"], BAD),
            ("alone", &[], BAD),
            (
                "twice",
                &["second", "second", "first", "second", "first"],
                GOOD,
            ),
            ("with-root", &["second", "first", "root"], GOOD),
            (
                "with-strangers",
                &["stranger", "old", "strange", "second", "first"],
                GOOD,
            ),
            ("with-itself", &["deep", "second", "first"], GOOD),
        ] {
            self.case(&format!("way-{name}"), "deep", between, expected);
        }
        self.case("strange", "strange", &[], BAD);
        self.case("strange-chain", "strange", &["stranger"], BAD);
        self.case("strange-beside", "strange", &["first", "root"], BAD);

        // One name and key, signed by a stranger and by a root.
        for (name, issuer) in [
            ("crossed-by-stranger", "stranger"),
            ("crossed-by-root", "root"),
        ] {
            self.forge.key("crossed", "ec:P-256");
            let key = self.forge.path(&format!("{name}.key"));
            if name == "crossed-by-stranger" {
                std::fs::rename(self.forge.path("crossed.key"), key).unwrap();
            } else {
                std::fs::copy(self.forge.path("crossed-by-stranger.key"), key).unwrap();
            }
            self.forge.issue(name, issuer, &authority("crossed"));
        }
        self.forge
            .issue("crossed-leaf", "crossed-by-root", &client());
        for (name, between, expected) in [
            (
                "crossed",
                &["crossed-by-stranger", "crossed-by-root"][..],
                GOOD,
            ),
            (
                "crossed-back",
                &["crossed-by-root", "crossed-by-stranger"],
                GOOD,
            ),
            ("crossed-wrong", &["crossed-by-stranger"], BAD),
            ("crossed-on", &["crossed-by-stranger", "stranger"], BAD),
        ] {
            self.case(name, "crossed-leaf", between, expected);
        }

        // Two that sign each other.
        for name in ["left", "right"] {
            self.forge.key(name, "ec:P-256");
        }
        self.forge.root("left", &authority("left"));
        self.forge.issue("right", "left", &authority("right"));
        self.forge.issue("left", "right", &authority("left"));
        self.forge.issue("circle", "left", &client());
        self.case("circle", "circle", &["left", "right"], BAD);

        // Two roots with one name and two keys.
        for name in ["same-one", "same-two"] {
            self.root(name, &authority("same"));
            self.leaf(&format!("{name}-leaf"), name, &client(), GOOD);
        }
        self.forge.root("same-three", &authority("same"));
        self.leaf("same-three-leaf", "same-three", &client(), BAD);

        // Key identifiers help to find, and do not decide.
        let aki = "2.5.29.35=DER:30:06:80:04:01:02:03:04";
        self.under(
            "key-id",
            &authority("key-id").extension("subjectKeyIdentifier=hash"),
            &client().extension(aki),
            GOOD,
        );
    }

    fn trusted_leaves(&mut self) {
        let usage = |usage: &str| Wanted::bare().extension(&format!("extendedKeyUsage={usage}"));
        self.root("own", &usage("clientAuth"));
        self.case("own", "own", &[], GOOD);
        self.root("own-v1", &Wanted::bare());
        self.case("own-v1", "own-v1", &[], GOOD);
        self.root("own-server", &usage("serverAuth"));
        self.case("own-server", "own-server", &[], BAD);
        self.root("own-expired", &usage("clientAuth").expired());
        self.case("own-expired", "own-expired", &[], BAD);
        self.forge.root("own-stranger", &usage("clientAuth"));
        self.case("own-stranger", "own-stranger", &[], BAD);
        self.forge.issue("signed", "stranger", &Wanted::client());
        self.trusted.push("signed".to_owned());
        self.case("signed", "signed", &[], GOOD);
    }
}

fn table(forge: Forge) -> Table {
    let mut table = Table {
        forge,
        trusted: Vec::new(),
        cases: Vec::new(),
    };
    table.root("root", &Wanted::authority("root"));
    table.keys();
    table.signatures();
    table.versions();
    table.times();
    table.path_lengths();
    table.names();
    table.extensions();
    table.usages();
    table.ways();
    table.trusted_leaves();
    table
}

/// What curl is to ask, and the status that it should get.
#[derive(Clone)]
struct Asking {
    what: String,
    server: SocketAddr,
    /// Without the endings of its files.
    certificate: String,
    tls: &'static str,
    token: Option<&'static str>,
    expected: u16,
}

/// Of each case, straight and through the proxy.
fn askings(table: &Table, servers: [SocketAddr; 2], token: Option<&'static str>) -> Vec<Asking> {
    let mut askings = Vec::new();
    for case in &table.cases {
        let certificate = table.forge.path(&format!("case-{}", case.name));
        for (tls, expected) in ["1.2", "1.3"].into_iter().zip(case.expected) {
            // A token beside it counts where the certificate does not.
            let expected = match token {
                None => expected,
                Some(_) if expected != BAD => continue,
                Some("tok-admin") => GOOD,
                Some(_) => BAD,
            };
            for (way, server) in ["straight", "through the proxy"].into_iter().zip(servers) {
                askings.push(Asking {
                    what: format!("{} over TLS {tls} {way} ({token:?})", case.name),
                    server,
                    certificate: certificate.display().to_string(),
                    tls,
                    token,
                    expected,
                });
            }
        }
    }
    askings
}

impl Asking {
    /// curl's arguments.
    fn arguments(&self, ca: &str) -> Vec<String> {
        let to = format!("::{}:{}", self.server.ip(), self.server.port());
        let [crt, key] = ["crt", "key"].map(|end| format!("{}.{end}", self.certificate));
        let url = format!("https://{SERVER_NAME}{PATH}");
        let token = self
            .token
            .map(|token| format!("Authorization: Bearer {token}"));
        let mut arguments = vec!["-sS", "-o", "/dev/null", "-w", "%{http_code}\\n"];
        arguments.extend(["--max-time", "30", "--no-sessionid", "--cacert", ca]);
        arguments.extend(["--tlsv1.2", "--tls-max", self.tls]);
        arguments.extend(["--cert", &crt, "--key", &key, "--connect-to", &to]);
        if let Some(token) = &token {
            arguments.extend(["-H", token]);
        }
        arguments.push(&url);
        arguments.into_iter().map(str::to_owned).collect()
    }
}

/// Asks one after the other. What did not get the expected status; 0 is no answer.
fn ask(askings: &[Asking], ca: &str, openssl: &str) -> Vec<String> {
    let mut command = Command::new("curl");
    command.env("OPENSSL_CONF", openssl);
    for (number, asking) in askings.iter().enumerate() {
        // No two have one server, version and certificate: no connection is used twice.
        if number > 0 {
            command.arg("--next");
        }
        command.args(asking.arguments(ca));
    }
    let output = command.output().expect("curl");
    let [told, errors] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let codes: Vec<u16> = told.lines().filter_map(|line| line.parse().ok()).collect();
    assert_eq!(codes.len(), askings.len(), "{told}\n{errors}");
    let answers = askings.iter().zip(codes);
    answers
        .filter(|(asking, code)| *code != asking.expected)
        .map(|(asking, code)| format!("{}: {code}, expected {}", asking.what, asking.expected))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn client_certificates_count_as_they_do_at_a_real_apiserver() {
    // Later versions of Go judge some of them in other ways: docs/compatibility.md.
    if kube::lacks(&[Need::GoBefore(20)]) {
        return;
    }
    let ground = Ground::bootstrapped().await;
    let table = table(Forge::new(&ground.dir.path().join("forge")));
    let read =
        |name: &String| std::fs::read_to_string(table.forge.path(&format!("{name}.crt"))).unwrap();
    let trusted: String = table.trusted.iter().map(read).collect();
    let own = std::fs::read_to_string(ground.pki.path("ca.crt")).unwrap();
    std::fs::write(ground.pki.path("users.crt"), own + &trusted).unwrap();
    let users = ground.pki.file("users.crt");
    let server = ground.kube("cp-a").without("client-ca-file");
    let server = server.arg(&format!("--client-ca-file={users}"));
    let server = KubeApiServer::start(server, &ground.pki).await;
    let proxy = ground.proxy("a", server.addr());
    let proxy = proxy.set("serving.clientCAFile", &users);
    let proxy = Proxy::start(proxy.until(Until::Ready)).await;

    let openssl = table.forge.path("client.cnf");
    std::fs::write(&openssl, CLIENT).unwrap();
    let servers = [server.addr(), proxy.addr()];
    let (mut asked, mut wrong) = (JoinSet::new(), Vec::new());
    for token in [None, Some("tok-admin"), Some("tok-nobody")] {
        for askings in askings(&table, servers, token).chunks(IN_A_ROW) {
            if asked.len() >= AT_ONCE {
                wrong.extend(asked.join_next().await.unwrap().unwrap());
            }
            let (askings, ca) = (askings.to_vec(), ground.pki.file("ca.crt"));
            let openssl = openssl.display().to_string();
            asked.spawn_blocking(move || ask(&askings, &ca, &openssl));
        }
    }
    wrong.extend(asked.join_all().await.into_iter().flatten());
    wrong.sort();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
