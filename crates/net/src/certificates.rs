//! PEM files of certificates and private keys. Each file is read once, because it may be a pipe.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore};
use thiserror::Error;

/// Maximum size of a file in bytes.
const FILE_SIZE_BYTES_MAX: u64 = 1 << 20;

/// Header of an encrypted key in the old format of OpenSSL.
const OLD_ENCRYPTION: &[u8] = b"Proc-Type: 4,ENCRYPTED";
/// First line of an encrypted key in the format PKCS #8.
const NEW_ENCRYPTION: &[u8] = b"-----BEGIN ENCRYPTED PRIVATE KEY-----";

/// PEM files of a certificate, with the chain to its authority, and its private key.
#[derive(Clone, Copy, Debug)]
pub struct CertificateFiles<'p> {
    /// Path of the certificate chain.
    pub certificate: &'p Path,
    /// Path of the key.
    pub key: &'p Path,
}

/// Certificate chain and private key of a process.
#[derive(Clone, Debug)]
pub struct TlsIdentity(pub(crate) Arc<CertifiedKey>);

/// Certificate authorities that a process trusts.
#[derive(Clone, Debug)]
pub struct TlsAuthorities {
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) path: PathBuf,
}

/// Reason why files cannot be used for TLS.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or does not contain what is needed.
    #[error("cannot read {what} from '{}': {why}", path.display())]
    File {
        /// Kind of content that was expected.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// What is wrong.
        why: FileFault,
    },
    /// The private key is not that of the certificate.
    #[error(
        "cannot use the certificate in '{}': the private key in '{}' does not belong to it; use \
         the key that the certificate was requested with",
        certificate.display(), key.display()
    )]
    OtherKey {
        /// Path of the certificate.
        certificate: PathBuf,
        /// Path of the key.
        key: PathBuf,
    },
    /// The TLS library does not support the private key.
    #[error(
        "cannot use the private key in '{}': {source}; use a key for ECDSA (P-256 or P-384), \
         Ed25519, or RSA with 2048 to 8192 bits",
        path.display()
    )]
    Key {
        /// Path of the key.
        path: PathBuf,
        /// Error of the TLS library.
        source: rustls::Error,
    },
    /// The TLS library does not accept the certificate.
    #[error(
        "cannot use the certificate in '{}': {why}; check it with `openssl x509 -in FILE -text`",
        path.display()
    )]
    Unusable {
        /// Path of the file.
        path: PathBuf,
        /// Description of the error.
        why: String,
    },
    /// Peers with these authorities would not accept the own certificate.
    #[error(
        "no peer would accept the certificate as that of {role} '{host}' with the authorities in \
         '{}': {why}; use a certificate of one of them for this name",
        authorities.display()
    )]
    NotTrusted {
        /// Role of this process.
        role: &'static str,
        /// Name or address of this process.
        host: String,
        /// Path of the authorities.
        authorities: PathBuf,
        /// Reason that the TLS library gives.
        why: String,
    },
    /// The TLS library rejects the configuration.
    #[error("cannot use TLS 1.3: {0}")]
    Library(rustls::Error),
}

/// What is wrong with a file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileFault {
    /// The operating system reports an error.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The file is too large.
    #[error("the file is larger than 1 MiB; check that it is the right one")]
    TooLarge,
    /// The file contains no certificate.
    #[error("the file contains no certificate; expected a line '-----BEGIN CERTIFICATE-----'")]
    NoCertificate,
    /// The file contains no private key.
    #[error("the file contains no private key; expected a line '-----BEGIN PRIVATE KEY-----'")]
    NoKey,
    /// The private key is encrypted.
    #[error(
        "the key is encrypted; remove its passphrase with `openssl pkey -in FILE -out OTHER-FILE`, \
         and protect the other file by `chmod 600`"
    )]
    Encrypted,
    /// The file ends within an item.
    #[error("the file is cut off: its last item has no '-----END ...-----' line; copy it again")]
    CutOff,
    /// The text between the first and last line of an item is not valid.
    #[error("the file is damaged ({0}); copy it again")]
    Damaged(String),
}

impl From<pem::Error> for FileFault {
    fn from(error: pem::Error) -> Self {
        match error {
            pem::Error::MissingSectionEnd { .. } => Self::CutOff,
            pem::Error::IllegalSectionStart { .. } => {
                Self::Damaged("the first line of an item is not valid".to_owned())
            }
            pem::Error::Base64Decode(_) => {
                Self::Damaged("the text of an item is not valid base64".to_owned())
            }
            other => Self::Damaged(other.to_string()),
        }
    }
}

