//! Operations of clients: the request of each, and how its reply is read.

use farleaf_cluster::client::Route;

use crate::cluster::RegionOperation;
use crate::protocol::{Body, DeleteRange, Exchange, Malformed, Reply, Scan};
use crate::table::Record;

/// Returns the leading keys of a sorted list that are in a route's region.
fn within<'k, T>(route: &Route, sorted: &'k [T], key: impl Fn(&T) -> &[u8]) -> &'k [T] {
    let Some(to) = &route.to else {
        return sorted;
    };
    &sorted[..sorted.partition_point(|it| key(it) < to.0.as_slice())]
}

/// Reads the values of the first keys of a sorted list.
pub(crate) struct Get<'k> {
    pub(crate) keys: &'k [&'k [u8]],
}

impl RegionOperation for Get<'_> {
    type Answer = Vec<Option<Vec<u8>>>;

    fn body(&self, route: &Route) -> Body<'_> {
        Body::Get(within(route, self.keys, |key| key).to_vec())
    }

    fn read(&mut self, route: &Route, reply: &mut Reply<'_>) -> Result<Self::Answer, Malformed> {
        let asked_count = within(route, self.keys, |key| key).len();
        let count = reply.count as usize;
        // A server that has read many bytes replies with the first values only.
        if count == 0 || count > asked_count {
            return Err(Malformed(format!(
                "expected 1 to {asked_count} values, found {count}"
            )));
        }
        let values = (0..count).map(|_| Ok(reply.value()?.map(<[u8]>::to_vec)));
        values.collect()
    }
}

/// Writes the first records of a sorted list.
pub(crate) struct Write<'k> {
    pub(crate) records: &'k [(&'k [u8], Option<&'k [u8]>)],
}

impl RegionOperation for Write<'_> {
    /// Number of records written.
    type Answer = usize;

    fn body(&self, route: &Route) -> Body<'_> {
        Body::Write(within(route, self.records, |record| record.0).to_vec())
    }

    fn read(&mut self, route: &Route, _: &mut Reply<'_>) -> Result<usize, Malformed> {
        Ok(within(route, self.records, |record| record.0).len())
    }
}

/// Result of an exchange.
#[derive(Clone, Debug)]
pub(crate) struct ExchangeResult {
    pub(crate) is_done: bool,
    pub(crate) previous: Option<Vec<u8>>,
}

impl RegionOperation for Exchange<'_> {
    type Answer = ExchangeResult;

    fn body(&self, _: &Route) -> Body<'_> {
        Body::Exchange(*self)
    }

    fn read(&mut self, _: &Route, reply: &mut Reply<'_>) -> Result<ExchangeResult, Malformed> {
        Ok(ExchangeResult {
            is_done: reply.code != 0,
            previous: reply.value()?.map(<[u8]>::to_vec),
        })
    }
}

impl RegionOperation for DeleteRange<'_> {
    /// Number of deleted keys, and the first key that may be left, if any.
    type Answer = (u32, Option<Vec<u8>>);

    fn body(&self, _: &Route) -> Body<'_> {
        Body::DeleteRange(*self)
    }

    fn read(&mut self, route: &Route, reply: &mut Reply<'_>) -> Result<Self::Answer, Malformed> {
        let next = reply.value()?.map(<[u8]>::to_vec);
        if next.as_deref().is_some_and(|next| next < self.lower) {
            return Err(Malformed(
                "the next key is before the requested range".to_owned(),
            ));
        }
        let next = next.or_else(|| route.to.as_ref().map(|to| to.0.clone()));
        Ok((reply.count, next))
    }
}

impl RegionOperation for Scan<'_> {
    /// Records, whether the region may have more of them, and the region's route.
    type Answer = (Vec<Record>, bool, Route);

    fn body(&self, _: &Route) -> Body<'_> {
        Body::Scan(*self)
    }

    fn read(&mut self, route: &Route, reply: &mut Reply<'_>) -> Result<Self::Answer, Malformed> {
        let mut records: Vec<Record> = Vec::new();
        for _ in 0..reply.count {
            let (key, value) = reply.record()?;
            let follows = records.last().is_none_or(|last| {
                (last.key.as_slice() < key) != self.is_descending && last.key != key
            });
            let is_asked_for = key >= self.lower && self.upper.is_none_or(|upper| key < upper);
            if !follows || !is_asked_for {
                let how = "records are out of order, or outside the requested range";
                return Err(Malformed(how.to_owned()));
            }
            records.push(Record {
                key: key.to_vec(),
                value: value.to_vec(),
            });
        }
        let has_more = reply.code != 0;
        if has_more && records.is_empty() {
            return Err(Malformed(
                "the reply is partial, but has no records".to_owned(),
            ));
        }
        Ok((records, has_more, route.clone()))
    }
}
