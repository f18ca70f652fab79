//! A greeting: who says what, and what is proven by it (W1 to W5).

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use farleaf_fabric::tcp::{ProtocolKey, Secret, fill_randomly};

use crate::cluster::{ClusterTag, Membership};
use crate::error::WireError;
use crate::greeting::{Greeting, MESSAGE_SIZE_BYTES, Message, NoGreeting, Token, WIRE_VERSION};
use crate::socket::{is_timeout, set_read_time, set_write_time};

/// The word by which keys and files of this protocol are told from those of others.
pub(crate) const PROTOCOL: &str = "wire";
/// W7.
const GREETING_TIME_MAX: Duration = Duration::from_secs(5);
/// W8.
const PENALTY_TIME: Duration = Duration::from_secs(1);

const CLIENT: &[u8] = b"farleaf wire client";
const SERVER: &[u8] = b"farleaf wire server";
const OTHER: &[u8] = b"farleaf wire others";
const _: () = assert!(CLIENT.len() == SERVER.len() && OTHER.len() == SERVER.len());

/// W1: what is proven with; an error: it is a derived key.
pub(crate) fn key_of(secret: &Secret, address: &str) -> Result<ProtocolKey, WireError> {
    let key = secret.protocol_key(PROTOCOL);
    key.ok_or_else(|| WireError::DerivedKey {
        address: address.to_owned(),
        rights: secret.rights(),
    })
}

/// Receives one message, up to a moment. What does not begin like one ends it at once.
fn hear(mut socket: &TcpStream, until: Instant) -> io::Result<Result<Message, NoGreeting>> {
    let mut message = [0; MESSAGE_SIZE_BYTES];
    let mut filled_bytes = 0;
    while filled_bytes < MESSAGE_SIZE_BYTES {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        set_read_time(socket, left)?;
        match socket.read(&mut message[filled_bytes..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled_bytes += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_timeout(&error) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
        }
        if filled_bytes >= 8
            && let Err(foreign @ NoGreeting::Foreign(_)) = Greeting::decode(&message)
        {
            return Ok(Err(foreign));
        }
    }
    Ok(Ok(message))
}

fn say(mut socket: &TcpStream, greeting: &Greeting) -> io::Result<Message> {
    let message = greeting.encode();
    socket.write_all(&message)?;
    Ok(message)
}

fn nonce() -> io::Result<Token> {
    let mut nonce = [0; 32];
    fill_randomly(&mut nonce)?;
    Ok(nonce)
}

/// What a client learns of a server that lets it in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    /// How large a request may be.
    pub(crate) request_size_bytes_max: usize,
    /// The server's cluster.
    pub(crate) cluster: Option<ClusterTag>,
}

/// The client's side, within a time. A server of another cluster than the one that is expected is
/// an error (W16).
pub(crate) fn greet(
    socket: &TcpStream,
    key: &ProtocolKey,
    (address, expected): (&str, Option<ClusterTag>),
    time: Duration,
) -> Result<Admitted, WireError> {
    let until = Instant::now() + time;
    let broken = |error: io::Error| WireError::Greeting {
        address: address.to_owned(),
        how: match error.kind() {
            io::ErrorKind::TimedOut => format!("nothing came within {time:?}"),
            io::ErrorKind::UnexpectedEof => "it has hung up".to_owned(),
            _ => error.to_string(),
        },
    };
    set_write_time(socket, time).map_err(broken)?;
    let hello = Greeting::Hello {
        nonce: nonce().map_err(broken)?,
        expected,
    };
    // Who is turned away at the door may read why although nobody reads what he says.
    let said = say(socket, &hello);
    let heard = hear(socket, until).map_err(broken)?;
    let (challenge, greeting) = understood(heard, address)?;
    let Greeting::Challenge {
        request_size_bytes_max,
        cluster,
        ..
    } = greeting
    else {
        return Err(out_of_order(address));
    };
    let hello = said.map_err(broken)?;
    let proof = key.prove(&[CLIENT, &hello, &challenge]);
    say(socket, &Greeting::Proof(proof)).map_err(broken)?;
    let heard = hear(socket, until).map_err(broken)?;
    let (label, proof) = match understood(heard, address)?.1 {
        Greeting::Welcome(proof) => (SERVER, proof),
        Greeting::OtherCluster(proof) => (OTHER, proof),
        _ => return Err(out_of_order(address)),
    };
    let address = address.to_owned();
    if !key.is_proven(&[label, &hello, &challenge], &proof) {
        return Err(WireError::NotProven { address });
    }
    match expected {
        Some(expected) if label == OTHER || cluster != Some(expected) => {
            Err(WireError::OtherCluster {
                address,
                expected,
                found: cluster,
            })
        }
        None if label == OTHER => Err(out_of_order(&address)),
        _ => Ok(Admitted {
            request_size_bytes_max: request_size_bytes_max as usize,
            cluster,
        }),
    }
}

