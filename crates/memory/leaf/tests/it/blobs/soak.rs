//! Many sessions at random: writers that die, readers that hold on to what they have seen.

use farleaf_block::sweep::BlockSweeper;
use farleaf_block::{BlockStore, FatPointer};
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_types::OwnerWord;
use proptest::prelude::*;

use crate::account::{account, check_whole};
use crate::world::{Client, World, string};

const SIZES: [usize; 6] = [10, 200, 5_000, 20_000, 62_000, 140_000];

/// What a session's unfinished operation has seen.
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
        // An operation ends: what it had seen may be written anew from now on.
        7 => {
            reader.seen = None;
            world.publish(reader.owner);
        }
        // Another begins: what its session has published by then is no later than its beginning.
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

    /// Promise (BV4, BV8): whatever writers do, and whenever they die, what an unfinished operation
    /// has seen stays as it is, and in the end all is referred to, free, or held by the living.
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
