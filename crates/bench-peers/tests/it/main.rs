//! All maps give the same answers, and a comparison of them runs to its end.

mod answers;
mod whole_runs;
