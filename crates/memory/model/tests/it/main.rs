//! Integration tests of `farleaf-model`: the bound, the minimal number of segments, the exact find;
//! and the same over strings.

mod bound;
mod keys;
mod minimality;
mod oracle;
mod strings;
mod upper;
