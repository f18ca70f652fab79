//! Certificates for tests and test clusters: an authority, and certificates that it signed.
//!
//! The authority's key is stored unencrypted beside the certificates: every reader of that file can
//! create certificates that clients trust.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, ServerName};
use thiserror::Error;

use crate::certificates::{FileFault, TlsAuthorities, TlsError, read_whole};

/// Days for which the certificates are valid, from now on.
pub const VALIDITY_DAYS: u64 = 3650;

const DAY: Duration = Duration::from_hours(24);

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
    /// The directory has no authority.
    #[error(
        "cannot read the authority's key from '{}': {why}; `farleaf tls init DIR` creates an \
         authority",
        path.display()
    )]
    NoAuthority {
        /// Path of the key.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The authority's certificate cannot be read.
    #[error(transparent)]
    Authority(#[from] TlsError),
    /// The authority was created by another program.
    #[error(
        "cannot sign with '{}': its certificates do not lead to '{}' ({source}); use an authority \
         that `farleaf tls init` created, or sign with `openssl x509 -req`",
        key.display(), certificate.display()
    )]
    Foreign {
        /// Path of the authority's key.
        key: PathBuf,
        /// Path of the authority's certificate.
        certificate: PathBuf,
        /// Error of the TLS library.
        source: rustls::Error,
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
}

/// Creates an authority, and a certificate for these host names and addresses and
/// [`LOCAL_NAMES`], in a directory, which is created if it does not exist.
///
/// # Errors
/// [`AuthorityError`]. Existing files are not changed, and no files are left behind.
pub fn create(directory: &Path, names: &[String]) -> Result<AuthorityFiles, AuthorityError> {
    let files = AuthorityFiles::of(directory);
    let params = authority_params()?;
    let authority_key = KeyPair::generate()?;
    let authority = params.self_signed(&authority_key)?;
    let authority_key_text = authority_key.serialize_pem();
    let signed = Signed::new(names, &Issuer::new(params, authority_key))?;
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    made.map_err(|source| AuthorityError::File {
        path: directory.to_owned(),
        source,
    })?;
    write_all_or_none(&[
        (&files.authority_key, &authority_key_text, 0o600),
        (&files.key, &signed.key, 0o600),
        (&files.certificate, &signed.certificate, 0o644),
        (&files.authority, &authority.pem(), 0o644),
    ])?;
    Ok(files)
}

/// Creates a further certificate of an authority that [`create`] has created in this directory, in
/// the files `PREFIX.pem` and `PREFIX-key.pem`.
///
/// # Errors
/// [`AuthorityError`]. Existing files are not changed, and no files are left behind.
pub fn add(
    directory: &Path,
    names: &[String],
    prefix: &str,
) -> Result<AuthorityFiles, AuthorityError> {
    let files = AuthorityFiles {
        certificate: directory.join(format!("{prefix}.pem")),
        key: directory.join(format!("{prefix}-key.pem")),
        ..AuthorityFiles::of(directory)
    };
    let missing = |why: String| AuthorityError::NoAuthority {
        path: files.authority_key.clone(),
        why,
    };
    let text = read_whole(&files.authority_key).map_err(|why| missing(why.to_string()))?;
    let key = KeyPair::from_pem(&String::from_utf8_lossy(&text));
    let key = key.map_err(|_| missing(FileFault::NoKey.to_string()))?;
    let signed = Signed::new(names, &Issuer::new(authority_params()?, key))?;
    signed.check(&files)?;
    write_all_or_none(&[
        (&files.key, &signed.key, 0o600),
        (&files.certificate, &signed.certificate, 0o644),
    ])?;
    Ok(files)
}

/// Certificate and its key, as PEM.
struct Signed {
    der: CertificateDer<'static>,
    certificate: String,
    key: String,
}

