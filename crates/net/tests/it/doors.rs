//! Greetings: which clients are admitted, and the errors of others.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farleaf_net::request::{
    Caller, ClusterTag, ConnectOptions, Connection, ListenOptions, Listener, Membership, NetError,
    Server, Service,
};
use farleaf_net::secret::{Rights, Scope, Secret, Side, local_secret_path};

use crate::parties::{
    Mirror, challenge, check, connect, connect_options, dial, dial_from, greeted, has_ended, hear,
    hello, impostor, listen_options, message, mirror, other_secret, proof, refusal, secret, serve,
};

fn refused(address: &str, options: &ConnectOptions) -> NetError {
    let error = Connection::connect(address, options).expect_err("not let in");
    assert!(error.is_unsent(), "{error}");
    error
}

/// Promise: a wrong secret is refused after a second, without delaying other clients.
#[test]
fn a_wrong_secret_is_told_after_a_second() {
    let server = mirror();
    let mut own = connect(&server);
    let options = ConnectOptions {
        secret: Some(other_secret()),
        ..connect_options()
    };
    let start = Instant::now();
    let error = refused(&server.address().to_string(), &options);
    assert!(start.elapsed() >= Duration::from_secs(1));
    assert!(matches!(error, NetError::WrongSecret { .. }), "{error}");
    assert!(error.to_string().contains("wrong secret"), "{error}");
    check(&mut own);
}

/// Service that replies with its caller's rights and key.
struct WhoAmI;

impl Service for WhoAmI {
    fn answer(&self, caller: &Caller, _: &[u8], reply: &mut Vec<u8>) {
        let text = format!("{} {:?} {}", caller.rights, caller.scope, caller.key);
        reply.extend_from_slice(text.as_bytes());
    }
}

/// Promise: a service learns which key a client has proven. A listener needs the secret itself.
#[test]
fn derived_keys_have_their_rights() {
    let server = serve(&listen_options(), WhoAmI);
    let scope = Scope::new(b"part").expect("short");
    let limited = |rights| secret().limited_text(rights, &scope).expect("derived");
    for (text, said) in [
        (secret().derived_text(Rights::Read), "read Scope() "),
        (secret().derived_text(Rights::Write), "write Scope() "),
        (Ok(limited(Rights::Write)), "write Scope(part) "),
    ] {
        let key = Secret::from_text(&text.expect("derived")).expect("a derived key");
        let options = ConnectOptions {
            secret: Some(key.clone()),
            ..connect_options()
        };
        let connection = Connection::connect(&server.address().to_string(), &options);
        let mut connection = connection.expect(said);
        let reply = String::from_utf8(connection.call(b"").expect("answered").to_vec());
        assert_eq!(reply.expect("a text"), format!("{said}{}", key.key_id()));
        let mut options = listen_options();
        options.secret = Some(key);
        let error = Listener::bind(&options).expect_err("no secret");
        assert!(matches!(error, NetError::DerivedKey { .. }), "{error}");
    }
}

/// Promise: a key that is limited to a part proves nothing about another part.
#[test]
fn a_limited_key_opens_no_other_part() {
    let server = serve(&listen_options(), WhoAmI);
    let scope = Scope::new(b"part").expect("short");
    let text = secret()
        .limited_text(Rights::Read, &scope)
        .expect("derived");
    let key = Secret::from_text(&text).expect("a derived key");
    for claimed in [&b"\x04pant"[..], b"\x00"] {
        let mut socket = dial(&server);
        let mut hello = message(1, 1, &[7; 32]);
        hello[128..128 + claimed.len()].copy_from_slice(claimed);
        socket.write_all(&hello).expect("connected");
        let challenge = hear(&mut socket);
        let proof = key.prove(Rights::Read, Side::Client, &[&hello, &challenge]);
        let proof = proof.expect("its own rights");
        socket
            .write_all(&message(3, 0, &proof.0))
            .expect("connected");
        assert!(refusal(&hear(&mut socket)).contains("wrong secret"));
    }
}

