//! Redis' side: its server without persistence, and connections that speak its protocol.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::{Keys, Request, Server, key_of, value_of};
use crate::redis::{RedisProcess, receive};

/// Number of requests in flight while the server is filled.
const FILL_IN_FLIGHT: usize = 1000;

/// Redis server; it ends when this is dropped.
#[derive(Debug)]
pub struct RedisServer {
    address: SocketAddr,
    _process: RedisProcess,
}

impl RedisServer {
    /// Starts the program without persistence.
    ///
    /// # Errors
    /// The program does not exist, or does not start.
    pub fn start(program: &Path) -> anyhow::Result<Self> {
        // A port that was free a moment ago.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let port = address.port().to_string();
        let process =
            RedisProcess::start(program, ["--port", &port, "--bind", "127.0.0.1"], || {
                TcpStream::connect(address).map(drop)
            })?;
        Ok(Self {
            address,
            _process: process,
        })
    }

    /// Sets all records.
    ///
    /// # Errors
    /// The server failed.
    pub fn fill(&self, record_count: u64) -> anyhow::Result<()> {
        let mut connection = Connection::open(self.address, Request::Put)?;
        let mut indexes = 0..record_count;
        connection.run(FILL_IN_FLIGHT, record_count, || {
            key_of(indexes.next().unwrap_or(0))
        })
    }
}

impl Server for RedisServer {
    fn work(
        &self,
        request: Request,
        in_flight: usize,
        request_count: u64,
        keys: &mut Keys,
    ) -> anyhow::Result<Duration> {
        let mut connection = Connection::open(self.address, request)?;
        let start = Instant::now();
        connection.run(in_flight, request_count, || keys.next_key())?;
        Ok(start.elapsed())
    }
}

/// Connection that makes one kind of request.
struct Connection {
    socket: TcpStream,
    request: Request,
    /// Keys of requests in flight, in order.
    asked: std::collections::VecDeque<u64>,
    out: Vec<u8>,
    inbox: Vec<u8>,
}

impl Connection {
    fn open(address: SocketAddr, request: Request) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        Ok(Self {
            socket,
            request,
            asked: std::collections::VecDeque::new(),
            out: Vec::new(),
            inbox: Vec::new(),
        })
    }

    fn run(
        &mut self,
        in_flight: usize,
        request_count: u64,
        mut next_key: impl FnMut() -> u64,
    ) -> anyhow::Result<()> {
        let (mut asked_count, mut answered_count) = (0, 0);
        while answered_count < request_count {
            while self.asked.len() < in_flight && asked_count < request_count {
                self.ask(next_key());
                asked_count += 1;
            }
            self.socket.write_all(&self.out)?;
            self.out.clear();
            receive(&mut self.socket, &mut self.inbox)?;
            answered_count += self.take_answers()?;
        }
        Ok(())
    }

    fn ask(&mut self, key: u64) {
        let key_bytes = key.to_be_bytes();
        match self.request {
            Request::Get => self.out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$8\r\n"),
            Request::Put => self.out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$8\r\n"),
        }
        self.out.extend_from_slice(&key_bytes);
        if self.request == Request::Put {
            self.out.extend_from_slice(b"\r\n$8\r\n");
            self.out.extend_from_slice(&value_of(key).to_be_bytes());
        }
        self.out.extend_from_slice(b"\r\n");
        self.asked.push_back(key);
    }

    /// Checks the complete answers, and returns their number.
    fn take_answers(&mut self) -> anyhow::Result<u64> {
        let (mut start, mut count) = (0, 0);
        let size = match self.request {
            Request::Get => b"$8\r\n12345678\r\n".len(),
            Request::Put => b"+OK\r\n".len(),
        };
        while let Some(answer) = self.inbox.get(start..start + size) {
            let key = self
                .asked
                .pop_front()
                .context("Redis sent a reply without a request")?;
            let is_right = match self.request {
                Request::Get => answer[4..12] == value_of(key).to_be_bytes(),
                Request::Put => answer == b"+OK\r\n",
            };
            ensure!(
                is_right,
                "unexpected reply from Redis: '{}'",
                answer.escape_ascii()
            );
            start += size;
            count += 1;
        }
        self.inbox.drain(..start);
        Ok(count)
    }
}
