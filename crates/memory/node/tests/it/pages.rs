//! What sessions that worked on a table of byte strings have left of its pages.

use farleaf_byte_index::load::{create_table, page_shape};
use farleaf_executor::block_on;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::LayerKind;
use farleaf_node::sweep::SweepReport;
use farleaf_page::format::PageAccess;
use farleaf_page::words::FenceWord;
use farleaf_page::{Fence, PageChange, PageDraft, PageGeometry};
use farleaf_region::allocation::ChunkAllocator;
use farleaf_region::catalog::{TableKind, TableRecord, live_word};
use farleaf_region::chunk::{ChunkEntry, ChunkPurpose, FreeLeaves};
use farleaf_types::{OwnerWord, RemoteAddr, TableId};

use crate::audit::chunks;
use crate::pool::Pool;

pub(crate) const TABLE: TableId = TableId(1);
const PAGE_SIZE_BLOCKS: u8 = 8;

/// A region with an empty table, of which a session has leased a chunk of pages and died.
struct Left {
    pool: Pool,
    dead: OwnerWord,
    /// Whoever sweeps.
    keeper: OwnerWord,
    first_page: RemoteAddr,
    /// One that the dead had leased.
    page: RemoteAddr,
}

pub(crate) fn geometry() -> PageGeometry {
    PageGeometry::new(u64::from(PAGE_SIZE_BLOCKS) * 64).expect("a size of pages")
}

fn change(addr: RemoteAddr) -> PageChange {
    PageChange {
        geometry: geometry(),
        addr,
        table: TABLE,
        next: OwnerWord::FREE,
    }
}

impl Left {
    fn new() -> Self {
        let mut pool = Pool::new();
        let maker = pool.register();
        let first_page = make_table(&pool, maker);
        pool.fence(maker);
        let dead = pool.register();
        let shape = page_shape(geometry());
        let ChunkPurpose::Leaves { slots } = shape.purpose else {
            unreachable!("pages are leaves");
        };
        let allocator = ChunkAllocator::new(&pool.plain, &pool.layout, dead);
        let leased = allocator.lease_leaves(TABLE, slots, shape.piece_count);
        let (chunk, _) = block_on(leased, || 0).expect("there is room");
        let page = pool.layout.chunk_start(chunk);
        let page = page.offset_blocks(shape.stride_blocks);
        pool.fence(dead);
        let keeper = pool.register();
        Self {
            pool,
            dead,
            keeper,
            first_page,
            page,
        }
    }

    fn do_with(&self, post: impl FnOnce(&mut Batch)) {
        let mut batch = Batch::new();
        post(&mut batch);
        let executed = self.pool.plain.execute_now(&mut batch);
        executed.expect("nothing fails");
    }

    fn sweep(&self) -> SweepReport {
        let keeper = self.pool.keeper(self.pool.endpoint(), self.keeper);
        block_on(keeper.sweep(), || 0).expect("a sweep")
    }

    /// What the chunk table says of the page's chunk.
    fn chunk(&self) -> ChunkEntry {
        let chunk = self.pool.layout.chunk_of(self.page).expect("in the pool");
        chunks(&self.pool)[chunk.0 as usize]
    }
}

/// C2, with nobody else there; where its first page is.
pub(crate) fn make_table(pool: &Pool, owner: OwnerWord) -> RemoteAddr {
    let access = PageAccess {
        endpoint: &pool.plain,
        layout: &pool.layout,
        geometry: geometry(),
        table: TABLE,
        owner,
    };
    let made = block_on(create_table(&access), || 0).expect("there is room");
    let (first_page, root) = (made.first_page, made.root);
    let record = TableRecord {
        id: TABLE,
        name: "strings".to_owned(),
        kind: TableKind::Bytes {
            page_size_blocks: PAGE_SIZE_BLOCKS,
            inline_value_size_bytes: 32,
        },
        search_layer: LayerKind::Learned.number(),
        fill_percent: 100,
        epsilon_milli: 16_000,
        first_leaf: first_page,
        part: None,
    };
    let place = pool.layout.catalog_entry(0);
    let mut batch = Batch::new();
    batch.fetch_add(pool.layout.table_num(), 1);
    batch.write(place.offset(1), &record.encode_body(root));
    batch.write_word(place, live_word(TABLE));
    block_on(pool.plain.execute(&mut batch), || 0).expect("nothing fails");
    block_on(made.give_back(&access, true), || 0).expect("nothing fails");
    first_page
}

/// Promise (W3, BP2): a page whose maker has died in the middle of its WRITE, with its lock (BP6)
/// or
/// without, is free after a sweep, and is no damage, whether its lower fence can be told or not.
/// Found by profile `bytes` of the simulator: it was lost.
#[test]
fn a_page_that_was_never_written_whole_is_free_again() {
    let outside = FenceWord {
        offset_words: 40,
        size_bytes: 48,
        adds_zero: false,
        is_outside: true,
        has_no_end: false,
    };
    let inline = FenceWord {
        size_bytes: 5,
        is_outside: false,
        ..outside
    };
    for low in [outside, inline] {
        let locks: [fn(&Left) -> OwnerWord; 3] =
            [|left| left.dead, |left| left.keeper, |_| OwnerWord::FREE];
        for lock in locks {
            let left = Left::new();
            let lock = lock(&left);
            // Nothing has arrived of the heap, and of what lists slots too much.
            let (state, high, link) = (7 << 48 | 5, FenceWord::END.word(), 0);
            let words = [lock.word(), state, low.word(), high, link, u64::MAX];
            left.do_with(|batch| batch.write(geometry().lock(left.page), &words));
            let report = left.sweep();
            let what = format!("{low:?}, lock {lock}");
            assert_eq!(
                (report.damaged_count, report.given_up_count),
                (0, 0),
                "{what}"
            );
            assert_eq!(left.pool.word(geometry().lock(left.page)), 0, "{what}");
            let chunk = left.chunk();
            assert_eq!(chunk.owner, OwnerWord::FREE, "{what}");
            let mut but_first = FreeLeaves::first(page_shape(geometry()).piece_count);
            but_first.remove(0);
            assert_eq!(chunk.free, but_first, "{what}");
        }
    }
}

/// Promise (W7): a page that others link to, and that nobody can recover, is damage: its chunk
/// stays
/// the node's.
#[test]
fn a_linked_page_that_cannot_be_recovered_is_damage() {
    let left = Left::new();
    let middle = Fence::Before(b"m".to_vec());
    let lower = (Fence::START, middle.clone());
    let lower = PageDraft::of_records(geometry(), lower, []).build(left.page);
    let upper = PageDraft::of_records(geometry(), (middle, Fence::End), []);
    let mut upper = upper.build(RemoteAddr::NULL);
    left.do_with(|batch| {
        change(left.first_page).write_new(batch, &mut { lower });
        change(left.page).write_locked(batch, &mut upper, left.dead);
        // It lists slots that it does not have.
        batch.write_word(geometry().lock(left.page).offset(5), u64::MAX);
    });
    let report = left.sweep();
    assert_eq!(report.damaged_count, 1);
    assert_eq!(left.chunk().owner, left.keeper);
}
