//! Integration tests of `farleaf-model`: the bound, the minimal number of segments, and the exact
//! search; for keys and for strings.

mod bound;
mod keys;
mod minimality;
mod oracle;
mod strings;
mod upper;
