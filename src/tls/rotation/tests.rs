use std::fs;
use std::path::Path;

use rcgen::{CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair as Key};
use rustls::sign::CertifiedKey;
use tempfile::TempDir;

use super::*;
use crate::config::KeyPair;
use crate::tls::credentials::Trust;

/// A directory with a certificate, its key and a CA.
struct Ground {
    dir: TempDir,
}

impl Ground {
    fn new() -> Self {
        let ground = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        ground.write("ca", &ca("one").pem());
        ground.issue();
        ground
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).unwrap();
    }

    fn issue(&self) {
        let [cert, key] = issued(2100);
        self.write("cert", &cert);
        self.write("key", &key);
    }

    fn pair(&self) -> KeyPair {
        KeyPair {
            cert_file: self.dir.path().join("cert"),
            key_file: self.dir.path().join("key"),
        }
    }

    fn files(&self) -> Vec<TlsFile> {
        let pair = self.pair();
        vec![
            TlsFile::new("certFile", &pair.cert_file),
            TlsFile::new("keyFile", &pair.key_file),
            TlsFile::new("caFile", &self.dir.path().join("ca")),
        ]
    }

    fn rotation(&self) -> (CertifiedKey, Rotation<CertifiedKey>) {
        let pair = self.pair();
        let make = move |reading: &FileSnapshot<'_>| reading.certified_key(&pair);
        Rotation::begin("test", self.files(), make).unwrap()
    }

    fn trust(&self) -> Trust {
        let files = self.files();
        let ca = self.dir.path().join("ca");
        Trust::read(&ca, &self.pair(), &FileSnapshot::read(&files)).unwrap()
    }
}

/// A certificate that ends in this year, and its key.
fn issued(until: i32) -> [String; 2] {
    let key = Key::generate().unwrap();
    let mut params = CertificateParams::new(vec!["server.test".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(until, 1, 1);
    let cert = params.self_signed(&key).unwrap();
    [cert.pem(), key.serialize_pem()]
}

fn ca(name: &str) -> CertifiedIssuer<'static, Key> {
    ca_with(name, Key::generate().unwrap())
}

fn ca_with(name: &str, key: Key) -> CertifiedIssuer<'static, Key> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, key).unwrap()
}

fn kind<T, E>(check: &Check<T, E>) -> &'static str {
    match check {
        Check::NothingNew => "same",
        Check::Restored => "same again",
        Check::New(_) => "new",
        Check::Failed(_) => "broken",
    }
}

/// What so many looks in a row show.
fn looks<T>(rotation: &mut Rotation<T>, count: usize) -> Vec<&'static str> {
    (0..count).map(|_| kind(&rotation.check())).collect()
}

#[test]
fn a_pair_that_is_half_replaced_is_waited_for() {
    let ground = Ground::new();
    let (_, mut rotation) = ground.rotation();
    assert_eq!(looks(&mut rotation, 2), ["same", "same"]);
    let [cert, key] = issued(2100);
    ground.write("key", &key);
    assert_eq!(looks(&mut rotation, 1), ["same"]);
    ground.write("cert", &cert);
    assert_eq!(looks(&mut rotation, 3), ["same", "new", "same"]);
}

#[test]
fn what_cannot_be_used_is_said_once_and_forgotten_when_it_is_good_again() {
    let ground = Ground::new();
    let (_, mut rotation) = ground.rotation();
    let pair = ground.pair();
    let broken = ["same", "broken", "same"];
    let good = fs::read_to_string(&pair.key_file).unwrap();
    type Break<'a> = &'a dyn Fn(&Path);
    let breaks: [Break<'_>; 4] = [
        &|file| fs::write(file, "nonsense").unwrap(),
        &|file| fs::remove_file(file).unwrap(),
        &|file| {
            fs::remove_file(file).unwrap();
            fs::create_dir(file).unwrap();
        },
        &|file| fs::write(file, &issued(2100)[1]).unwrap(),
    ];
    for spoil in breaks {
        spoil(&pair.key_file);
        assert_eq!(looks(&mut rotation, 3), broken);
        // The same as before, or something new.
        if pair.key_file.is_dir() {
            fs::remove_dir(&pair.key_file).unwrap();
        }
        ground.write("key", &good);
        assert_eq!(looks(&mut rotation, 2), ["same again", "same"]);
    }
    ground.write("key", "nonsense");
    assert_eq!(looks(&mut rotation, 3), broken);
    ground.issue();
    assert_eq!(looks(&mut rotation, 3), ["same", "new", "same"]);
}