fn out_of_order(address: &str) -> WireError {
    WireError::Greeting {
        address: address.to_owned(),
        how: "it said something out of order".to_owned(),
    }
}

/// What a client has heard.
fn understood(
    heard: Result<Message, NoGreeting>,
    address: &str,
) -> Result<(Message, Greeting), WireError> {
    let address = address.to_owned();
    let decoded = heard.and_then(|message| Ok((message, Greeting::decode(&message)?)));
    match decoded {
        Ok((_, Greeting::Refusal(reason))) => Err(WireError::Refused { address, reason }),
        Ok(understood) => Ok(understood),
        Err(NoGreeting::Foreign(begin)) => Err(WireError::Greeting {
            address,
            how: format!("it said something else ({begin})"),
        }),
        Err(NoGreeting::Malformed(what)) => Err(WireError::Greeting {
            address,
            how: format!("it sent {what}"),
        }),
        Err(NoGreeting::Version { theirs, said }) => Err(WireError::Version {
            address,
            theirs,
            // What servers of all versions say of another one: this program says it, too.
            said: said.filter(|it| !it.starts_with("this server speaks version ")),
        }),
    }
}

/// Why somebody was not let in.
#[derive(Debug)]
pub(crate) enum TurnedAway {
    /// He was told this.
    Refused(String),
    /// He does not know the secret (W8).
    WrongSecret,
    /// The client knows the secret, and expects another cluster (W16).
    OtherCluster {
        expected: ClusterTag,
        own: Option<ClusterTag>,
    },
    /// He had to go for another one meanwhile (W14).
    Crowded,
    /// He has gone, or took too long.
    Gone(io::Error),
}

impl From<io::Error> for TurnedAway {
    fn from(error: io::Error) -> Self {
        Self::Gone(error)
    }
}

/// Says why, to whom may not listen any more.
pub(crate) fn refuse(socket: &TcpStream, reason: &str) {
    // Who has gone does not want to know.
    let _ = say(socket, &Greeting::Refusal(reason.to_owned()));
}

/// The server's side. `keep` gives him a place for good, before he is told that he is let in:
/// whoever was welcomed is never hung up on for another one.
pub(crate) fn admit(
    socket: &TcpStream,
    key: &ProtocolKey,
    (request_size_bytes_max, membership): (usize, &Membership),
    keep: impl FnOnce() -> bool,
) -> Result<(), TurnedAway> {
    let until = Instant::now() + GREETING_TIME_MAX;
    set_write_time(socket, GREETING_TIME_MAX)?;
    let (hello, greeting) = asked(socket, until)?;
    let Greeting::Hello { expected, .. } = greeting else {
        return Err(refused(socket, "a greeting begins with a hello".to_owned()));
    };
    let own = membership.cluster();
    let challenge = Greeting::Challenge {
        nonce: nonce()?,
        request_size_bytes_max: request_size_bytes_max as u32,
        cluster: own,
    };
    let challenge = say(socket, &challenge)?;
    let (_, greeting) = asked(socket, until)?;
    let Greeting::Proof(proof) = greeting else {
        return Err(refused(socket, "a proof was to come".to_owned()));
    };
    if !key.is_proven(&[CLIENT, &hello, &challenge], &proof) {
        return Err(TurnedAway::WrongSecret);
    }
    if let Some(expected) = expected
        && Some(expected) != own
    {
        membership.note_mistaken(expected);
        let proof = key.prove(&[OTHER, &hello, &challenge]);
        say(socket, &Greeting::OtherCluster(proof))?;
        return Err(TurnedAway::OtherCluster { expected, own });
    }
    if !keep() {
        return Err(TurnedAway::Crowded);
    }
    let proof = key.prove(&[SERVER, &hello, &challenge]);
    say(socket, &Greeting::Welcome(proof))?;
    Ok(())
}

