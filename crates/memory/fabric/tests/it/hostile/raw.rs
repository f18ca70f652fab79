//! Independent implementation of the protocol from its documentation, without the library's code:
//! 256-byte messages of a greeting, proofs, frames of verbs.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::network::SECRET;

/// Magic: "FLTCP", a zero, and the version.
pub(super) const MAGIC: u64 = 0x464C_5443_5000_0005;
pub(super) const MESSAGE_SIZE_BYTES: usize = 256;

/// Purposes of a connection.
pub(super) const CONTROL: u64 = 1;
pub(super) const DATA: u64 = 2;
/// Rights, as a greeting numbers them.
pub(super) const READ: u64 = 1;
pub(super) const WRITE: u64 = 2;
pub(super) const ADMIN: u64 = 3;

/// Status of replies to frames.
pub(super) const DONE: u64 = 0;
pub(super) const OUT_OF_REGION: u64 = 1;
pub(super) const FORBIDDEN: u64 = 2;
pub(super) const FENCED: u64 = 3;
pub(super) const MALFORMED: u64 = 4;
pub(super) const SKIPPED: u64 = 5;

/// Size of the largest frame in words.
pub(super) const FRAME_SIZE_WORDS_MAX: u64 = 1 << 16;

pub(super) type Message = [u8; MESSAGE_SIZE_BYTES];
pub(super) type Key = [u8; 32];

/// Returns a message of these words; the rest is zeros.
pub(super) fn message(words: &[u64]) -> Message {
    let mut message = [0; MESSAGE_SIZE_BYTES];
    message[..words.len() * 8].copy_from_slice(&bytes(words));
    message
}

pub(super) fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(super) fn word(bytes: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(bytes[index * 8..][..8].try_into().expect("8 bytes"))
}

/// Returns the text of a refusal on a control connection.
pub(super) fn refusal(message: &Message) -> String {
    assert_eq!(word(message, 1), 0, "no refusal: {:?}", &message[..64]);
    let size = word(message, 7) as usize;
    String::from_utf8(message[64..64 + size].to_vec()).expect("UTF-8")
}

/// Returns the number of a message of a greeting.
pub(super) fn number_of(message: &Message) -> u32 {
    u32::from_le_bytes(message[8..12].try_into().expect("4 bytes"))
}

/// Returns the text of a refusal in a greeting.
pub(super) fn turned_away(message: &Message) -> String {
    assert!(
        [0, 5].contains(&number_of(message)),
        "no refusal: {:?}",
        &message[..64]
    );
    let size = usize::from(message[12]);
    String::from_utf8(message[48..48 + size].to_vec()).expect("UTF-8")
}

/// Returns a message of a greeting: its number, the value beside it, its token, its details.
pub(super) fn greeting(number: u32, value: u32, token: &[u8], details: &[u8]) -> Message {
    let mut message = message(&[MAGIC, u64::from(number) | u64::from(value) << 32]);
    message[16..16 + token.len()].copy_from_slice(token);
    message[48..48 + details.len()].copy_from_slice(details);
    message
}

