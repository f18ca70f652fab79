//! Reading of strings.

use farleaf_base::{NodeId, RemoteAddr, crc32c_bytes};
use farleaf_executor::block_on;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::blobs::{BlockError, Content, CopyOutcome, FatPointer, Form, Generation, Role};
use proptest::prelude::*;

use crate::blobs::world::{Client, MAIN_NODE, World, string};

fn read_back(
    world: &World,
    client: &Client<impl Endpoint>,
    pointer: FatPointer,
    size_bytes: u32,
    crc: u32,
) -> Result<(CopyOutcome, Vec<u8>), BlockError> {
    let access = world.access(client);
    let (mut batch, mut found) = (Batch::new(), b"before".to_vec());
    let read = access.read(&mut batch, pointer, size_bytes, crc, &mut found);
    let copied = block_on(read, || 0)?;
    assert!(found.starts_with(b"before"), "the buffer is appended to");
    let found = found.split_off(6);

    // The same string by a batch of the caller's, if possible.
    batch.clear();
    if let Some(posted) = access.post_read(&mut batch, pointer, size_bytes)? {
        let mut at_once = Vec::new();
        block_on(client.endpoint.execute(&mut batch), || 0)?;
        assert_eq!(access.copy(&batch, posted, crc, &mut at_once), copied);
        assert_eq!(at_once, found);
    }
    Ok((copied, found))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Promise: strings of all sizes are read as they were written, with any locator; with another
    /// checksum they count as changed, and the buffer is unchanged.
    #[test]
    fn strings_are_read_as_they_were_written(
        size_bytes in prop_oneof![
            0..70_usize,
            0..5000_usize,
            60_000..140_000_usize,
            255_000..270_000_usize,
        ],
        locator in proptest::collection::vec(any::<u8>(), 0..40),
        is_own_locator: bool,
        seed: u64,
    ) {
        let mut world = World::new(3);
        let client = world.client();
        let string = string(seed, size_bytes);
        let is_own_locator = is_own_locator && size_bytes <= 4000;
        let locator = if is_own_locator { &string } else { &locator };
        let content = Content::new(Role::Key, locator, &string).expect("short");
        let mut batch = Batch::new();
        let access = world.access(&client);
        let written = client.store.write_ahead(&access, &mut batch, MAIN_NODE, &content);
        let pointer = block_on(written, || 0).expect("there is room");
        let (size, crc) = (size_bytes as u32, crc32c_bytes(&string));
        let read = read_back(&world, &client, pointer, size, crc).expect("possible");
        prop_assert_eq!(read, (CopyOutcome::Whole, string.clone()));
        let read = read_back(&world, &client, pointer, size, !crc).expect("possible");
        prop_assert_eq!(read, (CopyOutcome::Changed, Vec::new()));
    }

    /// Promise: for any reference, reading and unlinking return the string, "changed", or an error
    /// that it is impossible; no verb leaves the memory.
    #[test]
    fn any_reference_is_survived(
        word: u64,
        near: u32,
        code in 0_u64..64,
        size: u32,
        is_small: bool,
    ) {
        let mut world = World::new(3);
        let client = world.client();
        client.put(&world, 1, &string(3, 150_000)).expect("there is room");
        let start = world.linked(1).expect("linked").place().block() & !1023;
        let size = if is_small { size % 200_000 } else { size };
        let block = start.saturating_sub(1024) + u64::from(near % 4096);
        for word in [word, code << 40 | block, code << 40 | block & !1023] {
            let Some(pointer) = FatPointer::from_word(word) else { continue };
            match read_back(&world, &client, pointer, size, 5) {
                Ok((copied, _)) => prop_assert_eq!(copied, CopyOutcome::Changed),
                Err(error) => {
                    let is_told = matches!(error, BlockError::Impossible { .. });
                    prop_assert!(is_told, "{}", error);
                }
            }
            let mut batch = Batch::new();
            if world.access(&client).post_unlink(&mut batch, pointer).is_ok() {
                block_on(client.endpoint.execute(&mut batch), || 0).expect("inside");
            }
        }
    }
}

/// Promise: errors of references to an unknown node, between two pieces, or to a string that does
/// not fit name the table and the place.
#[test]
fn impossible_references_are_reported() {
    let mut world = World::new(3);
    let client = world.client();
    client
        .put(&world, 1, &string(1, 100))
        .expect("there is room");
    let pointer = world.linked(1).expect("linked");
    let form = pointer.form();
    let between = FatPointer::new(pointer.place().offset_blocks(1), form, pointer.generation());
    let elsewhere = RemoteAddr::new(NodeId(9), 2048);
    let elsewhere = FatPointer::new(elsewhere, Form::Extent, Generation::default());
    for (pointer, size) in [(pointer, 169), (between, 100), (elsewhere, 100_000)] {
        let read = read_back(&world, &client, pointer, size, 0);
        let error = read.expect_err("impossible");
        assert!(matches!(error, BlockError::Impossible { .. }), "{error}");
        assert!(error.to_string().contains("table 7"), "{error}");
    }
    assert!(
        read_back(&world, &client, pointer, 168, 0).is_ok(),
        "it would fit"
    );
}
