//! A message that arrives in pieces, or something else that arrives instead.

use farleaf_base::foreign_protocol::{ForeignProtocol, PortKind};

use crate::greeting::message::{MESSAGE_SIZE_BYTES, Message, Protocol};

/// First bytes of a TLS connection: a handshake record of version 3.
const TLS_HANDSHAKE: [u8; 2] = [22, 3];

/// Reason that a server with a certificate gives to a client without TLS.
pub const TLS_REQUIRED: &str = "this server requires TLS; give the file with its authority's \
    certificate with --tls-ca";

/// Returns whether a connection that begins with this byte uses TLS.
pub fn starts_tls(first: u8) -> bool {
    first == TLS_HANDSHAKE[0]
}

/// Reason why bytes are not a message of a greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GreetingError {
    /// The peer speaks another protocol; its first bytes.
    Foreign(String),
    /// The peer uses TLS, and this side does not.
    Encrypted,
    /// The message is one of Farleaf's, for another kind of port.
    OtherPort(PortKind),
    /// The peer sent a request of a protocol that has a readable answer.
    OtherProtocol(ForeignProtocol),
    /// The message has another version.
    Version {
        /// The peer's version.
        theirs: u16,
    },
    /// Text that completes "the peer sent ...".
    Malformed(&'static str),
}

impl GreetingError {
    /// Returns the reason that a server gives the client.
    pub fn reason(&self, protocol: Protocol) -> String {
        match self {
            Self::OtherProtocol(other) => {
                format!("{} received a request of {other}", protocol.port)
            }
            Self::Foreign(begin) => format!(
                "{} received a first message that begins with '{begin}'",
                protocol.port
            ),
            Self::OtherPort(expected) => {
                format!(
                    "this is {}, but the client expects {expected}",
                    protocol.port
                )
            }
            Self::Version { theirs } => format!(
                "this server speaks version {} of its protocol, the client version {theirs}: run \
                 the same version of Farleaf on both sides",
                protocol.version
            ),
            Self::Encrypted => "the client uses TLS (--tls-ca), and this server has no \
                certificate (--tls-cert)"
                .to_owned(),
            Self::Malformed(what) => format!("this server received {what}"),
        }
    }
}

/// Bytes of one message.
#[derive(Debug)]
pub struct Arrival {
    message: Message,
    filled_bytes: usize,
}

impl Default for Arrival {
    fn default() -> Self {
        Self {
            message: [0; MESSAGE_SIZE_BYTES],
            filled_bytes: 0,
        }
    }
}

impl Arrival {
    /// Returns the space for the bytes that have not arrived; it is not empty.
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.message[self.filled_bytes..]
    }

    /// Adds bytes that were written to the [`space`](Self::space). Returns the message if it is
    /// complete, after which the next one can arrive.
    pub fn add(&mut self, count_bytes: usize) -> Option<Message> {
        self.filled_bytes += count_bytes;
        if self.filled_bytes < MESSAGE_SIZE_BYTES {
            return None;
        }
        self.filled_bytes = 0;
        Some(self.message)
    }

    /// Adds bytes like [`add`](Self::add), of a greeting's first message.
    ///
    /// # Errors
    /// The bytes cannot become a message of this protocol. Found out as early as possible, because
    /// such a peer may send fewer bytes than a message has.
    pub fn add_first(
        &mut self,
        count_bytes: usize,
        protocol: Protocol,
        is_encrypted: bool,
    ) -> Result<Option<Message>, GreetingError> {
        let arrived = &self.message[..self.filled_bytes + count_bytes];
        if !is_encrypted && arrived.starts_with(&TLS_HANDSHAKE) {
            return Err(GreetingError::Encrypted);
        }
        if let Some(other) = ForeignProtocol::detect(arrived) {
            return Err(GreetingError::OtherProtocol(other));
        }
        if arrived.len() >= 8 {
            match protocol.check(&self.message) {
                // Its sender must get to send the rest of it, or it might lose the answer.
                Ok(()) | Err(GreetingError::Version { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.add(count_bytes))
    }
}
