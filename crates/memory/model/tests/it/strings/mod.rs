//! Models over strings: coordinates are monotone, the bound holds, routes are exact, and leaves are
//! found.

mod bound;
mod choice;
mod coordinates;
mod front_coded;
mod locate;
mod routes;
mod samples;
