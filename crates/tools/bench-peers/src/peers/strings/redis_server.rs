//! Redis over a Unix socket: a hash table behind a protocol, in its own process.

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use tempfile::TempDir;

use crate::peer::{Client, Peer, PeerError, Work};
use crate::records::{Records, Sink, StringRecords};
use crate::redis::{RedisProcess, receive};

/// Number of records in flight while the server is filled.
const FILL_COUNT: usize = 1000;

/// Redis server, which listens in a folder of its own.
#[derive(Debug)]
pub struct RedisPeer {
    socket: PathBuf,
    _process: RedisProcess,
    /// Folder of the socket; removed when the server has ended.
    _folder: TempDir,
}

impl RedisPeer {
    /// Starts the program and loads the records with their first values.
    ///
    /// # Errors
    /// The program does not exist, or the server failed.
    pub fn load(records: &StringRecords, program: &Path) -> Result<Self, PeerError> {
        let folder = tempfile::tempdir().map_err(|source| PeerError::Io {
            what: "cannot create a folder for the socket of Redis",
            source,
        })?;
        let socket = folder.path().join("redis.sock");
        let options = ["--port".as_ref(), "0".as_ref(), "--unixsocket".as_ref()];
        let options = options.into_iter().chain([socket.as_os_str()]);
        let process =
            RedisProcess::start(program, options, || UnixStream::connect(&socket).map(drop));
        let process = process.map_err(|error| {
            let cause = error
                .downcast_ref::<std::io::Error>()
                .map(std::io::Error::kind);
            match cause {
                Some(ErrorKind::NotFound) => PeerError::Unavailable(format!("{error:#}")),
                _ => PeerError::Redis(error),
            }
        })?;
        let peer = Self {
            socket,
            _process: process,
            _folder: folder,
        };
        peer.fill(records).map_err(PeerError::Redis)?;
        Ok(peer)
    }

    fn connect(&self) -> anyhow::Result<RedisClient> {
        let socket = UnixStream::connect(&self.socket)?;
        Ok(RedisClient {
            socket,
            out: Vec::new(),
            inbox: Vec::new(),
            start: 0,
        })
    }

    fn fill(&self, records: &StringRecords) -> anyhow::Result<()> {
        let mut client = self.connect()?;
        let mut value = Vec::new();
        let mut unanswered_count = 0;
        for rank in 0..records.count() {
            let key = records.key(rank);
            client.say(&[b"SET", key, records.value(key, 0, &mut value)]);
            unanswered_count += 1;
            if unanswered_count == FILL_COUNT || rank + 1 == records.count() {
                client.send()?;
                for _ in 0..unanswered_count {
                    client.expect_ok()?;
                }
                unanswered_count = 0;
            }
        }
        Ok(())
    }
}

/// Connection to the server.
#[derive(Debug)]
pub struct RedisClient {
    socket: UnixStream,
    out: Vec<u8>,
    inbox: Vec<u8>,
    /// Number of bytes of the inbox that have been read.
    start: usize,
}

impl RedisClient {
    /// Adds a command to the next request.
    fn say(&mut self, words: &[&[u8]]) {
        self.begin_command(words.len());
        for word in words {
            self.say_word(word);
        }
    }

    fn begin_command(&mut self, word_count: usize) {
        write!(self.out, "*{word_count}\r\n").expect("a vector takes all");
    }

    fn say_word(&mut self, word: &[u8]) {
        write!(self.out, "${}\r\n", word.len()).expect("a vector takes all");
        self.out.extend_from_slice(word);
        self.out.extend_from_slice(b"\r\n");
    }

    fn send(&mut self) -> anyhow::Result<()> {
        self.socket.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Receives the next line of an answer, and returns its position in the inbox, without its end.
    fn line(&mut self) -> anyhow::Result<std::ops::Range<usize>> {
        let mut searched = self.start;
        loop {
            let rest = &self.inbox[searched..];
            if let Some(place) = rest.iter().position(|byte| *byte == b'\n') {
                let line = self.start..(searched + place).saturating_sub(1);
                self.start = searched + place + 1;
                return Ok(line);
            }
            searched = self.inbox.len();
            let read = self.start;
            self.receive()?;
            searched -= read - self.start;
        }
    }

    /// Waits for more bytes, and clears the inbox if all of it has been read.
    fn receive(&mut self) -> anyhow::Result<()> {
        if self.start == self.inbox.len() {
            self.inbox.clear();
            self.start = 0;
        }
        receive(&mut self.socket, &mut self.inbox).context("Redis closed the connection")
    }

    /// Receives the number after a type mark.
    fn number(&mut self, mark: u8) -> anyhow::Result<Option<usize>> {
        let line = self.line()?;
        let text = &self.inbox[line];
        let Some((_, digits)) = text.split_first().filter(|(found, _)| **found == mark) else {
            bail!("unexpected reply: '{}'", text.escape_ascii());
        };
        let digits = str::from_utf8(digits)?;
        Ok(if digits == "-1" {
            None
        } else {
            Some(digits.parse()?)
        })
    }

    /// Receives a value and passes it to the sink.
    fn value(&mut self, sink: &mut impl Sink<StringRecords>) -> anyhow::Result<()> {
        let Some(size_bytes) = self.number(b'$')? else {
            sink.value(None);
            return Ok(());
        };
        // The value and the end of its line.
        while self.inbox.len() < self.start + size_bytes + 2 {
            self.receive()?;
        }
        sink.value(Some(&self.inbox[self.start..][..size_bytes]));
        self.start += size_bytes + 2;
        Ok(())
    }

    fn expect_ok(&mut self) -> anyhow::Result<()> {
        let line = self.line()?;
        let text = &self.inbox[line];
        ensure!(
            text == b"+OK",
            "expected '+OK', found '{}'",
            text.escape_ascii()
        );
        Ok(())
    }
}

impl Peer<StringRecords> for RedisPeer {
    type Client<'a> = RedisClient;

    fn client(&self, _work: Work) -> Result<Self::Client<'_>, PeerError> {
        self.connect().map_err(PeerError::Redis)
    }
}

impl Client<StringRecords> for RedisClient {
    fn get(&mut self, key: &[u8], sink: &mut impl Sink<StringRecords>) -> Result<(), PeerError> {
        self.say(&[b"GET", key]);
        let got = self.send().and_then(|()| self.value(sink));
        got.map_err(PeerError::Redis)
    }

    /// Reads all values with one `MGET`.
    fn multi_get(
        &mut self,
        keys: &[&[u8]],
        sink: &mut impl Sink<StringRecords>,
    ) -> Result<(), PeerError> {
        self.begin_command(1 + keys.len());
        self.say_word(b"MGET");
        for key in keys {
            self.say_word(key);
        }
        let mut get = || {
            self.send()?;
            let count = self.number(b'*')?;
            ensure!(
                count == Some(keys.len()),
                "expected {} values, found {count:?}",
                keys.len()
            );
            keys.iter().try_for_each(|_| self.value(sink))
        };
        get().map_err(PeerError::Redis)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), PeerError> {
        self.say(&[b"SET", key, value]);
        let put = self.send().and_then(|()| self.expect_ok());
        put.map_err(PeerError::Redis)
    }

    /// Unsupported: keys of a hash table have no order.
    fn scan(
        &mut self,
        _from: &[u8],
        _limit: usize,
        _sink: &mut impl Sink<StringRecords>,
    ) -> Result<(), PeerError> {
        let why = "Redis does not support ordered scans".to_owned();
        Err(PeerError::Unavailable(why))
    }
}
