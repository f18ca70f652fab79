//! Prints the diagram of the crates: `cargo run -p farleaf-tidy --example layers`.

use farleaf_tidy::layers::{LAYERS, diagram};

fn main() {
    print!("{}", diagram(LAYERS));
}
