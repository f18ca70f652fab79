//! Region servers, over an embedded coordinator and real connections, in one process.

mod crew;
mod serving;
mod splitting;