impl TlsIdentity {
    /// Reads a certificate and its key.
    ///
    /// # Errors
    /// A file cannot be read, contains no usable certificate or key, or they do not match.
    pub fn from_files(files: CertificateFiles<'_>) -> Result<Self, TlsError> {
        let chain = certificates("a certificate", files.certificate)?;
        let key = private_key(files.key)?;
        let loaded = provider().key_provider.load_private_key(key);
        let key = loaded.map_err(|source| TlsError::Key {
            path: files.key.to_owned(),
            source,
        })?;
        let certified = CertifiedKey::new(chain, key);
        match certified.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {
                Ok(Self(Arc::new(certified)))
            }
            Err(rustls::Error::InconsistentKeys(_)) => Err(TlsError::OtherKey {
                certificate: files.certificate.to_owned(),
                key: files.key.to_owned(),
            }),
            Err(error) => Err(unusable(files.certificate, &error)),
        }
    }

    /// Checks that a peer that trusts `authorities` accepts this certificate: as that of the server
    /// at `host`, and if `is_also_client` as that of a client, too.
    ///
    /// # Errors
    /// [`TlsError::NotTrusted`].
    pub fn check(
        &self,
        authorities: &TlsAuthorities,
        host: &str,
        is_also_client: bool,
    ) -> Result<(), TlsError> {
        let not_trusted = |role: &'static str| {
            move |error: rustls::Error| TlsError::NotTrusted {
                role,
                host: host.to_owned(),
                authorities: authorities.path.clone(),
                why: error.to_string(),
            }
        };
        let [own, chain @ ..] = &self.0.cert[..] else {
            unreachable!("a file without a certificate is an error")
        };
        let checked = authorities.check_server(host, own, chain);
        checked.map_err(not_trusted("the server at"))?;
        if is_also_client {
            let checked = authorities.check_client(own, chain);
            checked.map_err(not_trusted("a client from"))?;
        }
        Ok(())
    }
}

impl TlsAuthorities {
    /// Reads the certificates of authorities.
    ///
    /// # Errors
    /// The file cannot be read, or contains no usable certificate.
    pub fn from_file(path: &Path) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates("a CA certificate", path)? {
            let added = roots.add(certificate);
            added.map_err(|error| unusable(path, &error))?;
        }
        Ok(Self {
            roots: Arc::new(roots),
            path: path.to_owned(),
        })
    }

    /// Checks the certificate of the server at a host as a client does.
    pub(crate) fn check_server(
        &self,
        host: &str,
        own: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
    ) -> Result<(), rustls::Error> {
        let name = ServerName::try_from(host.to_owned()).map_err(general)?;
        let roots = Arc::clone(&self.roots);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
        let verifier = verifier.map_err(general)?;
        let verified = verifier.verify_server_cert(own, chain, &name, &[], UnixTime::now());
        verified.map(drop)
    }

    /// Checks the certificate of a client as a server does that requires one.
    fn check_client(
        &self,
        own: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
    ) -> Result<(), rustls::Error> {
        let roots = Arc::clone(&self.roots);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
        let verified = verifier
            .map_err(general)?
            .verify_client_cert(own, chain, UnixTime::now());
        verified.map(drop)
    }
}

fn general(error: impl fmt::Display) -> rustls::Error {
    rustls::Error::General(error.to_string())
}

/// Returns the cryptography of all connections.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Returns the error for a certificate. The library calls every certificate that of a peer.
fn unusable(path: &Path, error: &rustls::Error) -> TlsError {
    let why = match error {
        rustls::Error::InvalidCertificate(why) => format!("it is not valid ({why})"),
        other => other.to_string(),
    };
    TlsError::Unusable {
        path: path.to_owned(),
        why,
    }
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = || {
        let text = read_whole(path)?;
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        let all = all?;
        if all.is_empty() {
            return Err(FileFault::NoCertificate);
        }
        Ok(all)
    };
    read().map_err(|why| refused(what, path, why))
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let read = || {
        let text = read_whole(path)?;
        let has = |part: &[u8]| text.windows(part.len()).any(|it| it == part);
        match PrivateKeyDer::from_pem_slice(&text) {
            Ok(key) => Ok(key),
            Err(_) if has(OLD_ENCRYPTION) || has(NEW_ENCRYPTION) => Err(FileFault::Encrypted),
            Err(pem::Error::NoItemsFound) => Err(FileFault::NoKey),
            Err(error) => Err(error.into()),
        }
    };
    read().map_err(|why| refused("a private key", path, why))
}

