//! Tests of whole pages: long histories compared with a model, with a crash at every verb and
//! within every WRITE; and arbitrary words, also in long runs (`fuzz`).

mod fuzz;
mod history;
mod memory;
mod recovered;
mod table;
mod totality;
