//! Models over strings: coordinates are monotone, the bound holds, routes are exact, leaves are
//! found.

mod bound;
mod coordinates;
mod locate;
mod routes;
mod samples;
