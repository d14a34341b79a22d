//! Contents of certificate, key and CA files at one time.
//!
//! Each file is read once, so the contents that are compared are those that are used. Only contents count, not names, times
//! or sizes: a symbolic link with another target is a change, too.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;

use super::error::TlsError;
use crate::config::KeyPair;
use crate::x509::Roots;
use crate::x509::pem::{self, PemError};

/// The path of a key of the configuration, such as `serving.certFile`.
pub type Key = Cow<'static, str>;

/// A file that the configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFile {
    pub key: Key,
    pub path: PathBuf,
}

impl TlsFile {
    pub fn new(key: impl Into<Key>, path: &Path) -> Self {
        Self {
            key: key.into(),
            path: path.to_owned(),
        }
    }

    /// Whether it is named for its key: certificates beside that are not used.
    pub fn is_key(&self) -> bool {
        self.key.to_ascii_lowercase().ends_with("keyfile")
    }
}

/// The contents of some files.
pub struct FileSnapshot<'f> {
    pub files: &'f [TlsFile],
    contents: BTreeMap<&'f Path, Result<Vec<u8>, PemError>>,
}

impl<'f> FileSnapshot<'f> {
    /// Reads the files; one that two keys name only once.
    pub fn read(files: &'f [TlsFile]) -> Self {
        let mut contents = BTreeMap::new();
        for file in files {
            let path = file.path.as_path();
            contents.entry(path).or_insert_with(|| pem::read(path));
        }
        Self { files, contents }
    }

    /// Hash of all contents; a file that cannot be read counts with its error.
    pub fn fingerprint(&self) -> u64 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one(&self.contents)
    }

    /// The certificates of a file, at least one.
    pub fn certificates(&self, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        self.parse(path, pem::parse_certs)
    }

    /// The CAs of a file that client certificates are verified against.
    pub fn client_roots(&self, path: &Path) -> Result<Roots, TlsError> {
        self.parse(path, |text| pem::client_roots(&pem::parse_certs(text)?))
    }

    /// The CAs of a file that server certificates are verified against.
    pub fn roots(&self, path: &Path) -> Result<RootCertStore, TlsError> {
        self.parse(path, |text| pem::roots(&pem::parse_certs(text)?))
    }

    /// A certificate chain and its key, ready for use.
    pub fn certified_key(&self, pair: &KeyPair) -> Result<CertifiedKey, TlsError> {
        let chain = self.certificates(&pair.cert_file)?;
        pem::check_chain(&chain).map_err(|source| file_error(&pair.cert_file, source))?;
        self.parse(&pair.key_file, |text| {
            pem::certified_key(chain, pem::signing_key(&pem::parse_key(text)?)?)
        })
    }

    /// The raw contents of a file.
    pub fn bytes(&self, path: &Path) -> Result<&[u8], TlsError> {
        match self.contents.get(path) {
            Some(Ok(bytes)) => Ok(bytes),
            Some(Err(error)) => Err(file_error(path, error.clone())),
            None => Err(file_error(path, "no such file".into())),
        }
    }

    /// When the first certificate of each file of certificates expires, in Unix seconds.
    pub fn expirations(&self) -> impl Iterator<Item = (Key, i64)> {
        let files = self.files.iter().filter(|file| !file.is_key());
        files.filter_map(|file| {
            let certificates = self.certificates(&file.path).ok()?;
            let parsed = certificates.iter().filter_map(pem::parsed);
            let ends = parsed.map(|it| it.validity().not_after.timestamp());
            Some((file.key.clone(), ends.min()?))
        })
    }

    fn parse<T>(
        &self,
        path: &Path,
        parse: impl FnOnce(&[u8]) -> Result<T, PemError>,
    ) -> Result<T, TlsError> {
        parse(self.bytes(path)?).map_err(|source| file_error(path, source))
    }
}

fn file_error(path: &Path, source: PemError) -> TlsError {
    TlsError::File {
        path: path.display().to_string(),
        source,
    }
}
