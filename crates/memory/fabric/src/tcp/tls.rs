//! TLS below everything else: what is sent is encrypted, and the node has a certificate.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig};
use thiserror::Error;

/// Plain bytes that wait to be encrypted and sent, at most.
const BUFFER_SIZE_BYTES: usize = 256 << 10;

/// A node's certificate and key.
#[derive(Clone, Debug)]
pub struct TlsServer(Arc<ServerConfig>);

/// The authorities whose certificates a client takes.
#[derive(Clone, Debug)]
pub struct TlsClient(Arc<ClientConfig>);

/// Why files are of no use for TLS.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or there is nothing of the kind in it.
    #[error("cannot take {what} from {}: {why}", path.display())]
    File {
        /// What was looked for.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What was wrong.
        why: String,
    },
    /// They do not go together, or are of a kind that is not known.
    #[error("the certificate in {} cannot be used: {source}", path.display())]
    Unusable {
        /// Where it is.
        path: PathBuf,
        /// Why not.
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
        return Err(refused("there is no certificate in it".to_owned()));
    }
    Ok(all)
}

impl TlsServer {
    /// From PEM files: the certificate with those that lead to its authority, and its key.
    ///
    /// # Errors
    /// They cannot be read, or do not go together.
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
    /// From a PEM file of authorities' certificates.
    ///
    /// # Errors
    /// It cannot be read, or no certificate in it can be used.
    pub fn from_file(authorities: &Path) -> Result<Self, TlsError> {
        let unusable = |source| TlsError::Unusable {
            path: authorities.to_owned(),
            source,
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates("an authority's certificate", authorities)? {
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

/// One connection's encryption.
#[derive(Debug)]
pub(super) struct TlsLayer(Connection);

impl TlsLayer {
    pub(super) fn of_node(server: &TlsServer) -> io::Result<Self> {
        let connection = rustls::ServerConnection::new(Arc::clone(&server.0));
        Ok(Self::new(connection.map_err(io::Error::other)?.into()))
    }

    /// With a node that must have a certificate for this host, a name or an address.
    pub(super) fn of_client(client: &TlsClient, host: &str) -> io::Result<Self> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let name = ServerName::try_from(host.to_owned()).map_err(invalid)?;
        let connection = ClientConnection::new(Arc::clone(&client.0), name);
        Ok(Self::new(connection.map_err(io::Error::other)?.into()))
    }

    fn new(mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(BUFFER_SIZE_BYTES));
        Self(connection)
    }

    /// Whether something waits for room to be sent.
    pub(super) fn wants_to_send(&self) -> bool {
        self.0.wants_write()
    }

    /// As the stream's `receive`. Leaves nothing behind that the socket would not tell of, unless
    /// `to` is filled.
    pub(super) fn receive(&mut self, socket: &TcpStream, to: &mut [u8]) -> io::Result<usize> {
        let mut socket = socket;
        loop {
            match self.0.reader().read(to) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // A peer that ends without saying so in TLS: what came may have been cut off.
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
            // An alert tells the peer what is wrong; it need not hear it.
            let flushed = self.flush(socket);
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            flushed?;
        }
    }

    /// As the stream's `send`: what is taken may still wait to be sent.
    pub(super) fn send(&mut self, socket: &TcpStream, from: &[u8]) -> io::Result<usize> {
        let count = self.0.writer().write(from)?;
        self.flush(socket)?;
        if count == 0 && !from.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(count)
    }

    /// Sends what there is room for.
    pub(super) fn flush(&mut self, socket: &TcpStream) -> io::Result<()> {
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
