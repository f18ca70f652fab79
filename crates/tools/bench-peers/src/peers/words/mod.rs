//! Maps of integers.

mod btree_map;
mod congee_tree;
mod farleaf_table;
mod masstree_tree;
mod skip_list;

pub use btree_map::BTreeMapPeer;
pub use congee_tree::CongeePeer;
pub use farleaf_table::FarleafPeer;
pub use masstree_tree::MasstreePeer;
pub use skip_list::SkipListPeer;
