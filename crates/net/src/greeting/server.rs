//! The side of a greeting that listens.

use std::io;

use crate::greeting::arrival::GreetingError;
use crate::greeting::message::{Details, Greeting, Message, Protocol};
use crate::secret::{Proof, Rights, Scope, Secret, Side, fill_randomly};

/// Greeting of one client, as a server sees it.
#[derive(Debug)]
pub struct ServerGreeting {
    protocol: Protocol,
    exchange: Option<Box<Exchange>>,
}

/// What both sides have said before the proof.
#[derive(Debug)]
struct Exchange {
    rights: Rights,
    scope: Scope,
    details: Details,
    hello: Message,
    challenge: Message,
}

/// What the server does after a message.
#[derive(Debug)]
pub enum ServerStep {
    /// Send this message, and wait for the next one.
    Challenge(Box<Message>),
    /// [Check](ServerGreeting::check) this proof.
    Check(Proof),
}

impl ServerGreeting {
    /// Begins before the first message.
    pub fn new(protocol: Protocol) -> Self {
        Self {
            protocol,
            exchange: None,
        }
    }

    /// Takes the client's next message; `details` are the challenge's.
    ///
    /// # Errors
    /// The message is invalid, or out of order.
    pub fn receive(
        &mut self,
        message: &Message,
        details: impl FnOnce() -> Details,
    ) -> io::Result<Result<ServerStep, GreetingError>> {
        let decoded = Greeting::decode(self.protocol, message);
        let (is_begun, own) = (self.exchange.is_some(), details);
        Ok(match decoded {
            Err(error) => Err(error),
            Ok(Greeting::Hello {
                rights,
                scope,
                details,
                ..
            }) if !is_begun => {
                let nonce = random()?;
                let challenge = Greeting::Challenge {
                    nonce,
                    details: own(),
                };
                let challenge = challenge.encode(self.protocol);
                self.exchange = Some(Box::new(Exchange {
                    rights,
                    scope,
                    details,
                    hello: *message,
                    challenge,
                }));
                Ok(ServerStep::Challenge(Box::new(challenge)))
            }
            Ok(Greeting::Proof(proof)) if is_begun => Ok(ServerStep::Check(proof)),
            Ok(_) if is_begun => Err(GreetingError::Malformed(
                "a message other than a proof during the handshake",
            )),
            Ok(_) => Err(GreetingError::Malformed(
                "a message other than a hello at the start of the handshake",
            )),
        })
    }

    /// Returns the rights that the client asks for, once it has said so.
    pub fn rights(&self) -> Option<Rights> {
        self.exchange.as_ref().map(|it| it.rights)
    }

    /// Checks a proof against the secrets that are valid now. `binding` is that of the connection's
    /// TLS, or empty. Returns `None` if the proof is wrong.
    pub fn check(&self, secret: &Secret, proof: &Proof, binding: &[u8]) -> Option<Proven> {
        let exchange = self.exchange.as_ref()?;
        let said: &[&[u8]] = &[&exchange.hello, &exchange.challenge, binding];
        let rights = exchange.rights;
        let accepted = secret.accepted().into_iter();
        let mut keys = accepted.filter_map(|it| it.derived(rights, &exchange.scope));
        let key = keys.find(|it| it.is_proven(rights, Side::Client, said, proof))?;
        Some(Proven {
            protocol: self.protocol,
            details: exchange.details,
            said: said.concat(),
            key,
        })
    }
}

/// A client that has proven the key for its rights.
#[derive(Debug)]
pub struct Proven {
    protocol: Protocol,
    /// Details of its hello.
    pub details: Details,
    said: Vec<u8>,
    /// Key that it has proven.
    pub key: Secret,
}

impl Proven {
    /// Returns the server's proof, with which it admits the client.
    pub fn welcome(&self, details: Details) -> Message {
        let said: &[&[u8]] = &[&details, &self.said];
        let Some(proof) = self.key.prove(self.key.rights(), Side::Node, said) else {
            unreachable!("a key grants its own rights")
        };
        Greeting::Welcome { proof, details }.encode(self.protocol)
    }
}

/// Returns a random number for one greeting.
pub(crate) fn random() -> io::Result<[u8; 32]> {
    let mut nonce = [0; 32];
    fill_randomly(&mut nonce)?;
    Ok(nonce)
}
