//! TLS 1.3: encrypts everything on a connection. The side that listens has a certificate; the side
//! that connects may have one.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::SingleCertAndKey;
use rustls::{AlertDescription, ClientConfig, ClientConnection, Connection, ServerConfig};

use crate::certificates::provider;
pub use crate::certificates::{CertificateFiles, FileFault, TlsAuthorities, TlsError, TlsIdentity};

/// Maximum number of plain bytes that wait to be encrypted and sent.
const BUFFER_SIZE_BYTES: usize = 256 << 10;

/// Size of a [`binding`](TlsLayer::binding) in bytes.
pub const BINDING_SIZE_BYTES: usize = 32;
/// Label of bindings (RFC 5705).
const BINDING_LABEL: &[u8] = b"EXPORTER-farleaf greeting";

/// Certificate and key of a process that listens, and which clients it accepts. Clones share one
/// value, which can be [replaced](Self::replace) while it is in use.
#[derive(Clone, Debug)]
pub struct TlsServer(Arc<RwLock<Arc<ServerConfig>>>);

/// Certificate authorities that a client trusts, and its own certificate, if it has one. Clones
/// share one value, which can be [replaced](Self::replace) while it is in use.
#[derive(Clone, Debug)]
pub struct TlsClient {
    config: Arc<RwLock<Arc<ClientConfig>>>,
    /// Name that the server's certificate must have, instead of the host in its address.
    name: Option<Arc<str>>,
}

impl TlsServer {
    /// Returns a server with this certificate. With `client_authorities`, a client must have a
    /// certificate that leads to one of them.
    ///
    /// # Errors
    /// The authorities cannot be used to check certificates.
    pub fn new(
        own: &TlsIdentity,
        client_authorities: Option<&TlsAuthorities>,
    ) -> Result<Self, TlsError> {
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(TlsError::Library)?;
        let builder = match client_authorities {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                let roots = Arc::clone(&authorities.roots);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                let verifier = verifier.build().map_err(|error| TlsError::Unusable {
                    path: authorities.path.clone(),
                    why: error.to_string(),
                })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let resolver = SingleCertAndKey::from(Arc::clone(&own.0));
        let config = builder.with_cert_resolver(Arc::new(resolver));
        Ok(Self(Arc::new(RwLock::new(Arc::new(config)))))
    }

    /// Reads PEM files. With `client_authorities`, a client must have a certificate that leads to
    /// one of the authorities in that file.
    ///
    /// # Errors
    /// The files cannot be read, or do not match.
    pub fn from_files(
        files: CertificateFiles<'_>,
        client_authorities: Option<&Path>,
    ) -> Result<Self, TlsError> {
        let own = TlsIdentity::from_files(files)?;
        let authorities = client_authorities.map(TlsAuthorities::from_file);
        Self::new(&own, authorities.transpose()?.as_ref())
    }

    /// Replaces the certificate, and which clients are accepted, for new connections.
    pub fn replace(&self, new: &Self) {
        replace(&self.0, &new.0);
    }
}

impl TlsClient {
    /// Returns a client that trusts these authorities, with its own certificate, if servers
    /// require one.
    ///
    /// # Errors
    /// The TLS library rejects the configuration.
    pub fn new(authorities: &TlsAuthorities, own: Option<&TlsIdentity>) -> Result<Self, TlsError> {
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(TlsError::Library)?;
        let builder = builder.with_root_certificates(Arc::clone(&authorities.roots));
        let config = match own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let resolver = SingleCertAndKey::from(Arc::clone(&own.0));
                builder.with_client_cert_resolver(Arc::new(resolver))
            }
        };
        Ok(Self {
            config: Arc::new(RwLock::new(Arc::new(config))),
            name: None,
        })
    }

    /// Reads a PEM file of authorities' certificates, and the client's own certificate, if servers
    /// require one.
    ///
    /// # Errors
    /// A file cannot be read, or contains no usable certificate or key.
    pub fn from_files(
        authorities: &Path,
        own: Option<CertificateFiles<'_>>,
    ) -> Result<Self, TlsError> {
        let authorities = TlsAuthorities::from_file(authorities)?;
        let own = own.map(TlsIdentity::from_files).transpose()?;
        Self::new(&authorities, own.as_ref())
    }

    /// Replaces the authorities and the own certificate for new connections.
    pub fn replace(&self, new: &Self) {
        replace(&self.config, &new.config);
    }

    /// Returns this client for a server whose certificate must have this name, a host name or an IP
    /// address, whatever the address that is connected to.
    #[must_use]
    pub fn named(&self, host: &str) -> Self {
        Self {
            config: Arc::clone(&self.config),
            name: Some(host.into()),
        }
    }
}

