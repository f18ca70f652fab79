//! Alphabets, which convert the bytes behind a prefix to one number.
//!
//! A coordinate reads a string as the digits of a number, most significant first, until 64 bits are
//! full. Digits of base 256 accept any byte. But keys like `user:0012345` use only ten of 256
//! values per digit: 246 unused values lie between 9 and the next decade's 0, at every level. What
//! looks like a straight line is then a staircase to the model. So an alphabet lists the relevant
//! bytes, and a byte's digit is its rank among them. With fewer values per digit, a number also has
//! more digits.

use crate::strings::error::StringModelError;

/// Set of the bytes that count as digits of a coordinate, which defines their base.
///
/// Every alphabet accepts every string; an unsuitable one merely distinguishes fewer strings. Only
/// the first `symbol_count_max` bytes of a string count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Alphabet {
    /// Any byte; 8 digits.
    Binary = 0,
    /// `0` to `9`; 19 digits.
    Decimal = 1,
    /// `0` to `9` and `a` to `f`; 16 digits.
    HexLower = 2,
    /// `0` to `9` and `A` to `F`; 16 digits.
    HexUpper = 3,
    /// Digits and letters; 10 digits.
    Alphanumeric = 4,
    /// Digits, letters, `-` and `_`, as in identifiers and base 64 for URLs; 10 digits.
    Base64Url = 5,
    /// Digits, lower-case letters and ` -./_`, as in paths and words; 11 digits.
    LowerText = 6,
    /// The space to `~`; 9 digits.
    Printable = 7,
}

/// Conversion table of an alphabet.
#[derive(Debug)]
struct Digits {
    base: u64,
    count_max: usize,
    /// For each byte, the rank of the smallest byte of the alphabet that is not below it; the base
    /// if there is none.
    ranks: [u16; 256],
    is_listed: [bool; 256],
    /// Greatest number with each number of digits.
    greatest: [u64; Alphabet::SYMBOL_COUNT_MAX + 1],
}

impl Digits {
    const fn new(listed: &[u8]) -> Self {
        let base = listed.len() as u64;
        let mut ranks = [0; 256];
        let mut is_listed = [false; 256];
        let (mut byte, mut rank) = (0, 0);
        while byte < 256 {
            ranks[byte] = rank as u16;
            if rank < listed.len() && listed[rank] as usize == byte {
                is_listed[byte] = true;
                rank += 1;
            }
            byte += 1;
        }
        assert!(
            rank == listed.len(),
            "an alphabet is listed in ascending order"
        );
        let mut greatest = [0_u64; Alphabet::SYMBOL_COUNT_MAX + 1];
        let mut count = 0;
        while count < Alphabet::SYMBOL_COUNT_MAX {
            let next = greatest[count] as u128 * base as u128 + base as u128 - 1;
            if next > u64::MAX as u128 {
                break;
            }
            count += 1;
            greatest[count] = next as u64;
        }
        Self {
            base,
            count_max: count,
            ranks,
            is_listed,
            greatest,
        }
    }

    /// Returns `number` with `count` zero digits appended. A nonzero number already has digits, so
    /// the power fits.
    #[inline]
    const fn append_zeros(&self, number: u64, count: usize) -> u64 {
        number.wrapping_mul(self.greatest[count].wrapping_add(1))
    }

    #[inline]
    fn coordinate(&self, suffix: &[u8]) -> u64 {
        let window = &suffix[..suffix.len().min(self.count_max)];
        let mut number = 0;
        for (index, &byte) in window.iter().enumerate() {
            let rank = u64::from(self.ranks[usize::from(byte)]);
            if !self.is_listed[usize::from(byte)] {
                return self.round_up(number, rank, self.count_max - index);
            }
            number = number * self.base + rank;
        }
        self.append_zeros(number, self.count_max - window.len())
    }

    /// Handles a byte outside the alphabet, with `count` more digits to come. Returns the smallest
    /// coordinate of strings in the alphabet that sort behind; if there are none, the greatest of
    /// those before.
    #[inline]
    fn round_up(&self, number: u64, rank: u64, count: usize) -> u64 {
        if rank == self.base {
            self.append_zeros(number, count) + self.greatest[count]
        } else {
            self.append_zeros(number * self.base + rank, count - 1)
        }
    }
}

