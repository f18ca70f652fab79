//! The built program, as its users run it: a pool served by one process, and used by others.

mod bad_inputs;
mod bench;
mod cluster;
mod cluster_damage;
mod cluster_inputs;
mod cluster_waits;
mod full_disk;
mod morton;
mod network;
mod network_inputs;
mod node_inputs;
mod partition_inputs;
mod partitions;
mod persistent_bench;
mod pool;
mod pool_nodes;
mod records;
mod region_starts;
mod replication;
mod serving;
mod sim_check;
mod stops;
mod string_inputs;
mod strings;
mod timeline;
mod version;
