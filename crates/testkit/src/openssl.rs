//! Makes certificates with the openssl command that rcgen cannot make.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::pki::new_key;

/// Made once; see the file beside them.
const KEYS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/keys");

/// A directory with an authority or leaf in each pair of files, `NAME.crt` and `NAME.key`.
pub struct Forge {
    dir: PathBuf,
}

/// The parameters of a certificate.
#[derive(Clone, Debug)]
pub struct Wanted {
    subject: String,
    extensions: String,
    /// Arguments of `openssl ca`.
    arguments: Vec<String>,
    dates: [&'static str; 2],
}

const ENDED: &str = "20240101000000Z";
const BEGINS: &str = "20900101000000Z";

impl Wanted {
    /// X.509 v1 as long as it has no extension.
    pub fn new(subject: &str) -> Self {
        Self {
            subject: subject.to_owned(),
            extensions: String::new(),
            arguments: Vec::new(),
            dates: ["20200101000000Z", "20991231235959Z"],
        }
    }

    pub fn authority(cn: &str) -> Self {
        let wanted = Self::new(&format!("/CN={cn}"));
        wanted.extension("basicConstraints=critical,CA:TRUE")
    }

    /// A member of `system:masters`, for clients.
    pub fn client() -> Self {
        Self::bare().extension("extendedKeyUsage=clientAuth")
    }

    /// The same without any extension.
    pub fn bare() -> Self {
        Self::new("/O=system:masters/CN=alice")
    }

    /// A line of an openssl configuration file.
    pub fn extension(mut self, line: &str) -> Self {
        writeln!(self.extensions, "{line}").expect("text");
        self
    }

    /// `sha512` for example.
    pub fn hash(self, name: &str) -> Self {
        self.argument("-md").argument(name)
    }

    /// RSA-PSS with a salt of the hash's length.
    pub fn pss(self) -> Self {
        ["rsa_padding_mode:pss", "rsa_pss_saltlen:digest"]
            .iter()
            .fold(self, |wanted, option| {
                wanted.argument("-sigopt").argument(option)
            })
    }

    pub fn expired(mut self) -> Self {
        self.dates[1] = ENDED;
        self
    }

    pub fn not_yet(mut self) -> Self {
        self.dates[0] = BEGINS;
        self
    }

    fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }
}

