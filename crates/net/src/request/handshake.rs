//! Greeting: what both sides need.

use std::io::{self, Read, Write};
use std::time::Instant;

use farleaf_base::foreign_protocol::ForeignProtocol;

use crate::request::channel::Channel;
use crate::request::error::NetError;
use crate::request::greeting::{Greeting, GreetingError, MESSAGE_SIZE_BYTES, Message, Token};
use crate::request::socket::is_timeout;
use crate::secret::{ProtocolKey, Secret, fill_randomly};

/// Name of this protocol, which separates its keys and files from those of others.
pub(crate) const PROTOCOL: &str = "wire";
/// First bytes of a TLS connection: a handshake record of version 3.
pub(crate) const TLS_HANDSHAKE: [u8; 2] = [22, 3];

pub(crate) const CLIENT: &[u8] = b"farleaf wire client";
pub(crate) const SERVER: &[u8] = b"farleaf wire server";
pub(crate) const OTHER: &[u8] = b"farleaf wire others";
const _: () = assert!(CLIENT.len() == SERVER.len() && OTHER.len() == SERVER.len());

/// Returns the key for proofs; an error if the secret is a derived key.
pub(crate) fn key_of(secret: &Secret, address: &str) -> Result<ProtocolKey, NetError> {
    let key = secret.protocol_key(PROTOCOL);
    key.ok_or_else(|| NetError::DerivedKey {
        address: address.to_owned(),
        rights: secret.rights(),
    })
}

/// Receives one message until a point in time. Ends at once if the first bytes are not those of a
/// message.
pub(crate) fn receive_message(
    channel: &mut Channel,
    until: Instant,
) -> io::Result<Result<Message, GreetingError>> {
    channel.set_end(Some(until));
    let mut message = [0; MESSAGE_SIZE_BYTES];
    let mut filled_bytes = 0;
    while filled_bytes < MESSAGE_SIZE_BYTES {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        channel.set_read_time(left)?;
        match channel.read(&mut message[filled_bytes..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled_bytes += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_timeout(&error) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
        }
        if !channel.is_encrypted() && message[..filled_bytes].starts_with(&TLS_HANDSHAKE) {
            return Ok(Err(GreetingError::Encrypted));
        }
        if let Some(protocol) = ForeignProtocol::detect(&message[..filled_bytes]) {
            return Ok(Err(GreetingError::OtherProtocol(protocol)));
        }
        if filled_bytes >= 8
            && let Err(foreign @ (GreetingError::Foreign(_) | GreetingError::MemoryNode)) =
                Greeting::decode(&message)
        {
            return Ok(Err(foreign));
        }
    }
    Ok(Ok(message))
}

pub(crate) fn send_message(channel: &mut Channel, greeting: &Greeting) -> io::Result<Message> {
    let message = greeting.encode();
    channel.write_all(&message)?;
    Ok(message)
}

pub(crate) fn nonce() -> io::Result<Token> {
    let mut nonce = [0; 32];
    fill_randomly(&mut nonce)?;
    Ok(nonce)
}
