//! What the control plane promises, from outside: see the modules.

mod coordinators;
mod plans;
mod records;
mod sim;
mod stories;
