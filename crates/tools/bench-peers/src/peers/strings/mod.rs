//! Maps of byte strings.

mod farleaf_table;
mod masstree_tree;
mod redb_file;
mod redis_server;

pub use farleaf_table::FarleafStringPeer;
pub use masstree_tree::MasstreeStringPeer;
pub use redb_file::RedbPeer;
pub use redis_server::RedisPeer;