pub(crate) fn read_whole(path: &Path) -> Result<Vec<u8>, FileFault> {
    let mut text = Vec::new();
    let file = File::open(path)?;
    file.take(FILE_SIZE_BYTES_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > FILE_SIZE_BYTES_MAX {
        return Err(FileFault::TooLarge);
    }
    Ok(text)
}

fn refused(what: &'static str, path: &Path, why: FileFault) -> TlsError {
    TlsError::File {
        what,
        path: path.to_owned(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &[&str] = &["server.example"];

    /// Certificate and key in a directory, and files of other contents.
    struct Files {
        scratch: tempfile::TempDir,
        certificate: String,
        key: String,
    }

    impl Files {
        fn new() -> Self {
            let names = NAME.iter().map(|it| (*it).to_owned());
            let made = rcgen::generate_simple_self_signed(names.collect::<Vec<_>>());
            let made = made.expect("created");
            Self {
                scratch: tempfile::tempdir().expect("a scratch directory"),
                certificate: made.cert.pem(),
                key: made.signing_key.serialize_pem(),
            }
        }

        /// Returns the error for files with these contents.
        fn refused(&self, certificate: &str, key: &str) -> String {
            let (certificate_path, key_path) = (self.path("cert.pem"), self.path("key.pem"));
            std::fs::write(&certificate_path, certificate).expect("written");
            std::fs::write(&key_path, key).expect("written");
            let error = TlsIdentity::from_files(CertificateFiles {
                certificate: &certificate_path,
                key: &key_path,
            });
            error.expect_err("not usable").to_string()
        }

        fn path(&self, name: &str) -> PathBuf {
            self.scratch.path().join(name)
        }
    }

    #[track_caller]
    fn assert_says(text: &str, fragments: &[&str]) {
        for fragment in fragments {
            assert!(text.contains(fragment), "no {fragment:?} in {text}");
        }
    }

    /// Promise: the error for a key that cannot be used names its file, what is wrong, and what to
    /// do.
    #[test]
    fn unusable_keys_are_explained() {
        let files = Files::new();
        let refused = |key: &str| files.refused(&files.certificate, key);
        let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGb\n\
                         -----END ENCRYPTED PRIVATE KEY-----\n";
        let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\
                   DEK-Info: AES-256-CBC,00\n\nMIGb\n-----END RSA PRIVATE KEY-----\n";
        for text in [encrypted, old] {
            let fragments = ["key.pem'", "is encrypted", "openssl pkey -in FILE"];
            assert_says(&refused(text), &fragments);
        }
        assert_says(&refused("mine"), &["key.pem'", "contains no private key"]);
        let cut = &files.key[..files.key.len() - 30];
        assert_says(&refused(cut), &["key.pem'", "cut off", "copy it again"]);
        let damaged = files.key.replacen("MIG", "M!G", 1);
        assert_says(&refused(&damaged), &["key.pem'", "damaged", "base64"]);
        let strange = "-----BEGIN PRIVATE KEY-----\nMIGb\n-----END PRIVATE KEY-----\n";
        let text = refused(strange);
        assert_says(&text, &["the private key in '", "key.pem'", "ECDSA"]);
        let text = refused(&Files::new().key);
        assert_says(&text, &["cert.pem'", "key.pem'", "does not belong to it"]);
    }

    /// Promise: the error for a certificate that cannot be used names its file and what is wrong,
    /// without bytes of the file.
    #[test]
    fn unusable_certificates_are_explained() {
        let files = Files::new();
        let refused = |certificate: &str| files.refused(certificate, &files.key);
        let cut = &files.certificate[..files.certificate.len() - 30];
        assert_says(&refused(cut), &["cert.pem'", "cut off"]);
        let strange = "-----BEGIN CERTIFICATE-----\nMIGb\n-----END CERTIFICATE-----\n";
        let text = refused(strange);
        assert_says(&text, &["cert.pem'", "is not valid", "openssl x509"]);
        assert!(!text.contains("peer"), "{text}");
        let text = refused(&files.key);
        assert_says(&text, &["cert.pem'", "contains no certificate"]);
    }

    /// Promise: a file without an end is read up to a limit only.
    #[test]
    fn endless_files_are_refused() {
        let error = TlsAuthorities::from_file(Path::new("/dev/zero"));
        let text = error.expect_err("no certificate").to_string();
        assert_says(&text, &["'/dev/zero'", "larger than 1 MiB"]);
    }
}
