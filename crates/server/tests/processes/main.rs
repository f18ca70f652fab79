//! What persistent tables promise when the processes of their servers are killed.
//!
//! The coordinator lives in the test's process, and the servers reach it over the wire. Under
//! `cargo test` a short version runs. The full one, as the project promises it:
//!
//! ```text
//! FARLEAF_TEST_KILLS=50 cargo test --release -p farleaf-server --test processes -- \
//!     --test-threads=1 --nocapture
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `children` | servers as processes of their own, which can be killed |
//! | `history` | what clients did and saw, with when |
//! | `check` | whether that is linearizable, key by key |
//! | `load` | clients that work while servers die |
//! | `kills` | primaries that are killed; all servers that are |

mod check;
mod children;
mod history;
mod kills;
mod load;

/// How many processes a run with kills loses.
fn kill_count(default: u64) -> u64 {
    std::env::var("FARLEAF_TEST_KILLS").map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|error| panic!("FARLEAF_TEST_KILLS is '{text}': {error}"))
    })
}
