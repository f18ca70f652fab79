//! TLS: encrypts everything on a connection; the node has a certificate.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig};
use thiserror::Error;

/// Maximum number of plain bytes that wait to be encrypted and sent.
const BUFFER_SIZE_BYTES: usize = 256 << 10;

/// Certificate and key of a node.
#[derive(Clone, Debug)]
pub struct TlsServer(Arc<ServerConfig>);

/// Certificate authorities that a client trusts.
#[derive(Clone, Debug)]
pub struct TlsClient(Arc<ClientConfig>);

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
        /// Description of the error.
        why: String,
    },
    /// Certificate and key do not match, or their kind is not supported.
    #[error("cannot use the certificate in '{}': {source}", path.display())]
    Unusable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the TLS library.
        source: rustls::Error,
    },
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let refused = |why: String| TlsError::File {
        what,
        path: path.to_owned(),
        why,
    };
    let read = CertificateDer::pem_file_iter(path).map_err(|error| refused(error.to_string()))?;
    let all: Result<Vec<_>, _> = read.collect();
    let all = all.map_err(|error| refused(error.to_string()))?;
    if all.is_empty() {
        return Err(refused("the file contains no certificate".to_owned()));
    }
    Ok(all)
}

impl TlsServer {
    /// Reads PEM files: the certificate, with the chain to its authority, and its key.
    ///
    /// # Errors
    /// The files cannot be read, or do not match.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let chain = certificates("a certificate", certificate)?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| TlsError::File {
            what: "a private key",
            path: key.to_owned(),
            why: error.to_string(),
        })?;
        let unusable = |source| TlsError::Unusable {
            path: certificate.to_owned(),
            source,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder
            .with_protocol_versions(rustls::DEFAULT_VERSIONS)
            .map_err(unusable)?;
        let config = builder.with_no_client_auth().with_single_cert(chain, key);
        Ok(Self(Arc::new(config.map_err(unusable)?)))
    }
}

impl TlsClient {
    /// Reads a PEM file of authorities' certificates.
    ///
    /// # Errors
    /// The file cannot be read, or contains no usable certificate.
    pub fn from_file(authorities: &Path) -> Result<Self, TlsError> {
        let unusable = |source| TlsError::Unusable {
            path: authorities.to_owned(),
            source,
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates("a CA certificate", authorities)? {
            roots.add(certificate).map_err(unusable)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder
            .with_protocol_versions(rustls::DEFAULT_VERSIONS)
            .map_err(unusable)?;
        let config = builder.with_root_certificates(roots).with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }
}

/// Encryption of one connection.
#[derive(Debug)]
pub struct TlsLayer(Connection);

impl TlsLayer {
    /// Returns the encryption of the side that listens.
    ///
    /// # Errors
    /// The TLS library rejects the configuration.
    pub fn of_node(server: &TlsServer) -> io::Result<Self> {
        let connection = rustls::ServerConnection::new(Arc::clone(&server.0));
        Ok(Self::new(connection.map_err(io::Error::other)?.into()))
    }

    /// Returns the client's encryption; the node must have a certificate for `host`, a name or an
    /// address.
    pub fn of_client(client: &TlsClient, host: &str) -> io::Result<Self> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let name = ServerName::try_from(host.to_owned()).map_err(invalid)?;
        let connection = ClientConnection::new(Arc::clone(&client.0), name);
        Ok(Self::new(connection.map_err(io::Error::other)?.into()))
    }

    fn new(mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(BUFFER_SIZE_BYTES));
        Self(connection)
    }

    /// Returns true if data waits to be sent.
    pub fn wants_to_send(&self) -> bool {
        self.0.wants_write()
    }

    /// Receives as the stream's `receive` does. It leaves no data behind that the socket does not
    /// report, unless `to` is filled.
    pub fn receive(&mut self, socket: &TcpStream, to: &mut [u8]) -> io::Result<usize> {
        let mut socket = socket;
        loop {
            match self.0.reader().read(to) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The peer ended without closing TLS: the data may have been truncated.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                outcome => return outcome,
            }
            match self.0.read_tls(&mut socket) {
                Ok(0) => return Ok(0),
                Ok(_) => {}
                Err(error) => {
                    if error.kind() == io::ErrorKind::WouldBlock {
                        self.flush(socket)?;
                    }
                    return Err(error);
                }
            }
            let processed = self.0.process_new_packets();
            // Send the alert that tells the peer what is wrong; the peer need not receive it.
            let flushed = self.flush(socket);
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            flushed?;
        }
    }

    /// Sends as the stream's `send` does; accepted data may still wait to be sent.
    pub fn send(&mut self, socket: &TcpStream, from: &[u8]) -> io::Result<usize> {
        let count = self.0.writer().write(from)?;
        self.flush(socket)?;
        if count == 0 && !from.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(count)
    }

    /// Sends as much as the socket takes.
    pub fn flush(&mut self, socket: &TcpStream) -> io::Result<()> {
        let mut socket = socket;
        while self.0.wants_write() {
            match self.0.write_tls(&mut socket) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
