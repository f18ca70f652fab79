//! What is printed.

use std::fmt;

use super::Request;

/// A combination, and what both sides did: requests a second.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What was asked for.
    pub request: Request,
    /// By how many connections.
    pub connection_count: usize,
    /// With how many in flight each.
    pub in_flight: usize,
    /// Farleaf's rate.
    pub farleaf: f64,
    /// Redis' rate.
    pub redis: f64,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = match self.request {
            Request::Get => "get",
            Request::Put => "put",
        };
        write!(
            f,
            "{request}, {} connections, {:>2} in flight each: farleaf {:>9.0}/s, redis {:>9.0}/s, \
             {:.2} times",
            self.connection_count,
            self.in_flight,
            self.farleaf,
            self.redis,
            self.farleaf / self.redis
        )
    }
}