#[test]
fn contents_count_and_not_times_sizes_or_names() {
    let ground = Ground::new();
    let ca = ground.dir.path().join("ca");
    let files = ground.files();
    let text = fs::read_to_string(&ca).unwrap();
    let time = fs::metadata(&ca).unwrap().modified().unwrap();
    let before = FileSnapshot::read(&files).fingerprint();
    let other = text.replacen("A", "B", 1);
    assert_eq!(other.len(), text.len());
    fs::write(&ca, other).unwrap();
    let file = fs::File::options().write(true).open(&ca).unwrap();
    file.set_modified(time).unwrap();
    assert_ne!(FileSnapshot::read(&files).fingerprint(), before);
    ground.write("ca", &text);
    assert_eq!(FileSnapshot::read(&files).fingerprint(), before);
}

#[cfg(unix)]
#[test]
fn a_link_to_a_directory_that_leads_elsewhere_is_a_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    // As the kubelet does with Secrets and ConfigMaps.
    for revision in ["..1", "..2"] {
        let [cert, key] = issued(2100);
        fs::create_dir(path(revision)).unwrap();
        fs::write(path(revision).join("cert"), cert).unwrap();
        fs::write(path(revision).join("key"), key).unwrap();
    }
    let link = |to: &str| {
        std::os::unix::fs::symlink(to, path("..new")).unwrap();
        fs::rename(path("..new"), path("..data")).unwrap();
    };
    link("..1");
    for name in ["cert", "key"] {
        std::os::unix::fs::symlink(format!("..data/{name}"), path(name)).unwrap();
    }
    let pair = KeyPair {
        cert_file: path("cert"),
        key_file: path("key"),
    };
    let files = vec![
        TlsFile::new("certFile", &pair.cert_file),
        TlsFile::new("keyFile", &pair.key_file),
    ];
    let make = move |reading: &FileSnapshot<'_>| reading.certified_key(&pair);
    let (_, mut rotation) = Rotation::begin("test", files, make).unwrap();
    assert_eq!(looks(&mut rotation, 1), ["same"]);
    link("..2");
    assert_eq!(looks(&mut rotation, 3), ["same", "new", "same"]);
}

#[test]
fn the_first_of_a_file_to_expire_counts() {
    let ground = Ground::new();
    let [soon, late] = [2030, 2040].map(|year| issued(year)[0].clone());
    ground.write("ca", &[late, soon.clone()].concat());
    // Nobody uses it.
    ground.write("key", &[issued(2100)[1].clone(), soon].concat());
    let files = ground.files();
    let reading = FileSnapshot::read(&files);
    let ends: Vec<_> = reading.expirations().collect();
    let unix = |year| rcgen::date_time_ymd(year, 1, 1).unix_timestamp();
    assert_eq!(
        ends,
        [
            ("certFile".into(), unix(2100)),
            ("caFile".into(), unix(2030))
        ]
    );
}

#[test]
fn connections_are_covered_until_their_ca_or_the_certificate_they_showed_is_gone() {
    let ground = Ground::new();
    let key = Key::generate().unwrap();
    let twin = Key::from_pem(&key.serialize_pem()).unwrap();
    let (one, two) = (ca_with("one", key), ca("two"));
    ground.write("ca", &one.pem());
    let first = ground.trust();
    ground.write("ca", &[one.pem(), two.pem()].concat());
    let bundled = ground.trust();
    ground.issue();
    let renewed = ground.trust();
    ground.write("ca", &two.pem());
    let withdrawn = ground.trust();
    let covers =
        |now: &Trust, former: &Trust| [now.covers(former, true), now.covers(former, false)];
    assert_eq!(covers(&bundled, &first), [true, true]);
    assert_eq!(covers(&renewed, &first), [false, true]);
    assert_eq!(covers(&withdrawn, &renewed), [false, false]);
    assert_eq!(covers(&withdrawn, &withdrawn), [true, true]);
    // A CA's certificate may be renewed.
    ground.write("ca", &[ca_with("one", twin).pem(), two.pem()].concat());
    assert_eq!(covers(&ground.trust(), &renewed), [true, true]);
}

#[test]
fn errors_name_the_file_and_what_is_wrong_with_it() {
    let ground = Ground::new();
    let files = ground.files();
    let (ca, pair) = (ground.dir.path().join("ca"), ground.pair());
    ground.write("key", &issued(2100)[1]);
    let error = Trust::read(&ca, &pair, &FileSnapshot::read(&files))
        .err()
        .unwrap();
    let text = error.to_string();
    assert!(
        text.ends_with("key: the key does not belong to the certificate"),
        "{text}"
    );
    ground.write("ca", "nothing");
    let error = Trust::read(&ca, &pair, &FileSnapshot::read(&files))
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("no certificate in it"),
        "{error}"
    );
}

#[test]
fn each_stage_towards_the_end_is_one_more() {
    const DAY: i64 = 24 * 60 * 60;
    let left = [
        31 * DAY,
        30 * DAY,
        8 * DAY,
        7 * DAY,
        2 * DAY,
        DAY,
        1,
        0,
        -DAY,
    ];
    assert_eq!(left.map(stage), [0, 1, 1, 2, 2, 3, 3, 4, 4]);
}
