//! Fuzzing of a whole node by malicious clients that know a secret.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farleaf_base::{Incarnation, NodeId, OwnerWord, SessionId, WordAddr};
use farleaf_executor::block_on;
use rustix::net::sockopt::set_socket_linger;

use super::decoders::{queue, stream};
use super::{Random, run};
use crate::batch::Batch;
use crate::control::Control;
use crate::endpoint::Endpoint;
use crate::mapped::MappedMemory;
use crate::service::{SessionService, StopSignal};
use crate::tcp::gate::Grant;
use crate::tcp::hello::{HelloDetails, POOL, Purpose, WelcomeDetails};
use crate::tcp::messages::{ControlReply, ControlRequest, FRAME_SIZE_BYTES, Frame, JoinRequest};
use crate::tcp::service::TcpService;
use crate::tcp::{TcpClient, TcpConnectOptions, TcpEndpoint, TcpListenOptions, TcpListener};
use farleaf_net::greeting::Greeting;
use farleaf_net::secret::Pass;
use farleaf_net::secret::{Rights, Scope, Secret, Side};

/// Index from which on clients may change words.
const OPEN_FROM: u64 = 64 * 1024;
const SESSION_COUNT: u16 = 500;

/// Sessions whose numbers are reused.
#[derive(Default)]
struct Sessions {
    alive: BTreeMap<u64, u32>,
    used: BTreeSet<u16>,
    incarnation: u64,
}

impl SessionService for Sessions {
    fn register(&mut self, pid: u32) -> Result<OwnerWord, String> {
        let free = (1..=SESSION_COUNT).find(|number| !self.used.contains(number));
        let number = free.ok_or("no session is left")?;
        self.used.insert(number);
        self.incarnation += 1;
        let session = SessionId::new(number).expect("not 0");
        let owner = OwnerWord::new(session, Incarnation::new(self.incarnation));
        self.alive.insert(owner.word(), pid);
        Ok(owner)
    }

    fn fence(&mut self, owner: OwnerWord) {
        let was_alive = self.alive.remove(&owner.word()).is_some();
        assert!(was_alive, "{owner} was fenced twice, or never was");
        let (session, _) = owner.holder().expect("registered");
        self.used.remove(&session.number());
    }

    fn process_of(&mut self, owner: OwnerWord) -> Option<u32> {
        self.alive.get(&owner.word()).copied()
    }
}

impl TcpService for Sessions {
    fn grant(&self, rights: Rights) -> Grant {
        match rights {
            Rights::Read => Grant::nothing(),
            Rights::Write => Grant {
                open_from: OPEN_FROM,
                open: Vec::new(),
            },
            Rights::Admin => Grant::everything(),
        }
    }

    fn own_words(&self, owner: OwnerWord) -> Range<u64> {
        let number = owner.holder().map_or(0, |(session, _)| session.number());
        let start = OPEN_FROM + u64::from(number) * 8;
        start..start + 8
    }
}

/// Connection of an attacker that knows the secret.
struct Attacker {
    socket: TcpStream,
}

impl Attacker {
    fn connect(address: &str) -> Self {
        let socket = TcpStream::connect(address).expect("it listens");
        let limit = Some(Duration::from_mins(1));
        socket.set_read_timeout(limit).expect("a socket");
        socket.set_write_timeout(limit).expect("a socket");
        // Ports must not be used up by closed connections in TIME_WAIT.
        set_socket_linger(&socket, Some(Duration::ZERO)).expect("a socket");
        Self { socket }
    }

    fn ask(&mut self, request: &ControlRequest) -> ControlReply {
        ControlReply::decode(&self.exchange(&request.encode())).expect("an answer")
    }

    fn exchange(&mut self, request: &Frame) -> Frame {
        self.socket.write_all(request).expect("the node listens");
        let mut frame: Frame = [0; FRAME_SIZE_BYTES];
        self.socket.read_exact(&mut frame).expect("an answer");
        frame
    }

    fn log_in(&mut self, secret: &Secret, rights: Rights, purpose: Purpose) -> WelcomeDetails {
        let details = HelloDetails {
            purpose,
            pid: 1,
            pass: Pass::default(),
        };
        let hello = Greeting::Hello {
            rights,
            scope: Scope::default(),
            nonce: [7; 32],
            details: details.encode(),
        };
        let hello = hello.encode(POOL);
        let challenge = self.exchange(&hello);
        let proof = secret.prove(rights, Side::Client, &[&hello, &challenge]);
        let proof = Greeting::Proof(proof.expect("admin")).encode(POOL);
        match Greeting::decode(POOL, &self.exchange(&proof)) {
            Ok(Greeting::Welcome { details, .. }) => WelcomeDetails::decode(&details),
            other => panic!("it knows the secret: {other:?}"),
        }
    }

