//! Tests of the control plane's promises through its public interface.

mod bound;
mod coordinators;
mod plans;
mod records;
mod served;
mod sim;
mod stories;