/// Promise: a listener on loopback without a secret stores one for programs of its user, as long as
/// it exists; the secret is not that of a memory node's port.
#[test]
fn a_secret_is_left_on_loopback() {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::bind(&ListenOptions::at(address)).expect("a free port");
    let at = listener.address();
    let path = local_secret_path("wire", at.ip(), at.port());
    let name = format!("wire-{}.secret", at.port());
    assert!(path.ends_with(name) && path.exists(), "{}", path.display());
    let made = listener.secret();
    let server = listener.serve(Arc::new(Mirror)).expect("threads");
    let without = ConnectOptions::default();
    let mut found = Connection::connect(&at.to_string(), &without).expect("let in");
    check(&mut found);
    let options = ConnectOptions {
        secret: Some(made),
        ..without.clone()
    };
    check(&mut Connection::connect(&at.to_string(), &options).expect("let in"));
    drop(server);
    assert!(!path.exists(), "{}", path.display());
    let error = refused(&at.to_string(), &without);
    assert!(matches!(error, NetError::Connect { .. }), "{error}");
}

/// Promise: a listener that other hosts can reach needs a secret that cannot be guessed; one
/// without gets an error.
#[test]
fn no_secret_is_told() {
    let everywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let error = Listener::bind(&ListenOptions::at(everywhere)).expect_err("no secret");
    assert!(matches!(error, NetError::NeedsSecret { .. }), "{error}");
    assert!(error.to_string().contains("farleaf secret new"), "{error}");
    let mut weak = ListenOptions::at(everywhere);
    weak.secret = Some(secret());
    let error = Listener::bind(&weak).expect_err("a phrase");
    assert!(matches!(error, NetError::WeakSecret { .. }), "{error}");
    let server = mirror();
    let without = ConnectOptions::default();
    let error = refused(&server.address().to_string(), &without);
    assert!(matches!(error, NetError::NoSecret { .. }), "{error}");
}

/// Promise: an address in use, one without a listener, and an invalid name are reported.
#[test]
fn addresses_are_told() {
    let server = mirror();
    let mut options = listen_options();
    options.address = server.address();
    let error = Listener::bind(&options).expect_err("taken");
    assert!(matches!(error, NetError::Bind { .. }), "{error}");
    let address = server.address().to_string();
    drop(server);
    for address in [address.as_str(), "127.0.0.1", "no-such-host.invalid:1", ":"] {
        let error = refused(address, &connect_options());
        assert!(matches!(error, NetError::Connect { .. }), "{error}");
        assert!(error.to_string().contains(address), "{error}");
    }
}

/// Promise: a server that does not know the secret is detected, and gets no request.
#[test]
fn an_impostor_is_found_out() {
    let (address, thread) = impostor(|mut socket| {
        let hello = hear(&mut socket);
        socket.write_all(&challenge()).expect("connected");
        let proof = hear(&mut socket);
        // Neither the client's own proof nor a proof with another secret is a valid proof of the
        // server.
        socket
            .write_all(&message(4, 0, &proof[16..48]))
            .expect("connected");
        assert!(has_ended(&mut socket), "nothing was asked");
        let _ = hello;
    });
    let error = refused(&address, &connect_options());
    assert!(matches!(error, NetError::NotProven { .. }), "{error}");
    thread.join().expect("it played");
}

/// Promise: a recorded greeting is useless on another connection, and so is a proof with the same
/// secret for another side, or for other rights than the client asks for.
#[test]
fn a_recorded_proof_is_worth_nothing() {
    let server = mirror();
    let hello = hello();
    let mut recorded = None;
    for _ in 0..2 {
        let mut socket = dial(&server);
        socket.write_all(&hello).expect("connected");
        let challenge = hear(&mut socket);
        let own = proof(Side::Client, &[&hello, &challenge]);
        let sent = recorded.unwrap_or(own);
        socket.write_all(&message(3, 0, &sent)).expect("connected");
        let answer = hear(&mut socket);
        assert_eq!(answer[8] == 4, recorded.is_none());
        recorded = Some(own);
    }
    for (side, rights) in [(Side::Node, Rights::Admin), (Side::Client, Rights::Write)] {
        let mut socket = dial(&server);
        socket.write_all(&hello).expect("connected");
        let challenge = hear(&mut socket);
        let proof = secret().prove(rights, side, &[&hello, &challenge]);
        let proof = proof.expect("it grants all rights");
        socket
            .write_all(&message(3, 0, &proof.0))
            .expect("connected");
        assert!(refusal(&hear(&mut socket)).contains("wrong secret"));
    }
}