impl Forge {
    pub fn new(dir: &Path) -> Self {
        std::fs::create_dir_all(dir).expect("directory for openssl");
        let forge = Self {
            dir: dir.to_owned(),
        };
        forge.write(
            "ca.cnf",
            "[ca]\ndefault_ca = it\n[it]\ndatabase = index.txt\nnew_certs_dir = .\nrand_serial = yes\n\
             default_md = sha256\nunique_subject = no\npolicy = any\n[any]\nO = optional\nCN = optional\n\
             [req]\ndistinguished_name = any\n",
        );
        forge
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// `NAME.key`; `algorithm`: `rsa:2048`, `rsa-pss`, `ec:P-256`, `ed25519`. There is one key of each kind of RSA: to make
    /// those takes seconds.
    pub fn key(&self, name: &str, algorithm: &str) {
        let key = format!("{name}.key");
        let (kind, option) = match algorithm.split_once(':') {
            _ if algorithm.starts_with("rsa") => return self.write(&key, &kept(algorithm)),
            Some((_, "P-256")) => return self.write(&key, &new_key().serialize_pem()),
            Some((_, curve)) => ("EC", Some(format!("ec_paramgen_curve:{curve}"))),
            None => (algorithm, None),
        };
        let mut arguments = vec!["genpkey", "-algorithm", kind, "-out", &key];
        if let Some(option) = &option {
            arguments.extend(["-pkeyopt", option]);
        }
        self.openssl(&arguments);
    }

    /// A certificate that signs itself, with a new P-256 key unless there is one of that name.
    pub fn root(&self, name: &str, wanted: &Wanted) {
        self.issue(name, name, wanted);
    }

    /// `NAME.crt`, signed by `issuer`; with a new P-256 key unless there is one of that name.
    pub fn issue(&self, name: &str, issuer: &str, wanted: &Wanted) {
        if !self.path(&format!("{name}.key")).exists() {
            self.key(name, "ec:P-256");
        }
        let [key, csr, crt, cnf] =
            ["key", "csr", "crt", "cnf"].map(|ending| format!("{name}.{ending}"));
        self.openssl(&[
            "req",
            "-new",
            "-config",
            "ca.cnf",
            "-key",
            &key,
            "-subj",
            &wanted.subject,
            "-out",
            &csr,
        ]);
        // Each issue has a separate database, so that they can run in parallel.
        let database = format!("{name}.txt");
        self.write(&database, "");
        let shared = std::fs::read_to_string(self.path("ca.cnf")).expect("ca.cnf");
        let (section, argument) = match wanted.extensions.is_empty() {
            true => (String::new(), None),
            false => (format!("[wanted]\n{}", wanted.extensions), Some("wanted")),
        };
        self.write(&cnf, &(shared.replace("index.txt", &database) + &section));
        let (issuer_crt, issuer_key) = (format!("{issuer}.crt"), format!("{issuer}.key"));
        let mut arguments = vec![
            "ca",
            "-batch",
            "-notext",
            "-preserveDN",
            "-config",
            &cnf,
            "-in",
            &csr,
            "-out",
            &crt,
            "-startdate",
            wanted.dates[0],
            "-enddate",
            wanted.dates[1],
            "-keyfile",
            &issuer_key,
        ];
        match issuer == name {
            true => arguments.push("-selfsign"),
            false => arguments.extend(["-cert", &issuer_crt]),
        }
        arguments.extend(wanted.arguments.iter().map(String::as_str));
        if let Some(section) = argument {
            arguments.extend(["-extensions", section]);
        }
        self.openssl(&arguments);
    }

    /// The common short command for a client certificate.
    pub fn issue_as_usual(&self, name: &str, issuer: &str) {
        self.key(name, "rsa:2048");
        let [key, csr, crt] = ["key", "csr", "crt"].map(|ending| format!("{name}.{ending}"));
        let (issuer_crt, issuer_key) = (format!("{issuer}.crt"), format!("{issuer}.key"));
        let subject = Wanted::bare().subject;
        self.openssl(&[
            "req", "-new", "-config", "ca.cnf", "-key", &key, "-subj", &subject, "-out", &csr,
        ]);
        self.openssl(&[
            "x509",
            "-req",
            "-in",
            &csr,
            "-CA",
            &issuer_crt,
            "-CAkey",
            &issuer_key,
            "-CAcreateserial",
            "-days",
            "1",
            "-out",
            &crt,
        ]);
    }

    /// The certificate's version; 1 is the first.
    pub fn version(&self, name: &str) -> u8 {
        let text = self.openssl(&["x509", "-in", &format!("{name}.crt"), "-noout", "-text"]);
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("Version: "));
        let digit = line.and_then(|line| line.chars().next());
        digit
            .and_then(|digit| digit.to_digit(10))
            .expect("a version") as u8
    }

    /// Puts certificates one behind the other.
    pub fn join(&self, file: &str, names: &[&str]) {
        let read = |name: &&str| {
            std::fs::read_to_string(self.path(&format!("{name}.crt"))).expect("a certificate")
        };
        self.write(file, &names.iter().map(read).collect::<String>());
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.path(file), text).expect("write to openssl's directory");
    }

    fn openssl(&self, arguments: &[&str]) -> String {
        let output = Command::new("openssl")
            .args(arguments)
            .current_dir(&self.dir)
            .output()
            .unwrap_or_else(|_| super::missing("openssl", "apt-get install openssl"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {arguments:?}\n{errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// The key of this algorithm that every directory has.
fn kept(algorithm: &str) -> String {
    let path = format!("{KEYS}/{}.key", algorithm.replace(':', "-"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}
