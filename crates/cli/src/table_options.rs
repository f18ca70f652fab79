//! Options of new tables, for `table create` and `load --create`.
//!
//! There are two kinds of tables, and some options exist for one kind only. Without `--kind`, such
//! an option determines the kind. An option of the other kind is rejected.

use clap::{Args, ValueEnum};
use farleaf::{LayerKind, PageOptions, TableKind, TableOptions};

use crate::failure::BadArgument;
use farleaf_bench::quantity::{parse_key, parse_size};

/// Type of a table's keys and values. (The variants have no help of their own, which would make
/// every command's help long.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KindName {
    Bytes,
    Words,
}

impl KindName {
    /// Returns the name that `--kind` accepts.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Words => "words",
        }
    }
}

/// Names of the options that only tables in pools have.
pub(crate) const POOL_TABLE_OPTIONS: [&str; 7] = [
    "slots",
    "index",
    "page_size",
    "inline_value",
    "fill",
    "epsilon",
    "bounds",
];

/// Options of a new table.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct TableOptionArguments {
    /// Type of keys and values: `bytes` (byte strings) or `words` (unsigned 64-bit integers)
    /// [default: bytes; words with --slots, --bounds, several pools or an --index other than
    /// `learned`; for `load`, the type of the file's first line]
    #[arg(long, value_enum, value_name = "KIND", hide_possible_values = true)]
    pub(crate) kind: Option<KindName>,

    /// Tables of words: records per leaf, 8, 12 or 16 [default: 8]
    #[arg(long, value_parser = parse_slots, allow_negative_numbers = true)]
    pub(crate) slots: Option<u64>,

    /// Search layer. For both types: `learned`; `rf-tree`, which caches the whole tree; `rpc`,
    /// where the memory node executes every operation. For words also `rolex`, as in its paper; the
    /// trees `fg`, `sherman` and `cell`; `xstore`, whose models the node trains and whose writes it
    /// executes
    #[arg(long, value_name = "LAYER", default_value_t = TableOptions::default().layer)]
    pub(crate) index: LayerKind,

    /// Tables of bytes: page size, 512, 1024 or 2048 bytes [default: 1024]
    #[arg(long, value_name = "SIZE", value_parser = parse_page_size)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) page_size: Option<u64>,

    /// Tables of bytes: largest value stored inside a page; reading a larger one takes another
    /// round trip. At most 224, 544 or 1184 bytes, depending on the page size [default: 128]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true)]
    pub(crate) inline_value: Option<u64>,

    /// Fill factor of leaves or pages in percent, when `load` builds them, from 25 to 100
    #[arg(long, value_name = "PERCENT", default_value_t = TableOptions::default().fill_percent)]
    #[arg(value_parser = parse_fill, allow_negative_numbers = true)]
    pub(crate) fill: u8,

    /// Error bound of the models, in keys, from 0.5 to 1024
    #[arg(long, value_name = "KEYS", default_value_t = TableOptions::default().epsilon_keys)]
    #[arg(value_parser = parse_epsilon, allow_negative_numbers = true)]
    pub(crate) epsilon: f64,
}

/// Bounds of the parts of a table over several pools.
#[derive(Clone, Debug, Args)]
pub(crate) struct BoundsArgument {
    /// Tables over several pools (`--pool A,B`): first key of each part except the first [default:
    /// equal shares of the key space; for `load`, of the records]
    #[arg(long, value_name = "KEYS", value_delimiter = ',', value_parser = parse_key)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) bounds: Option<Vec<u64>>,
}

impl TableOptionArguments {
    /// Returns the kind that `--kind` or the other options determine; `None` if they leave it open.
    /// `pool_count` is the number of pools that the table spans.
    ///
    /// # Errors
    /// Options of both kinds are given.
    pub(crate) fn kind(&self, pool_count: usize) -> Result<Option<KindName>, BadArgument> {
        let of_words = self.sign_of_words(pool_count);
        let of_bytes = self.sign_of_bytes();
        match (self.kind, of_words, of_bytes) {
            (Some(KindName::Bytes), Some(sign), _) => Err(BadArgument(format!(
                "{sign} cannot be used with --kind bytes: it is for tables of words; leave it out, \
                 or use --kind words"
            ))),
            (Some(KindName::Words), _, Some(sign)) => Err(BadArgument(format!(
                "{sign} cannot be used with --kind words: it is for tables of bytes; leave it out, \
                 or use --kind bytes"
            ))),
            (None, Some(words), Some(bytes)) => Err(BadArgument(format!(
                "{bytes} cannot be used with {words}: one is for tables of bytes, the other for \
                 tables of words; leave one out"
            ))),
            (Some(kind), _, _) => Ok(Some(kind)),
            (None, Some(_), None) => Ok(Some(KindName::Words)),
            (None, None, Some(_)) => Ok(Some(KindName::Bytes)),
            (None, None, None) => Ok(None),
        }
    }

    /// Returns a given option that only tables of words have. Bounds are for several pools only.
    fn sign_of_words(&self, pool_count: usize) -> Option<String> {
        if self.slots.is_some() {
            Some("--slots".to_owned())
        } else if self.index != TableOptions::default().layer && !self.is_index_of_bytes() {
            Some(format!("--index {}", self.index))
        } else if pool_count > 1 {
            Some("a --pool with several addresses".to_owned())
        } else {
            None
        }
    }

