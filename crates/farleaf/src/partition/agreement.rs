//! Check that the parts found in several pools form one complete table
//! (docs/explanation/partitions.md, *Opening a table*).

use farleaf_pool::part::{PartRecord, PartitionedTableId};

use super::{Bounds, PartitionError};
use crate::options::{TableInfo, TableOptions};
use crate::{Error, ErrorKind};

/// Properties of a table over several pools that are known without reading its leaves.
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionedInfo {
    /// Name of the table, the same in all pools.
    pub name: String,
    /// Identity of the table; another table of the same name has another one.
    pub id: PartitionedTableId,
    /// Options with which the table was created.
    pub options: TableOptions,
    /// Key ranges of the parts.
    pub bounds: Bounds,
}

/// Entry of a list of tables over several pools.
#[derive(Debug)]
pub struct ListedPartition {
    /// Name of the table.
    pub name: String,
    /// Properties of the table, or the reason why these pools, in this order, cannot open it.
    pub found: Result<PartitionedInfo, Error>,
}

/// Tables of one name that were found in the pools, in the order of the pools.
pub(super) struct FoundParts<'a> {
    pub(super) name: &'a str,
    pub(super) pools: Vec<&'a str>,
    pub(super) tables: Vec<Option<TableInfo>>,
}

impl FoundParts<'_> {
    /// Returns the parts that exist, each with its pool's position.
    fn parts(&self) -> impl Iterator<Item = (usize, PartRecord, &TableInfo)> {
        let tables = self.tables.iter().enumerate();
        tables.filter_map(|(place, table)| {
            let table = table.as_ref()?;
            table.part.map(|part| (place, part, table))
        })
    }

    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn pool(&self, place: usize) -> String {
        self.pools[place].to_owned()
    }

    /// Returns the addresses of the pools that have, or lack, a table of the name.
    fn pools_with(&self, is_there: bool) -> String {
        let all = self.pools.iter().zip(&self.tables);
        let with = all.filter(|(_, table)| table.is_some() == is_there);
        let with: Vec<&str> = with.map(|(pool, _)| *pool).collect();
        with.join(", ")
    }

    /// Checks that the parts belong to one table and are in the right pools, and returns the
    /// table's identity.
    ///
    /// # Errors
    /// No pool has such a table, or one has a table that is not a part, a part of another table, or
    /// the wrong part. Missing parts are not an error.
    pub(super) fn check_places(&self) -> Result<PartitionedTableId, Error> {
        let by_itself =
            |table: &&Option<TableInfo>| table.as_ref().is_some_and(|table| table.part.is_none());
        if let Some(place) = self.tables.iter().position(|table| by_itself(&table)) {
            let (name, pool) = (self.name(), self.pool(place));
            return Err(PartitionError::NotPart { name, pool }.into());
        }
        let Some((first_place, first, _)) = self.parts().next() else {
            return Err(ErrorKind::TableNotFound {
                name: self.name(),
                pool: self.pools.join(", "),
            }
            .into());
        };
        for (place, part, _) in self.parts() {
            let (name, pool) = (self.name(), self.pool(place));
            let number = part.number;
            let error = if part.table != first.table {
                PartitionError::OtherTable {
                    name,
                    first: self.pool(first_place),
                    second: pool,
                }
            } else if usize::from(part.count) != self.pools.len() {
                PartitionError::OtherCount {
                    name,
                    count: part.count,
                    given: self.pools.len(),
                    pool,
                    number,
                }
            } else if usize::from(part.number) != place {
                PartitionError::OtherPlace {
                    name,
                    pool,
                    number,
                    place,
                }
            } else {
                continue;
            };
            return Err(error.into());
        }
        Ok(first.table)
    }

    /// Checks that all parts exist, are in the right pools, and have adjacent key ranges.
    ///
    /// # Errors
    /// The same as those of [`check_places`](Self::check_places); also if parts are missing.
    pub(super) fn check(&self) -> Result<PartitionedInfo, Error> {
        let id = self.check_places()?;
        let mut first_keys = Vec::with_capacity(self.pools.len());
        let mut expected = Some(0);
        let mut options = None;
        for (place, table) in self.tables.iter().enumerate() {
            let Some((part, table)) = table.as_ref().and_then(|table| Some((table.part?, table)))
            else {
                return Err(PartitionError::HalfThere {
                    name: self.name(),
                    present: self.pools_with(true),
                    missing: self.pools_with(false),
                }
                .into());
            };
            if Some(part.low) != expected {
                return Err(PartitionError::Gap {
                    name: self.name(),
                    pool: self.pool(place),
                    low: part.low,
                    expected: expected.unwrap_or(u64::MAX),
                }
                .into());
            }
            expected = part.high.checked_add(1);
            options = Some(table.options);
            if place > 0 {
                first_keys.push(part.low);
            }
        }
        if expected.is_some() {
            let last = self.tables.last().and_then(Option::as_ref);
            return Err(PartitionError::EndsEarly {
                name: self.name(),
                pool: self.pool(self.tables.len() - 1),
                high: last
                    .and_then(|table| table.part)
                    .map_or(0, |part| part.high),
            }
            .into());
        }
        let options = options.expect("there is one part at least");
        Ok(PartitionedInfo {
            name: self.name(),
            id,
            options,
            bounds: Bounds::new(first_keys)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOLS: [&str; 3] = ["shm:a", "shm:b", "shm:c"];

    fn part(table: u64, number: u16, low: u64, high: u64) -> TableInfo {
        let part = PartRecord {
            table: PartitionedTableId(table),
            number,
            count: 3,
            low,
            high,
        };
        TableInfo {
            name: "t".to_owned(),
            id: 1,
            options: TableOptions::default(),
            part: Some(part),
        }
    }

    fn whole() -> Vec<Option<TableInfo>> {
        let parts = [
            part(7, 0, 0, 9),
            part(7, 1, 10, 19),
            part(7, 2, 20, u64::MAX),
        ];
        parts.map(Some).into()
    }

    fn check(
        pools: &[&'static str],
        tables: Vec<Option<TableInfo>>,
    ) -> Result<PartitionedInfo, Error> {
        let (name, pools) = ("t", pools.to_vec());
        FoundParts {
            name,
            pools,
            tables,
        }
        .check()
    }

    /// Promise: parts in the right pools form the table, with its bounds.
    #[test]
    fn parts_in_their_places_are_the_table() {
        let info = check(&POOLS, whole()).expect("whole");
        assert_eq!(info.bounds.first_keys(), [10, 20]);
        assert_eq!(info.id, PartitionedTableId(7));
    }

    /// Promise: an incomplete or inconsistent table is rejected, and the error says what is wrong,
    /// where, and what to do.
    #[test]
    fn what_is_not_one_whole_table_is_refused() {
        let refusal = |pools: &[&'static str], tables: Vec<Option<TableInfo>>| {
            check(pools, tables).expect_err("refused").to_string()
        };
        let mut swapped = whole();
        swapped.swap(1, 2);
        assert!(refusal(&POOLS, swapped).starts_with(
            "shm:b has part 2 of table 't', but was given as part 1; give the pools in"
        ));
        let few = refusal(&POOLS[..2], whole()[..2].to_vec());
        assert!(
            few.contains("'t' has 3 parts, each in a different pool, but 2 pools"),
            "{few}"
        );
        let mut other = whole();
        other[1] = Some(part(8, 1, 10, 19));
        let other = refusal(&POOLS, other);
        assert!(
            other.starts_with("shm:a and shm:b have parts of two different tables"),
            "{other}"
        );
        let mut half = whole();
        half[1] = None;
        let half = refusal(&POOLS, half);
        assert!(
            half.contains("found in shm:a, shm:c, missing in shm:b"),
            "{half}"
        );
        let mut gap = whole();
        gap[1] = Some(part(7, 1, 11, 19));
        let gap = refusal(&POOLS, gap);
        assert!(
            gap.contains("expected shm:b to have keys from 10 on, found 11"),
            "{gap}"
        );
        let mut short = whole();
        short[2] = Some(part(7, 2, 20, 99));
        let short = refusal(&POOLS, short);
        assert!(short.contains("end at key 99, in shm:c"), "{short}");
        let mut by_itself = whole();
        by_itself[2].as_mut().expect("there").part = None;
        assert!(refusal(&POOLS, by_itself).contains("'t' in shm:c is not part of a table over"));
        let none = refusal(&POOLS, vec![None; 3]);
        assert!(
            none.contains("table 't' does not exist in shm:a, shm:b, shm:c"),
            "{none}"
        );
    }
}