static DECIMAL: Digits = Digits::new(b"0123456789");
static HEX_LOWER: Digits = Digits::new(b"0123456789abcdef");
static HEX_UPPER: Digits = Digits::new(b"0123456789ABCDEF");
static ALPHANUMERIC: Digits =
    Digits::new(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz");
static BASE64_URL: Digits =
    Digits::new(b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz");
static LOWER_TEXT: Digits = Digits::new(b" -./0123456789_abcdefghijklmnopqrstuvwxyz");
static PRINTABLE: Digits = Digits::new(
    b" !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz\
      {|}~",
);

impl Alphabet {
    /// All alphabets; an earlier one is preferred if several suit.
    pub const ALL: [Self; 8] = [
        Self::Binary,
        Self::Decimal,
        Self::HexLower,
        Self::HexUpper,
        Self::Alphanumeric,
        Self::Base64Url,
        Self::LowerText,
        Self::Printable,
    ];
    /// Largest number of bytes that any alphabet reads.
    pub const SYMBOL_COUNT_MAX: usize = 19;

    /// Returns the number that represents the alphabet in storage.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the alphabet with this number.
    ///
    /// # Errors
    ///
    /// [`StringModelError::Alphabet`], if there is none.
    pub fn from_code(code: u8) -> Result<Self, StringModelError> {
        Self::ALL
            .get(usize::from(code))
            .copied()
            .ok_or(StringModelError::Alphabet { code })
    }

    /// Returns the number of bytes of a string that count.
    pub fn symbol_count_max(self) -> usize {
        self.digits().map_or(8, |digits| digits.count_max)
    }

    /// Returns the coordinate of the rest of a string behind a prefix. Monotone: of two strings,
    /// the greater one never has the smaller coordinate. A string that ends early is padded with
    /// the smallest digit.
    #[inline]
    pub fn coordinate(self, suffix: &[u8]) -> u64 {
        match self.digits() {
            Some(digits) => digits.coordinate(suffix),
            None => head(suffix),
        }
    }

    #[inline]
    fn digits(self) -> Option<&'static Digits> {
        Some(match self {
            Self::Binary => return None,
            Self::Decimal => &DECIMAL,
            Self::HexLower => &HEX_LOWER,
            Self::HexUpper => &HEX_UPPER,
            Self::Alphanumeric => &ALPHANUMERIC,
            Self::Base64Url => &BASE64_URL,
            Self::LowerText => &LOWER_TEXT,
            Self::Printable => &PRINTABLE,
        })
    }
}

/// Returns the first eight bytes, most significant first, zero-padded.
#[inline]
pub(super) fn head(string: &[u8]) -> u64 {
    if let Some(bytes) = string.first_chunk::<8>() {
        return u64::from_be_bytes(*bytes);
    }
    let mut bytes = [0; 8];
    bytes[..string.len()].copy_from_slice(string);
    u64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each alphabet uses as many bytes as fit into 64 bits, as documented.
    #[test]
    fn as_many_bytes_count_as_fit() {
        let counts = Alphabet::ALL.map(Alphabet::symbol_count_max);
        assert_eq!(counts, [8, 19, 16, 16, 10, 10, 11, 9]);
    }

    /// Stored codes decode to their alphabets; other codes are rejected.
    #[test]
    fn codes_come_back() {
        for alphabet in Alphabet::ALL {
            assert_eq!(Alphabet::from_code(alphabet.code()), Ok(alphabet));
        }
        assert_eq!(
            Alphabet::from_code(8),
            Err(StringModelError::Alphabet { code: 8 })
        );
    }

    /// Decimal digits form a decimal number; other bytes are rounded up to the next one, or to the
    /// last number before.
    #[test]
    fn digits_are_a_number() {
        let coordinate = |text: &[u8]| Alphabet::Decimal.coordinate(text);
        assert_eq!(coordinate(b"0000000000000000042"), 42);
        assert_eq!(
            coordinate(b"9999999999999999999"),
            9_999_999_999_999_999_999
        );
        assert_eq!(coordinate(b"42"), 4_200_000_000_000_000_000);
        assert_eq!(coordinate(b"42/99"), 4_200_000_000_000_000_000);
        assert_eq!(coordinate(b"42:00"), 4_299_999_999_999_999_999);
        assert_eq!(coordinate(b"z"), 9_999_999_999_999_999_999);
        assert_eq!(coordinate(b""), 0);
        assert_eq!(Alphabet::HexLower.coordinate(b"g"), u64::MAX);
        assert_eq!(Alphabet::HexLower.coordinate(b"A"), 0xa << 60);
        assert_eq!(Alphabet::HexLower.coordinate(b"ffffffffffffffff"), u64::MAX);
        assert_eq!(Alphabet::Binary.coordinate(b"\x01\xff"), 0x01ff << 48);
    }
}
