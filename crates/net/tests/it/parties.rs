//! Services, servers, and both sides of a connection written by hand according to
//! `docs/reference/wire.md`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use farleaf_net::request::{
    Caller, ConnectOptions, Connection, ListenOptions, Listener, Server, Service,
};
use farleaf_net::secret::{Proof, Rights, Secret, Side};

/// Service that replies with the reversed request.
pub(crate) struct Mirror;

impl Service for Mirror {
    fn answer(&self, _: &Caller, request: &[u8], reply: &mut Vec<u8>) {
        assert!(reply.is_empty());
        reply.extend(request.iter().rev());
    }
}

pub(crate) fn secret() -> Secret {
    Secret::from_text("the secret of these tests").expect("long enough")
}

pub(crate) fn other_secret() -> Secret {
    Secret::from_text("the secret of other tests").expect("long enough")
}

pub(crate) fn listen_options() -> ListenOptions {
    let mut options = ListenOptions::at(SocketAddr::from(([127, 0, 0, 1], 0)));
    options.secret = Some(secret());
    options
}

pub(crate) fn serve(options: &ListenOptions, service: impl Service + 'static) -> Server {
    let listener = Listener::bind(options).expect("a free port");
    listener.serve(Arc::new(service)).expect("threads")
}

pub(crate) fn mirror() -> Server {
    serve(&listen_options(), Mirror)
}

pub(crate) fn connect_options() -> ConnectOptions {
    ConnectOptions {
        secret: Some(secret()),
        ..ConnectOptions::default()
    }
}

pub(crate) fn connect(server: &Server) -> Connection {
    Connection::connect(&server.address().to_string(), &connect_options()).expect("let in")
}

/// Checks with one round trip that a server works.
pub(crate) fn check(connection: &mut Connection) {
    assert_eq!(connection.call(b"abc").expect("answered"), b"cba");
}

/// Returns a proof of the secret of these tests, for all rights.
pub(crate) fn proof(side: Side, said: &[&[u8]]) -> [u8; 32] {
    let Proof(proof) = secret()
        .prove(Rights::Admin, side, said)
        .expect("it grants all rights");
    proof
}

/// Returns a message of a greeting.
pub(crate) fn message(number: u8, value: u32, token: &[u8]) -> [u8; 256] {
    let mut message = [0; 256];
    message[..8].copy_from_slice(b"FLWIRE\x03\0");
    message[8] = number;
    message[12..16].copy_from_slice(&value.to_le_bytes());
    message[16..16 + token.len()].copy_from_slice(token);
    message
}

/// Returns the first message of a client that asks for all rights.
pub(crate) fn hello() -> [u8; 256] {
    message(1, 3, &[7; 32])
}

/// Returns the first message of a server that takes requests of 1000 bytes.
pub(crate) fn challenge() -> [u8; 256] {
    let mut challenge = message(2, 0, &[9; 32]);
    challenge[64..68].copy_from_slice(&1000_u32.to_le_bytes());
    challenge
}

pub(crate) fn hear(socket: &mut TcpStream) -> [u8; 256] {
    let mut message = [0; 256];
    socket.read_exact(&mut message).expect("a message");
    assert_eq!(&message[..8], b"FLWIRE\x03\0");
    message
}

/// Returns the text of a refusal.
pub(crate) fn refusal(message: &[u8; 256]) -> String {
    assert!([0, 5].contains(&message[8]), "it is none");
    let text = &message[48..48 + usize::from(message[12])];
    String::from_utf8(text.to_vec()).expect("a text")
}

pub(crate) fn dial(server: &Server) -> TcpStream {
    let socket = TcpStream::connect(server.address()).expect("it listens");
    let time = Some(Duration::from_secs(20));
    socket.set_read_timeout(time).expect("a socket");
    socket
}

/// Connects from another address of this host.
pub(crate) fn dial_from(from: [u8; 4], server: &Server) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddr::from((from, 0))).expect("an address of loopback");
    connect(&socket, &server.address()).expect("it listens");
    let socket = TcpStream::from(socket);
    let time = Some(Duration::from_secs(20));
    socket.set_read_timeout(time).expect("a socket");
    socket
}

/// Returns a hand-written client that has been admitted.
pub(crate) fn greeted_client(server: &Server) -> TcpStream {
    greeted(dial(server))
}

/// Greets over a new connection.
pub(crate) fn greeted(mut socket: TcpStream) -> TcpStream {
    let hello = hello();
    socket.write_all(&hello).expect("connected");
    let challenge = hear(&mut socket);
    assert_eq!(challenge[8], 2);
    let own = proof(Side::Client, &[&hello, &challenge]);
    socket.write_all(&message(3, 0, &own)).expect("connected");
    let welcome = hear(&mut socket);
    let theirs = proof(Side::Node, &[&[0; 80], &hello, &challenge]);
    assert_eq!(welcome, message(4, 0, &theirs));
    socket
}

/// Returns a frame of this kind.
pub(crate) fn frame(kind: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let size_bytes = (payload.len() as u32).to_le_bytes();
    [size_bytes.as_slice(), &kind, payload].concat()
}

/// Receives the next frame; returns its kind and payload.
pub(crate) fn hear_frame(socket: &mut TcpStream) -> ([u8; 4], Vec<u8>) {
    let mut header = [0; 8];
    socket.read_exact(&mut header).expect("a header");
    let [s0, s1, s2, s3, kind @ ..] = header;
    let mut payload = vec![0; u32::from_le_bytes([s0, s1, s2, s3]) as usize];
    socket.read_exact(&mut payload).expect("a payload");
    (kind, payload)
}

/// Waits for the other side to send something or to end, and returns whether it has ended the
/// connection.
pub(crate) fn has_ended(socket: &mut TcpStream) -> bool {
    // Bytes that were never read turn the end into a reset.
    let ended = socket.read(&mut [0; 1]);
    ended.map_or_else(
        |error| error.kind() == std::io::ErrorKind::ConnectionReset,
        |count| count == 0,
    )
}

/// Returns an address at which a client of the library is served by `play`.
pub(crate) fn impostor(
    play: impl FnOnce(TcpStream) + Send + 'static,
) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let thread = std::thread::spawn(move || play(listener.accept().expect("a client").0));
    (address, thread)
}

/// Returns a hand-written server that admits one client, and then runs `play`.
pub(crate) fn greeted_server(
    play: impl FnOnce(TcpStream) + Send + 'static,
) -> (String, std::thread::JoinHandle<()>) {
    impostor(move |mut socket| {
        let hello = hear(&mut socket);
        let challenge = challenge();
        socket.write_all(&challenge).expect("connected");
        let proven = hear(&mut socket);
        let theirs = proof(Side::Client, &[&hello, &challenge]);
        assert_eq!(proven, message(3, 0, &theirs));
        let own = proof(Side::Node, &[&[0; 80], &hello, &challenge]);
        socket.write_all(&message(4, 0, &own)).expect("connected");
        play(socket);
    })
}