fn hmac(key: &[u8], said: &[&[u8]]) -> Key {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any size");
    for part in said {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// Returns the key for these rights. Each key is derived from a stronger one: from the secret the
/// key to administer, from that the key to write, from that the key to read.
pub(super) fn key_of(secret: &str, rights: u64) -> Key {
    let admin = hmac(secret.as_bytes(), &[b"farleaf 1 admin"]);
    let write = hmac(&admin, &[b"farleaf 1 write"]);
    match rights {
        ADMIN => admin,
        WRITE => write,
        _ => hmac(&write, &[b"farleaf 1 read"]),
    }
}

/// Returns the client's proof of the key.
pub(super) fn proof(key: &Key, hello: &[u8], challenge: &[u8]) -> Key {
    hmac(key, &[b"farleaf 1 client", hello, challenge])
}

/// Returns the node's proof, which covers the details of its welcome.
pub(super) fn node_proof(key: &Key, details: &[u8], hello: &[u8], challenge: &[u8]) -> Key {
    hmac(key, &[b"farleaf 1 node", details, hello, challenge])
}

/// Returns the client's second message of a greeting.
pub(super) fn proof_message(proof: &Key) -> Message {
    greeting(3, 0, proof, &[])
}

/// First message of a greeting.
#[derive(Clone, Copy)]
pub(super) struct Hello {
    pub(super) purpose: u64,
    pub(super) rights: u64,
    pub(super) owner: u64,
    pub(super) ticket: [u8; 16],
}

impl Hello {
    pub(super) fn control(rights: u64) -> Self {
        Self {
            purpose: CONTROL,
            rights,
            owner: 0,
            ticket: [0; 16],
        }
    }

    pub(super) fn message(&self) -> Message {
        let mut details = bytes(&[self.purpose | 77 << 32, self.owner]);
        details.extend(self.ticket);
        greeting(1, self.rights as u32, &[0x5A; 32], &details)
    }
}

/// Messages of a greeting.
pub(super) struct Greeting {
    pub(super) hello: Message,
    pub(super) challenge: Message,
    pub(super) proof: Message,
    pub(super) answer: Message,
}

/// A reply to a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FrameReply {
    pub(super) tag: u64,
    pub(super) status: u64,
    pub(super) executed_verb_count: u64,
    pub(super) words: Vec<u64>,
}

/// A connection that can send any bytes.
pub(super) struct Raw(pub(super) TcpStream);

impl Raw {
    /// Connects. If the node never replies, the test fails after a long time.
    pub(super) fn connect(address: &str) -> Self {
        let socket = TcpStream::connect(address).expect("it listens");
        socket.set_nodelay(true).expect("a socket");
        let limit = Some(Duration::from_mins(1));
        socket.set_read_timeout(limit).expect("a socket");
        socket.set_write_timeout(limit).expect("a socket");
        Self(socket)
    }

    /// Connects from an address of this host.
    pub(super) fn connect_from(own: SocketAddr, node: &str) -> Self {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let made = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        let node: SocketAddr = node.parse().expect("an address");
        bind(&made, &own).expect("an address of loopback");
        connect(&made, &node).expect("it listens");
        Self(TcpStream::from(made))
    }

    /// Connects and greets as a client that knows the secret.
    pub(super) fn log_in(address: &str, rights: u64) -> (Self, [u8; 16]) {
        let mut raw = Self::connect(address);
        let greeting = raw.greet(&Hello::control(rights), &key_of(SECRET, rights));
        let ticket = ticket_of(&greeting.answer);
        (raw, ticket)
    }

    /// Opens a data connection of a client, and of a session unless the owner word is 0.
    pub(super) fn open_data(address: &str, rights: u64, ticket: [u8; 16], owner: u64) -> Self {
        let mut raw = Self::connect(address);
        let greeting = raw.greet_data(rights, ticket, owner);
        assert_eq!(number_of(&greeting.answer), 4, "welcome");
        raw
    }

    /// Requests a data connection.
    pub(super) fn greet_data(&mut self, rights: u64, ticket: [u8; 16], owner: u64) -> Greeting {
        let hello = Hello {
            purpose: DATA,
            rights,
            owner,
            ticket,
        };
        self.greet(&hello, &key_of(SECRET, rights))
    }

    pub(super) fn greet(&mut self, hello: &Hello, key: &Key) -> Greeting {
        let hello = hello.message();
        let challenge = self.ask(&hello);
        assert_eq!(number_of(&challenge), 2, "a challenge");
        let proof = proof_message(&proof(key, &hello, &challenge));
        let answer = self.ask(&proof);
        Greeting {
            hello,
            challenge,
            proof,
            answer,
        }
    }

    pub(super) fn peer_of_node(&self) -> SocketAddr {
        self.0.local_addr().expect("connected")
    }

    /// Sends as much as the other side accepts.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes);
    }

    /// Returns the next message; `None` if the node closed the connection.
    pub(super) fn receive(&mut self) -> Option<Message> {
        let mut message = [0; MESSAGE_SIZE_BYTES];
        self.fill(&mut message).then_some(message)
    }

    pub(super) fn ask(&mut self, message: &Message) -> Message {
        self.send(message);
        self.receive().expect("an answer")
    }

    /// Registers a session; returns its owner word.
    pub(super) fn register(&mut self) -> u64 {
        let answer = self.ask(&message(&[MAGIC, 3]));
        assert_eq!(word(&answer, 1), 3, "a session");
        word(&answer, 2)
    }

    /// Returns the next reply to a frame; `None` if the node closed the connection.
    pub(super) fn receive_frame(&mut self) -> Option<FrameReply> {
        let mut head = [0; 16];
        if !self.fill(&mut head) {
            return None;
        }
        let header = word(&head, 0);
        let size_words = (header & 0xFFFF_FFFF) as usize;
        let mut data = vec![0; (size_words - 2) * 8];
        assert!(self.fill(&mut data), "a whole reply");
        Some(FrameReply {
            tag: word(&head, 1),
            status: header >> 48,
            executed_verb_count: header >> 32 & 0xFFFF,
            words: (0..size_words - 2)
                .map(|index| word(&data, index))
                .collect(),
        })
    }

    /// Waits until the node has closed the connection, and ignores what it sends before.
    pub(super) fn wait_for_end(&mut self) {
        let mut buffer = [0; 4096];
        loop {
            match self.0.read(&mut buffer) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if is_time_out(&error) => panic!("the node did not hang up"),
                Err(_) => return,
            }
        }
    }

    /// Fills the buffer; returns false if the node closed the connection before.
    fn fill(&mut self, buffer: &mut [u8]) -> bool {
        match self.0.read_exact(buffer) {
            Ok(()) => true,
            Err(error) if is_time_out(&error) => panic!("the node does not answer"),
            Err(_) => false,
        }
    }
}

fn is_time_out(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// Returns the ticket of a welcome.
pub(super) fn ticket_of(answer: &Message) -> [u8; 16] {
    assert_eq!(number_of(answer), 4, "welcome");
    answer[56..72].try_into().expect("16 bytes")
}

/// Returns a frame of verbs, each given by its words.
pub(super) fn frame(tag: u64, more: bool, verbs: &[Vec<u64>]) -> Vec<u8> {
    let size_words = 2 + verbs.iter().map(Vec::len).sum::<usize>();
    let header = size_words as u64 | (verbs.len() as u64) << 32 | u64::from(more) << 48;
    let mut words = vec![header, tag];
    words.extend(verbs.iter().flatten());
    bytes(&words)
}

pub(super) fn read(index: u64, word_count: u64) -> Vec<u64> {
    vec![index, word_count]
}

pub(super) fn write(index: u64, words: &[u64]) -> Vec<u64> {
    let mut verb = vec![1 << 56 | index, words.len() as u64];
    verb.extend(words);
    verb
}

pub(super) fn compare_swap(index: u64, expected: u64, desired: u64) -> Vec<u64> {
    vec![2 << 56 | index, expected, desired]
}

pub(super) fn fetch_add(index: u64, delta: u64) -> Vec<u64> {
    vec![3 << 56 | index, delta]
}