/// Promise: of an address that sends wrong proofs without waiting for the answers, fewer than five
/// per second are checked, and most are refused unchecked. Meanwhile a client from another address
/// is admitted within 100 ms.
#[test]
fn guesses_are_limited_per_address() {
    let server = mirror();
    let guess = |_| {
        let mut socket = dial(&server);
        let hello = hello();
        socket.write_all(&hello).expect("connected");
        hear(&mut socket);
        socket
            .write_all(&message(3, 0, &[1; 32]))
            .expect("connected");
        socket
    };
    let start = Instant::now();
    let mut guesses: Vec<_> = (0..100).map(guess).collect();
    let socket = dial_from([127, 0, 0, 2], &server);
    let welcomed = Instant::now();
    greeted(socket);
    assert!(welcomed.elapsed() < Duration::from_millis(100));
    let texts: Vec<_> = guesses.iter_mut().map(|it| refusal(&hear(it))).collect();
    let seconds = start.elapsed().as_secs_f64();
    let checked = texts.iter().filter(|it| it.contains("wrong secret;"));
    let checked_count = checked.count();
    assert!(checked_count < 100 / 3, "{checked_count}");
    let rate = checked_count as f64 / seconds;
    assert!(rate < 5.0, "{checked_count} in {seconds} s");
    let refused = texts
        .iter()
        .filter(|it| it.contains("too many wrong secrets"));
    assert_eq!(refused.count(), 100 - checked_count);
}

/// Promise: another version is reported on both sides, with both numbers.
#[test]
fn versions_are_told() {
    let server = mirror();
    let mut socket = dial(&server);
    let mut hello = hello();
    hello[6] = 9;
    socket.write_all(&hello).expect("connected");
    let said = refusal(&hear(&mut socket));
    assert!(
        said.contains("version 3") && said.contains("version 9"),
        "{said}"
    );
    assert!(has_ended(&mut socket));
    let (address, thread) = impostor(|mut socket| {
        hear(&mut socket);
        let mut refusal = message(0, 3, &[]);
        refusal[6] = 9;
        refusal[48..51].copy_from_slice(b"old");
        socket.write_all(&refusal).expect("connected");
    });
    let error = refused(&address, &connect_options());
    assert!(
        matches!(error, NetError::Version { theirs: 9, .. }),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains("version 9") && text.contains("version 3"),
        "{text}"
    );
    thread.join().expect("it played");
}

/// Promise: a client that speaks HTTP or RESP, even with a request that is longer than a greeting,
/// gets an answer in its protocol that names the port, and then the end of the connection. The
/// server continues to serve.
#[test]
fn other_protocols_are_answered_readably() {
    let server = mirror();
    let long = [&b"GET / HTTP/1.1\r\n"[..], &b"X: y\r\n".repeat(1000)].concat();
    for (request, begin) in [
        (
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            "HTTP/1.1 400 Bad Request\r\n",
        ),
        (&long, "HTTP/1.1 400 Bad Request\r\n"),
        (b"*1\r\n$4\r\nPING\r\n", "-ERR "),
        (b"PING\r\n", "-ERR "),
    ] {
        let mut socket = dial(&server);
        socket.write_all(request).expect("connected");
        let mut reply = String::new();
        socket.read_to_string(&mut reply).expect("an orderly end");
        assert!(reply.starts_with(begin), "{reply}");
        assert!(reply.contains("server of persistent tables"), "{reply}");
    }
    check(&mut connect(&server));
}

/// Promise: either side answers invalid bytes instead of a greeting at once and quotes them, and
/// also rejects a message out of order. The server continues to serve.
#[test]
fn garbage_before_the_greeting_is_told() {
    let server = mirror();
    let mut socket = dial(&server);
    socket.write_all(b"SSH-2.0-x\r\n").expect("connected");
    let said = refusal(&hear(&mut socket));
    assert!(said.contains("SSH-2.0-"), "{said}");
    assert!(has_ended(&mut socket));
    for number in [0, 2, 3, 4, 5, 200] {
        let mut socket = dial(&server);
        socket
            .write_all(&message(number, 0, &[7; 32]))
            .expect("connected");
        refusal(&hear(&mut socket));
        assert!(has_ended(&mut socket));
    }
    let (address, thread) = impostor(|mut socket| {
        socket
            .write_all(b"220 smtp.example ESMTP\r\n")
            .expect("connected");
        let _ = socket.read(&mut [0; 256]);
    });
    let error = refused(&address, &connect_options());
    assert!(matches!(error, NetError::Greeting { .. }), "{error}");
    assert!(error.to_string().contains("220 smtp"), "{error}");
    thread.join().expect("it played");
    let (address, thread) = impostor(drop);
    let error = refused(&address, &connect_options());
    assert!(matches!(error, NetError::Greeting { .. }), "{error}");
    thread.join().expect("it played");
    check(&mut connect(&server));
}

