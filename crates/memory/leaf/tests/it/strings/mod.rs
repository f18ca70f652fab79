//! Pages as a whole: long histories against a model, with a crash at every verb and in the midst of
//! every WRITE; and any words at all, also for long (`fuzz`).

mod fuzz;
mod history;
mod memory;
mod recovered;
mod table;
mod totality;
