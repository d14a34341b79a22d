//! Certificate, key and CA files as they are at one moment.
//!
//! Each file is read once: what is compared with the reading before is what is used. Contents count, not names, times or
//! sizes, so that a link that now leads elsewhere is a change, too.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::store::TlsError;
use crate::config::KeyPair;
use crate::config::pem::{self, PemError};

/// A file that the configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// The configuration's key.
    pub key: &'static str,
    /// Where it is.
    pub path: PathBuf,
    /// What is in it.
    pub content: Content,
}

/// What is in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A chain, or authorities.
    Certificates,
    /// A private key.
    Key,
}

impl File {
    /// Of certificates.
    pub fn certificates(key: &'static str, path: &Path) -> Self {
        Self {
            key,
            path: path.to_owned(),
            content: Content::Certificates,
        }
    }

    /// Of a private key.
    pub fn key(key: &'static str, path: &Path) -> Self {
        Self {
            key,
            path: path.to_owned(),
            content: Content::Key,
        }
    }
}

/// What was in some files.
pub struct Reading<'f> {
    files: &'f [File],
    contents: BTreeMap<&'f Path, Result<Vec<u8>, Arc<PemError>>>,
}

/// A chain, its own certificate first, and the key of that certificate.
pub type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl<'f> Reading<'f> {
    /// Reads them, those that two keys name only once.
    pub fn of(files: &'f [File]) -> Self {
        let mut contents = BTreeMap::new();
        for file in files {
            let path = file.path.as_path();
            contents
                .entry(path)
                .or_insert_with(|| pem::read(path).map_err(Arc::new));
        }
        Self { files, contents }
    }

    /// Stands for all contents. A file that cannot be read has a content of its own.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for content in self.contents.values() {
            let mut write = |bytes: &[u8]| {
                hasher.write_usize(bytes.len());
                hasher.write(bytes);
            };
            match content {
                Ok(bytes) => write(bytes),
                Err(error) => write(error.to_string().as_bytes()),
            }
            hasher.write_u8(content.is_ok().into());
        }
        hasher.finish()
    }

    /// The certificates of a file, at least one.
    pub fn certificates(&self, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        self.parse(path, pem::parse_certs)
    }

    /// The authorities of a file, each of which can be used as one.
    pub fn authorities(&self, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let certificates = self.certificates(path)?;
        pem::roots(&certificates).map_err(|source| file_error(path, Arc::new(source)))?;
        Ok(certificates)
    }

    /// A certificate and its key, which fit together.
    pub fn pair(&self, pair: &KeyPair) -> Result<Pair, TlsError> {
        let chain = self.certificates(&pair.cert_file)?;
        let key = self.parse(&pair.key_file, pem::parse_key)?;
        pem::signing_key(&key)
            .and_then(|signer| pem::certified_key(chain.clone(), signer))
            .map_err(|source| file_error(&pair.key_file, Arc::new(source)))?;
        Ok((chain, key))
    }

    /// What is in a file, as it is.
    pub fn bytes(&self, path: &Path) -> Result<&[u8], TlsError> {
        match self.contents.get(path) {
            Some(Ok(bytes)) => Ok(bytes),
            Some(Err(error)) => Err(file_error(path, error.clone())),
            None => Err(file_error(path, Arc::new(PemError::Missing))),
        }
    }

    /// When the first certificate of each file of certificates expires, in Unix seconds.
    pub fn expirations(&self) -> impl Iterator<Item = (&'static str, i64)> {
        self.files.iter().filter_map(|file| {
            if file.content == Content::Key {
                return None;
            }
            let certificates = self.certificates(&file.path).ok()?;
            let ends = certificates.iter().filter_map(|certificate| {
                let certificate = pem::parsed(certificate)?;
                Some(certificate.validity().not_after.timestamp())
            });
            Some((file.key, ends.min()?))
        })
    }

    fn parse<T>(
        &self,
        path: &Path,
        parse: impl FnOnce(&[u8]) -> Result<T, PemError>,
    ) -> Result<T, TlsError> {
        parse(self.bytes(path)?).map_err(|source| file_error(path, Arc::new(source)))
    }
}

fn file_error(path: &Path, source: Arc<PemError>) -> TlsError {
    TlsError::File {
        path: path.display().to_string(),
        source,
    }
}