/// Promise: a client that sends no greeting is disconnected after 5 seconds; a client waits for the
/// server's greeting for its own timeout.
#[test]
fn silence_in_a_greeting_ends() {
    let server = mirror();
    let start = Instant::now();
    let mut silent = dial(&server);
    let mut halting = dial(&server);
    halting.write_all(&hello()[..200]).expect("connected");
    let (address, thread) = impostor(|mut socket| {
        hear(&mut socket);
        assert!(has_ended(&mut socket));
    });
    let options = ConnectOptions {
        connect_timeout: Duration::from_millis(200),
        ..connect_options()
    };
    let error = refused(&address, &options);
    assert!(error.to_string().contains("no message within"), "{error}");
    thread.join().expect("it played");
    assert!(has_ended(&mut silent) && has_ended(&mut halting));
    let time = start.elapsed();
    assert!(
        time >= Duration::from_secs(5) && time < Duration::from_secs(15),
        "{time:?}"
    );
    check(&mut connect(&server));
}

/// Promise: a client that expects a cluster is admitted only by servers of that cluster, and learns
/// to which one another server belongs. A client that expects none is admitted by each server, and
/// learns its cluster. The server remembers which cluster was expected of it.
#[test]
fn another_cluster_is_turned_away() {
    let [one, other] = [1, 2].map(|bits| ClusterTag::new(bits << 100).expect("not 0"));
    let mut listen = listen_options();
    listen.membership = Membership::of(one);
    let server = serve(&listen, Mirror);
    let foundling = mirror();
    let connect = |server: &Server, expected: Option<ClusterTag>| {
        let mut options = connect_options();
        options.membership = expected.map_or_else(Membership::default, Membership::of);
        Connection::connect(&server.address().to_string(), &options)
    };
    for expected in [None, Some(one)] {
        let mut connection = connect(&server, expected).expect("it is its own");
        assert_eq!(connection.cluster(), Some(one));
        check(&mut connection);
    }
    assert_eq!(listen.membership.expected_by_peer(), None);
    let error = connect(&server, Some(other)).expect_err("it is another one's");
    let error_text = error.to_string();
    assert!(
        matches!(error, NetError::OtherCluster { .. }),
        "{error_text}"
    );
    assert!(error.is_unsent(), "{error_text}");
    assert!(
        error_text.contains(&one.to_string()) && error_text.contains(&other.to_string()),
        "{error_text}"
    );
    assert_eq!(listen.membership.expected_by_peer(), Some(other));
    let error_text = connect(&foundling, Some(one))
        .expect_err("it has none")
        .to_string();
    assert!(error_text.contains("belongs to no cluster"), "{error_text}");
    assert_eq!(connect(&foundling, None).expect("let in").cluster(), None);
}

/// Promise: the proofs cover both cluster ids, and whether the client is admitted: a change of one
/// of them in transit is detected, whether it hides another cluster or invents one.
#[test]
fn clusters_are_proven() {
    let one = ClusterTag::new(1 << 100).expect("not 0");
    // A server proves that it belongs to another cluster, but presents the expected one.
    for (said, proven) in [(0, 0), (1, 1), (0, 1), (1, 0)] {
        let (address, played) = impostor(move |mut socket| {
            let hello = hear(&mut socket);
            let proven_challenge = challenge();
            let mut challenge = proven_challenge;
            challenge[48..64].copy_from_slice(&hello[48..64]);
            socket.write_all(&challenge).expect("connected");
            hear(&mut socket);
            let mut details = [0; 80];
            details[0] = proven;
            let is_honest = said == proven;
            let said_before = if is_honest {
                proven_challenge
            } else {
                challenge
            };
            let proof = proof(Side::Node, &[&details, &hello, &said_before]);
            let mut welcome = message(4, 0, &proof);
            welcome[48] = said;
            socket.write_all(&welcome).expect("connected");
        });
        let mut options = connect_options();
        options.membership = Membership::of(one);
        let error = Connection::connect(&address, &options).expect_err("it was changed");
        assert!(matches!(error, NetError::NotProven { .. }), "{error}");
        played.join().expect("it has played");
    }
}
