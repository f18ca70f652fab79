//! Integration tests of `farleaf-key`: golden bytes, order, canonical decoding, ranges, values and
//! text.

mod golden;
mod keys;
mod model_order;
mod ranges;
mod strategies;
mod table;
mod text;
mod values;
