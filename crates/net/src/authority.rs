//! Certificates for tests and test clusters: an authority, and one certificate that it signed.
//!
//! The authority's key is stored unencrypted beside the certificates: every reader of that file can
//! create certificates that clients trust.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use thiserror::Error;

/// Years for which the certificates are valid.
pub const VALIDITY_YEARS: i32 = 10;

/// Names and addresses that every certificate is valid for.
pub const LOCAL_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Files of a directory that [`create`] has filled.
#[derive(Clone, Debug)]
pub struct AuthorityFiles {
    /// The authority's certificate, which clients trust.
    pub authority: PathBuf,
    /// The authority's key.
    pub authority_key: PathBuf,
    /// Certificate of servers and clients.
    pub certificate: PathBuf,
    /// Key of that certificate.
    pub key: PathBuf,
}

/// Reason why certificates cannot be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// A file exists already, and is not overwritten.
    #[error("'{}' already exists; choose another directory, or delete the file", path.display())]
    Exists {
        /// Path of the file.
        path: PathBuf,
    },
    /// A file or the directory cannot be written.
    #[error("cannot write '{}': {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A name is neither a host name nor an IP address.
    #[error("'{name}' cannot be the name of a certificate; expected a host name or an IP address")]
    Name {
        /// The name.
        name: String,
    },
    /// The library cannot create the certificate.
    #[error("cannot create a certificate: {0}")]
    Create(#[from] rcgen::Error),
}

impl AuthorityFiles {
    /// Returns the paths of the files in a directory.
    pub fn of(directory: &Path) -> Self {
        Self {
            authority: directory.join("ca.pem"),
            authority_key: directory.join("ca-key.pem"),
            certificate: directory.join("cert.pem"),
            key: directory.join("key.pem"),
        }
    }

    fn all(&self) -> [&PathBuf; 4] {
        [
            &self.authority,
            &self.authority_key,
            &self.certificate,
            &self.key,
        ]
    }
}

/// Creates an authority, and a certificate for these host names and addresses and
/// [`LOCAL_NAMES`], in a directory, which is created if it does not exist.
///
/// # Errors
/// [`AuthorityError`]. Existing files are not changed.
pub fn create(directory: &Path, names: &[String]) -> Result<AuthorityFiles, AuthorityError> {
    let files = AuthorityFiles::of(directory);
    if let Some(path) = files.all().into_iter().find(|path| path.exists()) {
        return Err(AuthorityError::Exists { path: path.clone() });
    }
    let end = date_time_ymd(current_year() + VALIDITY_YEARS, 1, 1);

    let authority_key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_after = end;
    params
        .distinguished_name
        .push(DnType::CommonName, "Farleaf authority for tests");
    let authority = params.self_signed(&authority_key)?;
    let authority_key_text = authority_key.serialize_pem();
    let issuer = Issuer::new(params, authority_key);

    let key = KeyPair::generate()?;
    let mut params = named(names)?;
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.not_after = end;
    params
        .distinguished_name
        .push(DnType::CommonName, "Farleaf server or client");
    let certificate = params.signed_by(&key, &issuer)?;

    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    made.map_err(|source| AuthorityError::File {
        path: directory.to_owned(),
        source,
    })?;
    write(&files.authority_key, &authority_key_text, 0o600)?;
    write(&files.key, &key.serialize_pem(), 0o600)?;
    write(&files.certificate, &certificate.pem(), 0o644)?;
    write(&files.authority, &authority.pem(), 0o644)?;
    Ok(files)
}

fn named(names: &[String]) -> Result<CertificateParams, AuthorityError> {
    for name in names {
        let is_address = name.parse::<std::net::IpAddr>().is_ok();
        let is_valid = rustls::pki_types::ServerName::try_from(name.as_str()).is_ok();
        if !is_address && !is_valid {
            return Err(AuthorityError::Name { name: name.clone() });
        }
    }
    let local = LOCAL_NAMES.map(str::to_owned).into_iter();
    let others = names
        .iter()
        .filter(|name| !LOCAL_NAMES.contains(&name.as_str()));
    let all: Vec<_> = local.chain(others.cloned()).collect();
    Ok(CertificateParams::new(all)?)
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), AuthorityError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    let written = options.open(path);
    let written = written.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.map_err(|source| AuthorityError::File {
        path: path.to_owned(),
        source,
    })
}

fn current_year() -> i32 {
    const YEAR_SECONDS: u64 = 31_556_952;
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    1970 + (since.map_or(0, |it| it.as_secs()) / YEAR_SECONDS) as i32
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::tls::{CertificateFiles, TlsClient, TlsServer};

    /// Promise: the files can be used, only their owner can read keys, and nothing is overwritten.
    #[test]
    fn certificates_are_usable_and_kept() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let directory = scratch.path().join("tls");
        let names = ["server-1.example".to_owned(), "10.0.0.5".to_owned()];
        let files = create(&directory, &names).expect("created");
        for (path, mode) in [(&files.key, 0o600), (&files.authority_key, 0o600)] {
            let metadata = std::fs::metadata(path).expect("it exists");
            assert_eq!(metadata.permissions().mode() & 0o777, mode);
        }
        let own = CertificateFiles {
            certificate: &files.certificate,
            key: &files.key,
        };
        TlsServer::from_files(own, Some(&files.authority)).expect("a server");
        TlsClient::from_files(&files.authority, Some(own)).expect("a client");
        let before = std::fs::read(&files.key).expect("it exists");
        std::fs::remove_file(&files.certificate).expect("removed");
        let refused = create(&directory, &names).expect_err("the others exist");
        assert!(
            matches!(refused, AuthorityError::Exists { .. }),
            "{refused}"
        );
        assert_eq!(std::fs::read(&files.key).expect("it exists"), before);
        let refused = create(&scratch.path().join("other"), &["no name".to_owned()]);
        assert!(matches!(refused, Err(AuthorityError::Name { .. })));
        assert!(!scratch.path().join("other").exists());
    }
}
