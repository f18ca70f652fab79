//! What the control plane promises, from outside: see the modules.

mod bound;
mod coordinators;
mod plans;
mod records;
mod served;
mod sim;
mod stories;
