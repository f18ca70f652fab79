//! Prints which crate may depend on which: `cargo run -p farleaf-tidy --example layers`.

use farleaf_tidy::layers::{LAYERS, picture};

fn main() {
    print!("{}", picture(LAYERS));
}