fn current<T>(shared: &RwLock<Arc<T>>) -> Arc<T> {
    Arc::clone(&shared.read().unwrap_or_else(PoisonError::into_inner))
}

fn replace<T>(shared: &RwLock<Arc<T>>, new: &RwLock<Arc<T>>) {
    let new = current(new);
    *shared.write().unwrap_or_else(PoisonError::into_inner) = new;
}

/// Returns the host in an address of the form `HOST:PORT`, for the name in a certificate.
pub fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Describes an error of the TLS library for a client: what the server did, or what is wrong with
/// it.
pub fn how_tls_failed(error: &io::Error) -> String {
    let cause = error.get_ref().and_then(|it| it.downcast_ref());
    match cause {
        Some(rustls::Error::InvalidMessage(_)) => "its reply is not encrypted: it has no \
            certificate (--tls-cert), or has rejected the connection"
            .to_owned(),
        Some(rustls::Error::InvalidCertificate(why)) => {
            format!("its certificate is not valid for this address and --tls-ca: {why}")
        }
        Some(rustls::Error::AlertReceived(alert)) => how_ended(*alert),
        _ => error.to_string(),
    }
}

fn how_ended(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRequired => {
            "it requires a certificate of its clients (--tls-cert, --tls-key)".to_owned()
        }
        AlertDescription::UnsupportedCertificate
        | AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateExpired
        | AlertDescription::UnknownCA
        | AlertDescription::DecryptError => {
            format!("it rejected this program's certificate ({alert:?})")
        }
        _ => format!("it ended the TLS handshake ({alert:?})"),
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
        let connection = rustls::ServerConnection::new(current(&server.0));
        Ok(Self::new(connection.map_err(io::Error::other)?.into()))
    }

    /// Returns the client's encryption; the node must have a certificate for `host`, a name or an
    /// address.
    pub fn of_client(client: &TlsClient, host: &str) -> io::Result<Self> {
        let invalid = |error: String| io::Error::new(io::ErrorKind::InvalidInput, error);
        let host = client.name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| {
            invalid(format!(
                "'{host}' is neither a host name nor a complete IP address, so no certificate can \
                 be valid for it"
            ))
        })?;
        let connection = ClientConnection::new(current(&client.config), name);
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
        loop {
            if let Some(count) = self.receive_once(socket, to)? {
                return Ok(count);
            }
        }
    }

    /// Receives with at most one read of the socket; `None` if that did not complete a record.
    pub(crate) fn receive_once(
        &mut self,
        socket: &TcpStream,
        to: &mut [u8],
    ) -> io::Result<Option<usize>> {
        let mut from = socket;
        match self.0.reader().read(to) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The peer ended without closing TLS: the data may have been truncated.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Some(0)),
            outcome => return outcome.map(Some),
        }
        match self.0.read_tls(&mut from) {
            Ok(0) => return Ok(Some(0)),
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
        Ok(None)
    }

    /// Returns bytes that only the two ends of this connection can compute. Proofs cover them, so
    /// that a third party that relays a greeting to another connection gains nothing.
    ///
    /// # Errors
    /// The TLS handshake is not complete.
    pub fn binding(&self) -> io::Result<[u8; BINDING_SIZE_BYTES]> {
        let exported = self
            .0
            .export_keying_material([0; BINDING_SIZE_BYTES], BINDING_LABEL, None);
        exported.map_err(io::Error::other)
    }

    /// Returns the binding of a connection that may be encrypted: nothing if it is not.
    pub(crate) fn binding_of(tls: Option<&Self>) -> io::Result<Vec<u8>> {
        let binding = tls.map(Self::binding).transpose()?;
        Ok(binding.map_or_else(Vec::new, |it| it.to_vec()))
    }

    /// Takes parts to be sent, as many as the buffer has space for, and sends none.
    pub(crate) fn accept(&mut self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.writer().write_vectored(parts)
    }

    /// Sends what one write to the socket takes.
    pub(crate) fn flush_once(&mut self, socket: &TcpStream) -> io::Result<()> {
        let mut to = socket;
        self.0.write_tls(&mut to).map(drop)
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
