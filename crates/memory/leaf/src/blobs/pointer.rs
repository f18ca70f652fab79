//! Fat pointer: the place of a value block, its form, and its generation at that place.

use core::fmt;

use farleaf_base::RemoteAddr;
use farleaf_pool::PoolLayout;
use farleaf_pool::layout::{CHUNK_SIZE_BLOCKS, ChunkIndex};

use crate::blobs::class::SizeClass;

/// Generation of a block among the successive blocks at a place: 10 bits, wrapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Generation(u16);

impl Generation {
    /// Number of generations.
    pub const COUNT: u16 = 1 << 10;

    /// Creates a generation from the lowest 10 bits of a number.
    pub const fn new(number: u16) -> Self {
        Self(number % Self::COUNT)
    }

    /// Returns the number, less than [`COUNT`](Self::COUNT).
    pub const fn number(self) -> u16 {
        self.0
    }

    /// Returns the generation of the next block at the same place.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0 + 1)
    }
}

/// Kind of memory that a block occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Piece of a chunk that contains the string.
    Piece(SizeClass),
    /// Piece of a chunk that lists the extents with the string.
    List(SizeClass),
    /// Adjacent whole chunks that contain the string.
    Extent,
}

const EXTENT_CODE: u16 = 24;
const LIST_BIT: u16 = 1 << 5;
const CODE_BITS: u32 = 6;

impl Form {
    const fn code(self) -> u16 {
        match self {
            Self::Piece(class) => class.number() as u16,
            Self::List(class) => LIST_BIT | class.number() as u16,
            Self::Extent => EXTENT_CODE,
        }
    }

    fn from_code(code: u16) -> Option<Self> {
        let class = |code: u16| SizeClass::from_number(code as u8);
        match code {
            EXTENT_CODE => Some(Self::Extent),
            code if code & LIST_BIT != 0 => class(code & !LIST_BIT).map(Self::List),
            code => class(code).map(Self::Piece),
        }
    }
}

/// Pointer to a value block, as pages store it.
///
/// ```text
/// bit 63      56 55         46 45   40 39                            0
///     [  node  ] [ generation ] [form] [ offset in 64-byte blocks    ]
/// ```
///
/// `form`: a size class, 24 for an extent, 32 plus a size class for a list.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FatPointer(RemoteAddr);

impl FatPointer {
    /// Creates a pointer to the block of this generation at a place that is not null.
    pub fn new(place: RemoteAddr, form: Form, generation: Generation) -> Self {
        assert!(!place.is_null(), "a value block is somewhere");
        Self(place.with_spare(form.code() | generation.number() << CODE_BITS))
    }

    /// Decodes a stored pointer; `None` if the word is not one. The caller must check whether it
    /// leads to a possible place ([`Site::of`]).
    pub fn from_word(word: u64) -> Option<Self> {
        let addr = RemoteAddr::from_word(word);
        let code = addr.spare() & ((1 << CODE_BITS) - 1);
        let is_one = !addr.is_null() && Form::from_code(code).is_some();
        is_one.then_some(Self(addr))
    }

    /// Encodes the pointer.
    pub const fn word(self) -> u64 {
        self.0.word()
    }

    /// Returns the start of the block.
    pub const fn place(self) -> RemoteAddr {
        self.0.place()
    }

    /// Returns the form of the block.
    pub fn form(self) -> Form {
        let code = self.0.spare() & ((1 << CODE_BITS) - 1);
        Form::from_code(code).expect("pointers are made of a form")
    }

    /// Returns the generation of the block.
    pub const fn generation(self) -> Generation {
        Generation::new(self.0.spare() >> CODE_BITS)
    }

    /// Returns a pointer to the next block at the same place, of any form.
    #[must_use]
    pub fn next(self, form: Form) -> Self {
        Self::new(self.place(), form, self.generation().next())
    }
}

impl fmt::Debug for FatPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, generation) = (self.place(), self.generation().number());
        write!(f, "{place} {:?} generation {generation}", self.form())
    }
}

impl fmt::Display for FatPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Piece and chunk that a pointer leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Chunk of the block; the first one of an extent.
    pub chunk: ChunkIndex,
    /// Number of the piece in the chunk; 0 for an extent.
    pub piece: u64,
}

impl Site {
    /// Returns the place that a pointer leads to; `None` if no block of its form can be there, or
    /// the node is unknown.
    pub fn of(layout: &PoolLayout, pointer: FatPointer) -> Option<Self> {
        let place = pointer.place();
        let chunk = layout.chunk_of(place)?;
        let offset = place.block() - layout.chunk_start(chunk).block();
        let (stride, count) = match pointer.form() {
            Form::Piece(class) | Form::List(class) => (class.stride_blocks(), class.piece_count()),
            Form::Extent => (CHUNK_SIZE_BLOCKS, 1),
        };
        let piece = offset / stride;
        let is_one = offset.is_multiple_of(stride) && piece < count;
        is_one.then_some(Self { chunk, piece })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;
    use farleaf_pool::{NodeLayout, Superblock};
    use proptest::prelude::*;

    fn layout() -> PoolLayout {
        PoolLayout::from(NodeLayout {
            node: NodeId(0),
            superblock: Superblock::new(3 << 20, 1).expect("large enough"),
        })
    }

    /// Promise: the bits are these.
    #[test]
    fn pointer_bits_are_golden() {
        let place = RemoteAddr::new(NodeId(0xAB), 0x12_3456_789A);
        let class = SizeClass::from_number(23).expect("a class");
        let word = |form, number| FatPointer::new(place, form, Generation::new(number)).word();
        assert_eq!(word(Form::Piece(class), 0), 0xAB00_1712_3456_789A);
        assert_eq!(word(Form::List(class), 1), 0xAB00_7712_3456_789A);
        assert_eq!(word(Form::Extent, 1023), 0xABFF_D812_3456_789A);
        let last = FatPointer::from_word(word(Form::Extent, 1023)).expect("one");
        assert_eq!(last.next(Form::Extent).generation(), Generation::new(0));
    }

    proptest! {
        /// Promise: any word decodes to a pointer or to nothing; a pointer encodes to the same
        /// word, and leads to a piece of a chunk or nowhere.
        #[test]
        fn any_word_is_read(word: u64, near: u16) {
            let start = layout().chunk_start(ChunkIndex(0)).block();
            for word in [word, word & (0xFFFF << 40) | (start + u64::from(near))] {
                let Some(pointer) = FatPointer::from_word(word) else { continue };
                prop_assert_eq!(pointer.word(), word);
                let again =
                    FatPointer::new(pointer.place(), pointer.form(), pointer.generation());
                prop_assert_eq!(again, pointer);
                let Some(site) = Site::of(&layout(), pointer) else { continue };
                prop_assert!(site.piece < 384);
                prop_assert_eq!(layout().chunk_of(pointer.place()), Some(site.chunk));
            }
        }
    }
}
