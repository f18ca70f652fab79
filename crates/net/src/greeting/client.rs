//! The side of a greeting that connects.

use std::io;

use farleaf_base::foreign_protocol::PortKind;

use crate::greeting::arrival::{Arrival, GreetingError};
use crate::greeting::message::{DETAILS_SIZE_BYTES, Details, Greeting, Message, Protocol};
use crate::greeting::server::random;
use crate::secret::{Rights, Scope, Secret, Side};

/// Connection on which a client greets. Both methods wait, until a time limit of the connection.
pub trait Transport {
    /// Sends all of the bytes.
    ///
    /// # Errors
    /// The connection has ended, or the time limit has passed.
    fn send_all(&mut self, from: &[u8]) -> io::Result<()>;

    /// Receives at least one byte, unless the peer has ended the connection.
    ///
    /// # Errors
    /// The connection has failed, or the time limit has passed.
    fn receive_some(&mut self, to: &mut [u8]) -> io::Result<usize>;

    /// Returns the [binding](crate::tls::TlsLayer::binding) of the connection; empty without TLS.
    ///
    /// # Errors
    /// The TLS handshake is not complete.
    fn binding(&self) -> io::Result<Vec<u8>>;

    /// Returns whether TLS is used.
    fn is_encrypted(&self) -> bool;
}

/// Reason why a greeting failed for a client.
#[derive(Debug)]
pub enum GreetFailure {
    /// The connection failed.
    Broken(io::Error),
    /// The server gave this reason.
    Refused(String),
    /// The server knows another secret; text for the user.
    WrongSecret(String),
    /// What the server sent is not a message of this protocol.
    Invalid(GreetingError),
    /// The server sent a message out of order.
    OutOfOrder,
    /// The server cannot prove that it knows the secret.
    NotProven,
    /// The client's key does not grant the rights that it asks for.
    TooWeak,
}

impl From<io::Error> for GreetFailure {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// Details of the server's messages, both of which its proof covers.
#[derive(Debug)]
pub struct Accepted {
    /// Details of the challenge.
    pub challenge: Details,
    /// Details of the welcome.
    pub welcome: Details,
}

/// Runs the client's side. Costs two round trips.
///
/// # Errors
/// The greeting failed; the connection is of no use.
pub fn greet(
    transport: &mut impl Transport,
    protocol: Protocol,
    secret: &Secret,
    rights: Rights,
    details: Details,
) -> Result<Accepted, GreetFailure> {
    let nonce = random()?;
    let hello = Greeting::Hello {
        rights,
        scope: secret.scope(),
        nonce,
        details,
    };
    let hello = hello.encode(protocol);
    // Reads even if writing failed: a server that rejects the client at once sends a reason without
    // reading the hello.
    let sent = transport.send_all(&hello);
    let received = receive(transport, protocol)?;
    let Greeting::Challenge { details, .. } = decode(protocol, &received)? else {
        return Err(GreetFailure::OutOfOrder);
    };
    sent?;
    let binding = transport.binding()?;
    let said: &[&[u8]] = &[&hello, &received, &binding];
    let proof = secret.prove(rights, Side::Client, said);
    let proof = Greeting::Proof(proof.ok_or(GreetFailure::TooWeak)?);
    let sent = transport.send_all(&proof.encode(protocol));
    let answer = receive(transport, protocol)?;
    let challenge = details;
    match decode(protocol, &answer)? {
        Greeting::Welcome { proof, details } => {
            sent?;
            let said: &[&[u8]] = &[&details, &hello, &received, &binding];
            if !secret.is_proven(rights, Side::Node, said, &proof) {
                return Err(GreetFailure::NotProven);
            }
            let welcome = details;
            Ok(Accepted { challenge, welcome })
        }
        _ => Err(GreetFailure::OutOfOrder),
    }
}

/// Returns the kind of the Farleaf port at the other end, by its answer to a hello; `None` if it is
/// none. Needs no secret. Costs a round trip.
pub fn port_of(transport: &mut impl Transport, protocol: Protocol) -> Option<PortKind> {
    let hello = Greeting::Hello {
        rights: Rights::Read,
        scope: Scope::default(),
        nonce: [0; 32],
        details: [0; DETAILS_SIZE_BYTES],
    };
    transport.send_all(&hello.encode(protocol)).ok()?;
    match receive(transport, protocol) {
        Ok(_) | Err(GreetFailure::Invalid(GreetingError::Version { .. })) => Some(protocol.port),
        Err(GreetFailure::Invalid(GreetingError::OtherPort(port))) => Some(port),
        Err(_) => None,
    }
}

fn receive(transport: &mut impl Transport, protocol: Protocol) -> Result<Message, GreetFailure> {
    let mut arrival = Arrival::default();
    loop {
        let count = transport.receive_some(arrival.space())?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let added = arrival.add_first(count, protocol, transport.is_encrypted());
        if let Some(message) = added.map_err(GreetFailure::Invalid)? {
            return Ok(message);
        }
    }
}

fn decode(protocol: Protocol, message: &Message) -> Result<Greeting, GreetFailure> {
    match Greeting::decode(protocol, message) {
        Ok(Greeting::Refusal(reason)) => Err(GreetFailure::Refused(reason)),
        Ok(Greeting::WrongSecret(reason)) => Err(GreetFailure::WrongSecret(reason)),
        Ok(greeting) => Ok(greeting),
        Err(error) => Err(GreetFailure::Invalid(error)),
    }
}
