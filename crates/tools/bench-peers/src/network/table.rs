//! Table of results.

use std::fmt;

use super::Request;

/// Combination, with the results of both sides in requests per second.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Kind of request.
    pub request: Request,
    /// Number of connections.
    pub connection_count: usize,
    /// Requests in flight per connection.
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
