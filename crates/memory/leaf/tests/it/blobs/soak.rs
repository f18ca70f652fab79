//! Many random sessions: writers that die, and readers that keep references.

use farleaf_base::OwnerWord;
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_leaf::blobs::sweep::BlockSweeper;
use farleaf_leaf::blobs::{BlockStore, FatPointer};
use proptest::prelude::*;

use crate::blobs::account::{account, check_whole};
use crate::blobs::world::{Client, World, string};

const SIZES: [usize; 6] = [10, 200, 5_000, 20_000, 62_000, 140_000];

/// Reference that a session's unfinished operation has read.
struct Reader {
    owner: OwnerWord,
    seen: Option<FatPointer>,
}

fn step(
    world: &mut World,
    clients: &mut [Client<MappedEndpoint>],
    readers: &mut [Reader],
    sweeper: &BlockSweeper,
    (what, who, key, size): (u8, usize, u8, usize),
) {
    let client = &mut clients[who % 3];
    let reader = &mut readers[who % 2];
    match what {
        0..=3 => {
            let seed = u64::from(key) << 8 | size as u64;
            if let Err(error) = client.put(world, key, &string(seed, SIZES[size])) {
                assert!(error.is_full(), "{error}");
            }
        }
        4 => client.delete(world, key).expect("nothing fails"),
        5 | 6 => drop(client.recycle(world).expect("nothing fails")),
        // An operation ends: its reference may be reused from now on.
        7 => {
            reader.seen = None;
            world.publish(reader.owner);
        }
        // An operation begins: the number that its session has published is from before it.
        8 => reader.seen = reader.seen.or_else(|| world.linked(key)),
        9 => drop(world.sweep(sweeper)),
        10 => client.give_back(world).expect("nothing fails"),
        _ => {
            let dead = client.owner;
            world.fence(dead);
            *client = Client {
                owner: world.register_again(dead),
                endpoint: world.endpoint(),
                store: BlockStore::new(),
            };
        }
    }
    for client in &*clients {
        world.publish(client.owner);
    }
    for reader in &*readers {
        reader
            .seen
            .iter()
            .for_each(|pointer| check_whole(world, *pointer));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Promise: whatever writers do and whenever they die, a block that an unfinished operation has
    /// seen does not change. In the end every block is referred to, free, or held by a live
    /// session.
    #[test]
    fn nothing_that_is_being_read_is_written_anew(
        steps in proptest::collection::vec((0_u8..12, 0_usize..6, 0_u8..12, 0_usize..6), 1..120),
        is_fragmented: bool,
    ) {
        let mut world = World::new(4);
        if is_fragmented {
            world.fragment();
        }
        let mut clients = [world.client(), world.client(), world.client()];
        let mut readers = [0, 1].map(|_| Reader { owner: world.register(), seen: None });
        let sweeper = BlockSweeper::new();
        for at in steps {
            step(&mut world, &mut clients, &mut readers, &sweeper, at);
        }
        world.publish_all();
        for _ in 0..4 {
            world.sweep(&sweeper);
            world.publish_all();
        }
        account(&world);
        for client in &clients {
            world.fence(client.owner);
        }
        world.sweep_out();
        prop_assert_eq!(account(&world).held, 0);
    }
}