    /// Sends bytes and closes; if `waits`, waits until the node has closed the connection.
    fn finish(mut self, bytes: &[u8], waits: bool) {
        // The node may have closed before all bytes were sent.
        let _ = self.socket.write_all(bytes);
        if waits {
            let _ = self.socket.shutdown(std::net::Shutdown::Write);
            let mut rest = Vec::new();
            match self.socket.read_to_end(&mut rest) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    panic!("the node does not hang up on who has hung up")
                }
                _ => {}
            }
        }
    }
}

/// Returns requests as messages, usually with random changes.
fn requests(random: &mut Random, known: OwnerWord) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..=random.below(4) {
        let owner = match random.below(3) {
            0 => known,
            1 => OwnerWord::from_word(random.bits()),
            _ => OwnerWord::from_word(random.below(8)),
        };
        let request = match random.below(10) {
            0 => ControlRequest::Register,
            1 => ControlRequest::Close(owner),
            2 => ControlRequest::Life(owner),
            3 => ControlRequest::Fence(owner),
            4 => ControlRequest::MainNode,
            5 => ControlRequest::Join(JoinRequest {
                memory_id: random.bits(),
                size_bytes: random.bits(),
                wanted: NodeId(random.bits() as u8),
                address: "far.example:7470".to_owned(),
                serves_verbs: random.below(2) == 0,
            }),
            6 => ControlRequest::SetMember {
                node: NodeId(random.bits() as u8),
                state: random.below(6),
            },
            7 => ControlRequest::Member(NodeId(random.bits() as u8)),
            _ => ControlRequest::Queue(queue(random)),
        };
        bytes.extend(request.encode());
    }
    if !random.one_in(4) {
        random.mutate(&mut bytes);
    }
    bytes
}

/// Attacks the node over one connection.
fn attack(random: &mut Random, address: &str, secret: &Secret) {
    let rights = Rights::ALL[random.index(2)];
    let mut control = Attacker::connect(address);
    if random.one_in(8) {
        // Send no greeting, or an invalid one. Do not wait for the end of a penalty.
        let mut bytes = requests(random, OwnerWord::FREE);
        random.mutate(&mut bytes);
        return control.finish(&bytes, false);
    }
    let ticket = control.log_in(secret, rights, Purpose::Control).ticket;
    let ControlReply::Session { owner, .. } = control.ask(&ControlRequest::Register) else {
        panic!("there are sessions");
    };
    if random.one_in(3) {
        let bytes = requests(random, owner);
        return control.finish(&bytes, true);
    }
    let mut data = Attacker::connect(address);
    let owner = Some(owner);
    data.log_in(secret, rights, Purpose::Data { ticket, owner });
    let bytes = stream(random, OPEN_FROM + 1024);
    let waits = !random.one_in(4);
    data.finish(&bytes, waits);
}

/// Increments a word that attackers may not change.
fn works(client: &TcpClient, owner: OwnerWord, endpoint: &TcpEndpoint, expected: u64) {
    client.session_life(owner).expect("control is served");
    let mut batch = Batch::new();
    let before = batch.fetch_add(WordAddr::new(NodeId(0), 0), 1);
    block_on(endpoint.execute(&mut batch), endpoint.completions()).expect("data is served");
    assert_eq!(batch.previous(before), expected);
}

/// Promise: whatever is sent by clients that know a secret, the node continues to serve others, and
/// nothing changes that those clients' rights do not allow.
#[test]
fn fuzz_nodes() {
    let secret = Secret::from_text("the secret of this fuzzer").expect("long enough");
    let memory = Arc::new(MappedMemory::anonymous(1).expect("memory"));
    let mut options = TcpListenOptions::at("127.0.0.1:0".parse().expect("an address"));
    options.secret = Some(secret.clone());
    let listener = TcpListener::bind(&memory, &options).expect("a free port");
    let address = listener.address().to_string();
    let stop = StopSignal::new().expect("a descriptor");
    let signal = stop.clone();
    let node = std::thread::spawn(move || listener.run(&mut Sessions::default(), &signal));
    let options = TcpConnectOptions {
        secret: Some(secret.clone()),
        ..TcpConnectOptions::default()
    };
    let honest = TcpClient::connect(&address, &options).expect("it listens");
    let owner = honest.register_session().expect("a session");
    let endpoint = honest.endpoint(Some(owner)).expect("a connection");
    let mut count = 0;
    run("nodes", |random| {
        attack(random, &address, &secret);
        works(&honest, owner, &endpoint, count);
        count += 1;
    });
    let closed = &memory.words()[1..OPEN_FROM as usize];
    let is_zero = |word: &core::sync::atomic::AtomicU64| word.load(Ordering::SeqCst) == 0;
    assert!(closed.iter().all(is_zero), "a word was changed");
    TcpClient::connect(&address, &options).expect("others are let in");
    stop.stop();
    let served = node.join().expect("the node panicked");
    served.expect("the node could not go on");
}
