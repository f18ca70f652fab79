//! Recognition of peers on the wrong port: clients that speak HTTP or RESP, with readable answers
//! to them, and Farleaf's own other protocol.

use std::fmt;

/// Protocol of a client that has connected to the wrong port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignProtocol {
    /// HTTP 1 or 2, as browsers, curl and scrapers of metrics send it.
    Http,
    /// The protocol of Redis.
    Resp,
}

/// Kind of a Farleaf port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// Port of a memory node.
    MemoryNode,
    /// Port of a server or coordinator of persistent tables.
    Cluster,
}

/// First bytes of HTTP requests; the last are those of every connection of HTTP 2.
const HTTP_BEGINS: [&[u8]; 10] = [
    b"GET ",
    b"POST ",
    b"HEAD ",
    b"PUT ",
    b"DELETE ",
    b"OPTIONS ",
    b"PATCH ",
    b"CONNECT ",
    b"TRACE ",
    b"PRI * HT",
];

impl ForeignProtocol {
    /// Recognizes the protocol by the first bytes of a connection; `None` if they are of neither
    /// protocol, or too few.
    pub fn detect(first_bytes: &[u8]) -> Option<Self> {
        if HTTP_BEGINS
            .iter()
            .any(|begin| first_bytes.starts_with(begin))
        {
            return Some(Self::Http);
        }
        (is_resp_array(first_bytes) || is_inline_ping(first_bytes)).then_some(Self::Resp)
    }

    /// Returns the answer to a client of this protocol, after which the port closes the connection.
    pub fn reply(self, port: PortKind) -> String {
        let text = format!(
            "this is {port}, which does not speak {self}; {}",
            port.instead()
        );
        match self {
            Self::Http => format!(
                "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n{text}\n",
                text.len() + 1
            ),
            Self::Resp => format!("-ERR {text}\r\n"),
        }
    }
}

/// Whether the bytes begin an array of RESP, such as `*1\r\n$4\r\nPING\r\n`.
fn is_resp_array(bytes: &[u8]) -> bool {
    let Some(rest) = bytes.strip_prefix(b"*") else {
        return false;
    };
    let digit_count = rest.iter().take_while(|it| it.is_ascii_digit()).count();
    digit_count > 0 && rest[digit_count..].starts_with(b"\r\n$")
}

/// Whether the bytes begin with the command `PING` as a line.
fn is_inline_ping(bytes: &[u8]) -> bool {
    let Some((word, rest)) = bytes.split_at_checked(4) else {
        return false;
    };
    word.eq_ignore_ascii_case(b"PING") && (rest.starts_with(b"\r\n") || rest.starts_with(b"\n"))
}

impl fmt::Display for ForeignProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "HTTP",
            Self::Resp => "RESP (Redis)",
        })
    }
}

/// First bytes of every message of a server of a cluster.
pub const CLUSTER_MAGIC: [u8; 6] = *b"FLWIRE";
/// First bytes of every message of a memory node, after the two bytes of its version.
pub const MEMORY_NODE_MAGIC: [u8; 6] = *b"\0PCTLF";

impl PortKind {
    /// Recognizes the kind of a Farleaf port by the first bytes that it sends, whatever their
    /// version.
    pub fn detect(first_bytes: &[u8]) -> Option<Self> {
        let is_memory_node = |bytes: &[u8]| bytes.starts_with(&MEMORY_NODE_MAGIC);
        if first_bytes.starts_with(&CLUSTER_MAGIC) {
            Some(Self::Cluster)
        } else if first_bytes.get(2..).is_some_and(is_memory_node) {
            Some(Self::MemoryNode)
        } else {
            None
        }
    }

    const fn instead(self) -> &'static str {
        match self {
            Self::MemoryNode => "use a Farleaf client, such as `farleaf --pool tcp:HOST:PORT`",
            Self::Cluster => {
                "use a Farleaf client, such as `farleaf --cluster tcp:HOST:PORT` with the address \
                 of the coordinator"
            }
        }
    }
}

impl fmt::Display for PortKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MemoryNode => "the port of a Farleaf memory node",
            Self::Cluster => "the port of a Farleaf server of persistent tables",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: requests of HTTP and RESP are recognized as soon as enough bytes are there, and
    /// other bytes are not.
    #[test]
    fn requests_are_recognized_by_their_first_bytes() {
        let (http, resp) = (Some(ForeignProtocol::Http), Some(ForeignProtocol::Resp));
        for (bytes, expected) in [
            (&b"GET / HTTP/1.1\r\n"[..], http),
            (b"POST /a", http),
            (b"HEAD ", http),
            (b"PUT /", http),
            (b"PRI * HTTP/2.0\r\n", http),
            (b"*1\r\n$4\r\nPING\r\n", resp),
            (b"*12\r\n$", resp),
            (b"PING\r\n", resp),
            (b"ping\n", resp),
            (b"", None),
            (b"GET", None),
            (b"GETS ", None),
            (b"get / HTTP/1.1", None),
            (b"*", None),
            (b"*\r\n$", None),
            (b"*1\r\n", None),
            (b"*1\r\n+", None),
            (b"PING", None),
            (b"PINGS\r\n", None),
            (b"FLWIRE\x02\0", None),
            (&[0; 32], None),
        ] {
            let shown = bytes.escape_ascii();
            assert_eq!(ForeignProtocol::detect(bytes), expected, "{shown}");
        }
    }

    /// Promise: Farleaf's two kinds of ports are distinguished, and other bytes are of neither.
    #[test]
    fn ports_are_recognized_by_their_first_bytes() {
        let (cluster, node) = (Some(PortKind::Cluster), Some(PortKind::MemoryNode));
        for (bytes, expected) in [
            (&b"FLWIRE\x02\0"[..], cluster),
            (b"\x04\0\0PCTLF", node),
            (b"FLWIR", None),
            (b"\x04\0\0PCTL", None),
            (b"", None),
            (b"HTTP/1.1", None),
        ] {
            let shown = bytes.escape_ascii();
            assert_eq!(PortKind::detect(bytes), expected, "{shown}");
        }
    }

    /// Promise: an answer is valid in the client's protocol, and names the port and what to use.
    #[test]
    fn replies_name_the_port_and_what_to_use() {
        let reply = ForeignProtocol::Http.reply(PortKind::MemoryNode);
        let (head, body) = reply.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
        assert_eq!(body.matches('\n').count(), 1, "{body}");
        assert!(body.contains("a Farleaf memory node") && body.contains("--pool"));
        let reply = ForeignProtocol::Resp.reply(PortKind::Cluster);
        assert!(reply.starts_with("-ERR this is the port of a Farleaf server"));
        assert!(reply.ends_with("\r\n") && reply.matches('\n').count() == 1);
        assert!(reply.contains("RESP") && reply.contains("--cluster"));
    }
}