fn refused(socket: &TcpStream, reason: String) -> TurnedAway {
    refuse(socket, &reason);
    TurnedAway::Refused(reason)
}

/// What a server has heard.
fn asked(socket: &TcpStream, until: Instant) -> Result<(Message, Greeting), TurnedAway> {
    let heard = hear(socket, until)?;
    let decoded = heard.and_then(|message| Ok((message, Greeting::decode(&message)?)));
    decoded.map_err(|error| {
        let reason = match error {
            NoGreeting::Foreign(begin) => {
                format!("this is a server of Farleaf's wire protocol, and was sent {begin}")
            }
            NoGreeting::Version { theirs, .. } => format!(
                "this server speaks version {WIRE_VERSION} of the wire protocol, the client \
                 version {theirs}: run the same version on both sides"
            ),
            NoGreeting::Malformed(what) => format!("this server was sent {what}"),
        };
        refused(socket, reason)
    })
}

/// W8: answers a wrong proof, after a while, unless the other side goes or the server stops.
pub(crate) fn punish(mut socket: &TcpStream) {
    let until = Instant::now() + PENALTY_TIME;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        // Who says more meanwhile is hung up on.
        let waited = set_read_time(socket, left).and_then(|()| socket.read(&mut [0; 1]));
        match waited {
            Err(error) if is_timeout(&error) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => return,
        }
    }
    refuse(
        socket,
        "wrong secret; give the one that this server was started with",
    );
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn secret() -> Secret {
        Secret::from_text("the secret of these tests").expect("long enough")
    }

    /// Promise: who is let in has his place before he is told so, so that no stranger takes it from
    /// him while he asks already (found by `one_too_many_is_told`); who has lost it is not told so.
    #[test]
    fn a_place_is_kept_before_the_welcome() {
        for has_place in [true, false] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = listener.local_addr().expect("bound");
            let client = TcpStream::connect(address).expect("it listens");
            let (server, _) = listener.accept().expect("it has connected");
            let key = key_of(&secret(), "here").expect("no derived key");
            std::thread::scope(|scope| {
                let admitted = scope.spawn(|| {
                    let server = server;
                    admit(&server, &key, (10, &Membership::default()), || {
                        // Nobody reads at the moment: what was said would be there.
                        client.set_nonblocking(true).expect("a socket");
                        let told = client.peek(&mut [0; 1]);
                        client.set_nonblocking(false).expect("a socket");
                        let error = told.expect_err("he was told before");
                        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                        has_place
                    })
                });
                let until = Instant::now() + GREETING_TIME_MAX;
                let hello = Greeting::Hello {
                    nonce: [1; 32],
                    expected: None,
                };
                let hello = say(&client, &hello).expect("connected");
                let heard = hear(&client, until).expect("connected");
                let challenge = heard.expect("a message");
                let proof = key.prove(&[CLIENT, &hello, &challenge]);
                say(&client, &Greeting::Proof(proof)).expect("connected");
                match admitted.join().expect("not told before") {
                    Ok(()) => assert!(has_place),
                    Err(TurnedAway::Crowded) => assert!(!has_place),
                    Err(other) => panic!("{other:?}"),
                }
                assert_eq!(hear(&client, until).is_ok(), has_place);
            });
        }
    }
}
