//! Integration tests of `farleaf-model`: the bound, the minimal number of segments, the exact find.

mod bound;
mod keys;
mod minimality;
mod oracle;
mod upper;