impl Signed {
    fn new(names: &[String], issuer: &Issuer<'_, KeyPair>) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = named(names)?;
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        set_validity(&mut params);
        params
            .distinguished_name
            .push(DnType::CommonName, "Farleaf server or client");
        let certificate = params.signed_by(&key, issuer)?;
        Ok(Self {
            der: certificate.der().clone(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Checks that those who trust the authority accept the certificate: the parameters of the
    /// authority are not read from its certificate.
    fn check(&self, files: &AuthorityFiles) -> Result<(), AuthorityError> {
        let foreign = |source| AuthorityError::Foreign {
            key: files.authority_key.clone(),
            certificate: files.authority.clone(),
            source,
        };
        let authorities = TlsAuthorities::from_file(&files.authority)?;
        let checked = authorities.check_server("127.0.0.1", &self.der, &[]);
        checked.map_err(foreign)
    }
}

fn authority_params() -> Result<CertificateParams, AuthorityError> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params);
    params
        .distinguished_name
        .push(DnType::CommonName, "Farleaf authority for tests");
    Ok(params)
}

/// Makes a certificate valid from yesterday on, because the clocks of hosts differ.
fn set_validity(params: &mut CertificateParams) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = date_time_ymd(1970, 1, 1) + since.unwrap_or_default();
    params.not_before = now - DAY;
    params.not_after = now + DAY * VALIDITY_DAYS as u32;
}

fn named(names: &[String]) -> Result<CertificateParams, AuthorityError> {
    let mut all = LOCAL_NAMES.map(str::to_owned).to_vec();
    for name in names {
        // The part after a wildcard must be a host name, not an address.
        let is_valid = match name.strip_prefix("*.") {
            Some(domain) => matches!(ServerName::try_from(domain), Ok(ServerName::DnsName(_))),
            None => ServerName::try_from(name.as_str()).is_ok(),
        };
        if !is_valid {
            return Err(AuthorityError::Name { name: name.clone() });
        }
        if !all.contains(name) {
            all.push(name.clone());
        }
    }
    Ok(CertificateParams::new(all)?)
}

/// Creates files. If one exists, even as a link to nowhere, or cannot be written, those before it
/// are removed again.
fn write_all_or_none(files: &[(&PathBuf, &str, u32)]) -> Result<(), AuthorityError> {
    for (count, (path, text, mode)) in files.iter().enumerate() {
        if let Err(error) = write(path, text, *mode) {
            for (path, ..) in &files[..count] {
                // The first error matters more.
                let _ = std::fs::remove_file(path);
            }
            return Err(error);
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), AuthorityError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    let mut file = options.open(path).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => AuthorityError::Exists {
            path: path.to_owned(),
        },
        _ => AuthorityError::File {
            path: path.to_owned(),
            source,
        },
    })?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all());
    written.map_err(|source| {
        // The first error matters more.
        let _ = std::fs::remove_file(path);
        AuthorityError::File {
            path: path.to_owned(),
            source,
        }
    })
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

    /// Promise: nothing is left behind if one of the files cannot be created; a link to nowhere
    /// counts as a file.
    #[test]
    fn all_files_or_none_are_created() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let link = scratch.path().join("ca.pem");
        std::os::unix::fs::symlink("nowhere", &link).expect("a link");
        let refused = create(scratch.path(), &[]).expect_err("the link exists");
        let of_link = matches!(&refused, AuthorityError::Exists { path } if *path == link);
        assert!(of_link, "{refused}");
        let left = std::fs::read_dir(scratch.path()).expect("there").count();
        assert_eq!(left, 1, "only the link");
    }

    /// Promise: names may have a wildcard, and one that is given twice is in the certificate once.
    #[test]
    fn names_are_checked_and_kept_once() {
        let names = ["*.example", "a.example", "a.example", "localhost"].map(str::to_owned);
        let count = |names: &[String]| named(names).map(|it| it.subject_alt_names.len());
        assert_eq!(count(&names).expect("valid"), LOCAL_NAMES.len() + 2);
        for wrong in ["*", "*.", "a.*.example", "*.10.0.0.5", "a b"] {
            let refused = count(&[wrong.to_owned()]);
            assert!(
                matches!(refused, Err(AuthorityError::Name { .. })),
                "{wrong}"
            );
        }
    }

    /// Promise: an authority signs further certificates, which those who trust it accept; another
    /// program's authority is refused, and existing files are kept.
    #[test]
    fn an_authority_signs_further_certificates() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let names = ["server-2.example".to_owned()];
        let refused = add(scratch.path(), &names, "two").expect_err("no authority");
        assert!(
            refused.to_string().contains("`farleaf tls init DIR`"),
            "{refused}"
        );
        create(scratch.path(), &[]).expect("created");
        // Signing checks that the certificate leads to the authority.
        let files = add(scratch.path(), &names, "two").expect("signed");
        assert!(files.certificate.ends_with("two.pem") && files.key.ends_with("two-key.pem"));
        let own = CertificateFiles {
            certificate: &files.certificate,
            key: &files.key,
        };
        TlsServer::from_files(own, Some(&files.authority)).expect("a server");
        let refused = add(scratch.path(), &names, "two").expect_err("it exists");
        assert!(
            matches!(refused, AuthorityError::Exists { .. }),
            "{refused}"
        );
        let other = rcgen::generate_simple_self_signed(names.to_vec()).expect("created");
        std::fs::write(&files.authority, other.cert.pem()).expect("written");
        let refused = add(scratch.path(), &names, "three").expect_err("another authority");
        assert!(
            matches!(refused, AuthorityError::Foreign { .. }),
            "{refused}"
        );
        assert!(!scratch.path().join("three-key.pem").exists());
    }
}
