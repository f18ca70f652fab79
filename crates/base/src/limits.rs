//! Limits of records and tables, which hold in pools, clusters, files and on the command line.
//!
//! Limits of one format or protocol are constants of the module that defines it.

/// Largest key of a byte-string table in bytes, encoded.
pub const KEY_SIZE_BYTES_MAX: usize = 4096;

/// Largest value of a byte-string table in bytes, encoded: 64 MiB.
pub const VALUE_SIZE_BYTES_MAX: usize = 64 << 20;

/// Largest name of a table in bytes of UTF-8.
pub const TABLE_NAME_SIZE_BYTES_MAX: usize = 64;