    /// Returns whether the search layer is one of bytes: both kinds support it, and another option
    /// determines the kind.
    fn is_index_of_bytes(&self) -> bool {
        let says_bytes = self.kind == Some(KindName::Bytes) || self.sign_of_bytes().is_some();
        says_bytes && self.index.has_byte_tables()
    }

    /// Returns a given option that only tables of bytes have.
    fn sign_of_bytes(&self) -> Option<&'static str> {
        if self.page_size.is_some() {
            Some("--page-size")
        } else if self.inline_value.is_some() {
            Some("--inline-value")
        } else {
            None
        }
    }

    /// Returns the options of a table of this kind.
    pub(crate) fn of_kind(&self, kind: KindName) -> TableOptions {
        let defaults = TableOptions::default();
        let pages = PageOptions::default();
        TableOptions {
            kind: match kind {
                KindName::Words => TableKind::Words,
                KindName::Bytes => TableKind::Bytes(PageOptions {
                    page_size_bytes: self.page_size.unwrap_or(pages.page_size_bytes),
                    inline_value_size_bytes: self
                        .inline_value
                        .unwrap_or(pages.inline_value_size_bytes),
                }),
            },
            slots: self.slots.unwrap_or(defaults.slots),
            layer: self.index,
            fill_percent: self.fill,
            epsilon_keys: self.epsilon,
        }
    }
}

pub(crate) fn parse_slots(text: &str) -> Result<u64, &'static str> {
    match text.parse() {
        Ok(slots @ (8 | 12 | 16)) => Ok(slots),
        _ => Err("a leaf has 8, 12 or 16 slots"),
    }
}

fn parse_page_size(text: &str) -> Result<u64, &'static str> {
    match parse_size(text) {
        Ok(size_bytes @ (512 | 1024 | 2048)) => Ok(size_bytes),
        _ => Err("a page has 512, 1024 or 2048 bytes"),
    }
}

pub(crate) fn parse_fill(text: &str) -> Result<u8, &'static str> {
    match text.parse() {
        Ok(fill @ 25..=100) => Ok(fill),
        _ => Err("expected a percentage from 25 to 100"),
    }
}

pub(crate) fn parse_epsilon(text: &str) -> Result<f64, &'static str> {
    match text.parse() {
        Ok(epsilon) if (0.5..=1024.0).contains(&epsilon) => Ok(epsilon),
        _ => Err("expected a number of keys from 0.5 to 1024"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: TableOptionArguments,
    }

    fn options(words: &[&str]) -> TableOptionArguments {
        let words = [&["create"], words].concat();
        Line::try_parse_from(words).expect("valid").options
    }

    /// Promise: without options, the CLI creates tables of either kind with the library's defaults.
    #[test]
    fn default_options_are_the_library_s() {
        let options = options(&[]);
        assert_eq!(options.of_kind(KindName::Words), TableOptions::default());
        assert_eq!(options.of_kind(KindName::Bytes), TableOptions::bytes());
    }

    /// Promise: the kind is the given one, or the one that has the given options. The error names
    /// an option that only the other kind has.
    #[test]
    fn options_tell_the_kind() {
        let kind = |words: &[&str], pool_count| options(words).kind(pool_count);
        let kind_of = |words: &[&str], pool_count| kind(words, pool_count).expect("it fits");
        assert_eq!(kind_of(&[], 1), None);
        assert_eq!(kind_of(&["--fill", "50", "--epsilon", "4"], 1), None);
        assert_eq!(kind_of(&["--index", "learned"], 1), None);
        for words in [&["--slots", "12"][..], &["--index", "rolex"]] {
            assert_eq!(kind_of(words, 1), Some(KindName::Words));
        }
        assert_eq!(kind_of(&[], 2), Some(KindName::Words));
        for bytes in [&["--page-size", "2048"][..], &["--inline-value", "0"]] {
            assert_eq!(kind_of(bytes, 1), Some(KindName::Bytes));
        }
        assert_eq!(kind_of(&["--kind", "words"], 1), Some(KindName::Words));
        for (more, kind) in [
            (&[][..], KindName::Words),
            (&["--kind", "bytes"], KindName::Bytes),
            (&["--page-size", "512"], KindName::Bytes),
        ] {
            assert_eq!(
                kind_of(&[&["--index", "rpc"], more].concat(), 1),
                Some(kind)
            );
        }
        for (words, pool_count, sign) in [
            (
                &["--kind", "bytes", "--slots", "8"][..],
                1,
                "--slots cannot",
            ),
            (
                &["--kind", "bytes", "--index", "fg"],
                1,
                "--index fg cannot",
            ),
            (
                &["--kind", "bytes"],
                2,
                "a --pool with several addresses cannot",
            ),
            (
                &["--kind", "words", "--page-size", "512"],
                1,
                "--page-size cannot",
            ),
            (
                &["--slots", "8", "--inline-value", "9"],
                1,
                "--inline-value cannot be used with --slots",
            ),
        ] {
            let error = kind(words, pool_count)
                .expect_err("they do not fit")
                .to_string();
            assert!(
                error.starts_with(sign) && error.contains("leave"),
                "{error}"
            );
        }
    }
}
