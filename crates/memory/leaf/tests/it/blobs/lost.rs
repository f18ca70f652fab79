//! Blocks that a session holds on several nodes, one of which is lost.

use farleaf_base::NodeId;
use farleaf_executor::block_on;
use farleaf_fabric::Batch;
use farleaf_leaf::blobs::{BlockStore, Content, FatPointer, Role, SizeClass};
use farleaf_pool::chunk::{CHUNK_ENTRY_SIZE_WORDS, ChunkEntry, ChunkPurpose};

use crate::blobs::dying_endpoint::DyingEndpoint;
use crate::blobs::world::{Client, DATA_NODE, MAIN_NODE, World, string};

/// Size of a string that takes two chunks.
const EXTENT_SIZE_BYTES: usize = 100_000;
/// Size of a string that takes a chunk as a single piece.
const PIECE_SIZE_BYTES: usize = 60_000;

/// Returns a session of a pool of two nodes.
fn client(world: &mut World) -> Client<DyingEndpoint> {
    let data_node = world.add_data_node(3);
    Client {
        endpoint: DyingEndpoint::of_two(&world.memory, &data_node),
        owner: world.register(),
        store: BlockStore::new(),
    }
}

/// Writes unreferenced blocks on a node, until `count` are written or one fails.
fn write(
    world: &World,
    client: &Client<DyingEndpoint>,
    node: NodeId,
    count: usize,
    size_bytes: usize,
) -> Result<Vec<FatPointer>, farleaf_leaf::blobs::BlockError> {
    let string = string(1, size_bytes);
    let content = Content::new(Role::Value, &[1], &string)?;
    let (access, mut batch) = (world.access(client), Batch::new());
    let mut write = || {
        let ahead = client
            .store
            .write_ahead(&access, &mut batch, node, &content);
        block_on(ahead, || 0)
    };
    (0..count).map(|_| write()).collect()
}

/// Writes an extent on each of these nodes, and puts it back.
fn put_extents_back(
    world: &World,
    client: &Client<DyingEndpoint>,
    nodes: [NodeId; 2],
) -> Vec<FatPointer> {
    let extents = nodes.map(|node| write(world, client, node, 1, EXTENT_SIZE_BYTES));
    let extents = extents.map(|written| written.expect("there is room")[0]);
    for extent in extents {
        client.store.put_back(extent);
    }
    extents.to_vec()
}

fn purpose(world: &World, pointer: FatPointer) -> Option<ChunkPurpose> {
    let chunk = world.layout.chunk_of(pointer.place()).expect("in a chunk");
    let entry = world.words(world.layout.chunk_entry(chunk), CHUNK_ENTRY_SIZE_WORDS);
    ChunkEntry::decode(&entry).purpose
}

/// Promise: giving back does not stop at a lost node. Everything elsewhere becomes free: pieces,
/// kept extents and limbo. The session holds nothing and reports so.
#[test]
fn what_lies_elsewhere_is_given_back() {
    for nodes in [[MAIN_NODE, DATA_NODE], [DATA_NODE, MAIN_NODE]] {
        let mut world = World::new(3);
        let client = client(&mut world);
        let class = SizeClass::from_number(1).expect("a class");
        let mut blocks = Vec::new();
        for node in nodes {
            let access = world.access(&client);
            let leased = client.store.lease_more(&access, node, class);
            block_on(leased, || 0).expect("there is room");
            let piece = client.store.take(node, class).expect("one was leased");
            client.store.put_back(piece);
            blocks.push(piece);
        }
        blocks.extend(put_extents_back(&world, &client, nodes));
        client.recycle(&world).expect("both are there");
        assert_eq!(client.store.held().limbo_count, 0, "extents are kept");
        let access = world.access(&client);
        let mut batch = Batch::new();
        let large = string(1, 2 * EXTENT_SIZE_BYTES);
        let content = Content::new(Role::Value, &[1], &large).expect("short enough");
        for node in nodes {
            let ahead = client
                .store
                .write_ahead(&access, &mut batch, node, &content);
            let extent = block_on(ahead, || 0).expect("there is room");
            client.store.put_back(extent);
            blocks.push(extent);
        }
        assert_eq!(client.store.held().limbo_count, 2);

        client.endpoint.lose_data_node();
        client.give_back(&world).expect("the main node is there");
        assert!(client.store.is_empty(), "{:?}", client.store.held());
        blocks.retain(|block| block.place().node() == MAIN_NODE);
        assert_eq!(blocks.len(), 3);
        for block in blocks {
            assert_eq!(purpose(&world, block), Some(ChunkPurpose::Free), "{block}");
        }
    }
}

/// Promise: if kept extents must be freed for space, one on a lost node causes no error, and none
/// elsewhere is forgotten.
#[test]
fn space_is_made_of_what_lies_elsewhere() {
    for nodes in [[MAIN_NODE, DATA_NODE], [DATA_NODE, MAIN_NODE]] {
        let mut world = World::new(3);
        let client = client(&mut world);
        let extents = put_extents_back(&world, &client, nodes);
        client.recycle(&world).expect("both are there");
        client.endpoint.lose_data_node();
        let full = write(&world, &client, MAIN_NODE, 1000, PIECE_SIZE_BYTES);
        let full = full.expect_err("a region has no thousand chunks");
        assert!(full.is_full(), "{full}");
        let main_node = extents
            .iter()
            .find(|extent| extent.place().node() == MAIN_NODE);
        let used = purpose(&world, *main_node.expect("one of them"));
        assert!(
            matches!(used, Some(ChunkPurpose::Blocks { .. })),
            "{used:?}"
        );
        assert_eq!(client.store.held().free_count, 0);
    }
}
