//! What clients ask, done on the primary's engine (RS2, RS3).

use std::ops::Bound;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::protocol::{
    Body, Condition, Header, REPLY_SIZE_BYTES_SOFT_MAX, Request, Status, reply,
};
use farleaf_cluster::client::Stale;
use farleaf_cluster::record::region::Key;
use farleaf_lsm::engine::Direction;
use farleaf_lsm::place::LogPosition;
use farleaf_lsm::{Durability, LsmError};
use farleaf_replica::ReplicaError;

use crate::served::{Served, SplitTarget, Standing, Written};

/// For how long a write waits for a backup that is lost to be taken out of the record.
const LOST_PATIENCE: Duration = Duration::from_secs(8);
const LOST_REST: Duration = Duration::from_millis(2);

/// Where what is written is to be before it is acknowledged (RS2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// On the disks of all members.
    Disks,
    /// In the memory of all; on the disk of the only one.
    Memories,
    /// In the memory of all, or of the only one.
    MemoryOfOne,
}

impl Wish {
    /// What that is as things are.
    fn durability(self, is_alone: bool) -> Durability {
        match self {
            Self::Disks => Durability::Sync,
            Self::Memories if is_alone => Durability::Sync,
            Self::Memories | Self::MemoryOfOne => Durability::Memory,
        }
    }
}

/// Executes a request on the region that it names. What is put into `out` is the reply.
pub(crate) fn execute(served: &Served, request: &Request<'_>, out: &mut Vec<u8>) {
    let _begun = match served.begin() {
        Ok(begun) => begun,
        Err(standing) => return not_now(served, standing).encode(out),
    };
    if let Err(status) = check_keys(served, &request.body) {
        return status.encode(out);
    }
    let Header {
        is_durable,
        is_one_enough,
        ..
    } = request.header;
    let wish = match (is_durable, is_one_enough) {
        (true, _) => Wish::Disks,
        (false, true) => Wish::MemoryOfOne,
        (false, false) => Wish::Memories,
    };
    served.operation_count.fetch_add(1, Ordering::Relaxed);
    let is_read = request.body.is_read();
    let done = match &request.body {
        Body::Get(keys) => get(served, keys, out),
        Body::Write(records) => write(served, records, wish, out),
        Body::Exchange {
            key,
            condition,
            new,
            returns_previous,
        } => {
            let exchange = Exchange {
                key,
                condition: *condition,
                new: *new,
                returns_previous: *returns_previous,
            };
            exchange.execute(served, wish, out)
        }
        Body::Scan { .. } => scan(served, &request.body, out),
        Body::DeleteRange {
            lower,
            upper,
            count_max,
        } => delete_range(served, (lower, *upper), *count_max, wish, out),
    };
    let status = match done {
        // RS2: only now.
        Ok(()) => match served.standing() {
            Standing::Open => return,
            standing if is_read => not_now(served, standing),
            standing => Status::Failed {
                is_unknown: true,
                how: why_not(standing).to_owned(),
            },
        },
        Err(status) => status,
    };
    status.encode(out);
}

fn why_not(standing: Standing) -> &'static str {
    match standing {
        Standing::Open => "it is served",
        Standing::Opening => "the region waits for a backup that is being filled",
        Standing::Stopped => "the region is being given to another server",
        Standing::NoLease => "the server cannot reach the coordinator, so its lease may be over",
    }
}

fn not_now(served: &Served, standing: Standing) -> Status {
    match standing {
        Standing::Stopped => Status::Stale(Stale {
            epoch: Some(served.epoch()),
        }),
        other => Status::NotNow(why_not(other).to_owned()),
    }
}

/// That the region has the keys: a client whose map is right asks for no others.
fn check_keys(served: &Served, body: &Body<'_>) -> Result<(), Status> {
    let has_all = match body {
        Body::Get(keys) => keys.iter().all(|key| served.has(key)),
        Body::Write(records) => records.iter().all(|(key, _)| served.has(key)),
        Body::Exchange { key, .. } => served.has(key),
        // What is not in the region is not in the reply.
        Body::Scan { .. } | Body::DeleteRange { .. } => true,
    };
    if has_all {
        return Ok(());
    }
    Err(Status::Stale(Stale { epoch: None }))
}

/// A failure of a read: it has changed nothing.
fn read_failed(served: &Served, error: &ReplicaError) -> Status {
    match error {
        // Another epoch has begun, or is about to.
        ReplicaError::Deposed { .. } | ReplicaError::Stopped => not_now(served, Standing::Stopped),
        error => {
            let how = served.note(error);
            // RS8: a client that waits reads it there.
            if served.gives_up_for(error) {
                return Status::NotNow(how);
            }
            Status::Failed {
                is_unknown: false,
                how,
            }
        }
    }
}

/// A failure to put a record into the log.
fn append_failed(served: &Served, error: &ReplicaError, written: Written) -> Status {
    let Written { end, end_of_child } = written;
    match error {
        // RS3: nothing was put there.
        ReplicaError::Stopped if end.is_none() => not_now(served, Standing::Stopped),
        // RS10: nor here.
        ReplicaError::Engine(error)
            if error.is_no_room() && end.is_none() && end_of_child.is_none() =>
        {
            served.note_engine(error);
            no_room(served).unwrap_or_else(|| Status::NotNow(error.to_string()))
        }
        error => write_failed(served, error),
    }
}

/// A failure of a write: what was appended may be there.
fn write_failed(served: &Served, error: &ReplicaError) -> Status {
    let how = match error {
        ReplicaError::Engine(LsmError::KeyTooLong { .. } | LsmError::ValueTooLong { .. }) => {
            return Status::Refused(error.to_string());
        }
        ReplicaError::Engine(error) => served.note_engine(error),
        other => other.to_string(),
    };
    let is_full = matches!(error, ReplicaError::Engine(error) if error.is_no_room());
    let no_room = served.no_room().filter(|_| is_full);
    Status::Failed {
        is_unknown: true,
        how: no_room.map_or(how, |it| it.0),
    }
}

/// RS10: for so long another server that has everything, if one does, may take over.
const TAKE_OVER_PATIENCE: Duration = Duration::from_secs(5);

/// RS10: what is said to who would write, and has not, while the disk is full.
fn no_room(served: &Served) -> Option<Status> {
    let (how, since) = served.no_room()?;
    Some(
        if served.is_alone() || since.elapsed() > TAKE_OVER_PATIENCE {
            Status::Refused(how)
        } else {
            Status::NotNow(how)
        },
    )
}

/// RS4: returns when everything before a place is replicated. While a backup is lost this waits:
/// for the record not to name it any more, or for the region to be another server's.
fn wait_for(served: &Served, written: Written, wish: Wish) -> Result<(), Status> {
    if let Some(end) = written.end {
        wait_until(served, (served, end), wish)?;
    }
    // RS9: what is acknowledged is in the region that is split off, too.
    match (written.end_of_child, served.split()) {
        (Some(end), Some(SplitTarget { child, .. })) => wait_until(served, (&child, end), wish),
        _ => Ok(()),
    }
}

fn wait_until(
    served: &Served,
    (of, end): (&Served, LogPosition),
    wish: Wish,
) -> Result<(), Status> {
    let since = Instant::now();
    loop {
        let durability = wish.durability(of.is_alone());
        let waited = of.primary.wait_for(end, durability);
        // RS2: the last backup may have been given up meanwhile.
        if waited.is_ok() && durability != wish.durability(of.is_alone()) {
            continue;
        }
        let is_lost = matches!(waited, Err(ReplicaError::BackupLost { .. }));
        if !is_lost || since.elapsed() > LOST_PATIENCE || served.standing() == Standing::Stopped {
            return waited.map_err(|error| write_failed(served, &error));
        }
        thread::sleep(LOST_REST);
    }
}

/// RS4: that writes can be acknowledged, before anything is written.
fn check_writes(served: &Served) -> Result<(), Status> {
    if let Some(status) = no_room(served) {
        return Err(status);
    }
    let can_write = served.primary.check();
    can_write.map_err(|error| Status::NotNow(error.to_string()))
}

fn get(served: &Served, keys: &[&[u8]], out: &mut Vec<u8>) -> Result<(), Status> {
    reply::begin(out);
    let mut count = 0;
    for key in keys {
        let value = served.primary.get(key);
        let value = value.map_err(|error| read_failed(served, &error))?;
        reply::put_value(out, value.as_deref());
        count += 1;
        if out.len() >= REPLY_SIZE_BYTES_SOFT_MAX {
            break;
        }
    }
    reply::end(out, 0, count);
    let has_some = |at: &Key| keys.iter().any(|key| *key >= at.0.as_slice());
    wait_for_child(served, has_some)
}

/// RS9: what was read of keys that are split off is in the region that gets them, before anybody is
/// told of it.
fn wait_for_child(served: &Served, has_some: impl FnOnce(&Key) -> bool) -> Result<(), Status> {
    let written = Written {
        end: None,
        end_of_child: served.end_of_child(has_some),
    };
    let waited = wait_for(served, written, Wish::MemoryOfOne);
    waited.map_err(|status| match status {
        Status::Failed { how, .. } => Status::NotNow(how),
        other => other,
    })
}

fn write(
    served: &Served,
    records: &[(&[u8], Option<&[u8]>)],
    wish: Wish,
    out: &mut Vec<u8>,
) -> Result<(), Status> {
    check_writes(served)?;
    let mut written = Written::default();
    let mut appended = Ok(());
    for (key, value) in records {
        let _stripe = served.stripe(key);
        appended = served.append(key, *value, &mut written);
        if appended.is_err() {
            break;
        }
    }
    wait_for(served, written, wish)?;
    match appended {
        Err(error) if written.end.is_some() => {
            drop(write_failed(served, &error));
            Err(Status::Failed {
                is_unknown: true,
                how: format!("some were written, and then: {error}"),
            })
        }
        other => {
            other.map_err(|error| append_failed(served, &error, written))?;
            reply::begin(out);
            Ok(())
        }
    }
}

/// A key that is written if something holds.
struct Exchange<'b> {
    key: &'b [u8],
    condition: Condition<'b>,
    new: Option<&'b [u8]>,
    returns_previous: bool,
}

impl Exchange<'_> {
    /// RS3: reads the newest value, whoever has it by now, and waits until that is replicated as
    /// well as what it writes.
    fn execute(&self, served: &Served, wish: Wish, out: &mut Vec<u8>) -> Result<(), Status> {
        check_writes(served)?;
        let primary = &served.primary;
        let (previous, is_done, written) = {
            let _stripe = served.stripe(self.key);
            let previous = primary.engine().get(self.key);
            let previous = previous.map_err(|error| read_failed(served, &error.into()))?;
            let is_done = match self.condition {
                Condition::Any => true,
                Condition::Absent => previous.is_none(),
                Condition::Present => previous.is_some(),
                Condition::Equals(expected) => previous.as_deref() == Some(expected),
            };
            let changes = is_done && !(previous.is_none() && self.new.is_none());
            let mut written = Written::default();
            if changes {
                let appended = served.append(self.key, self.new, &mut written);
                appended.map_err(|error| append_failed(served, &error, written))?;
            } else {
                written.end = Some(primary.log_end());
                written.end_of_child = served.end_of_child(|at| self.key >= at.0.as_slice());
            }
            (previous, is_done, written)
        };
        wait_for(served, written, wish)?;
        reply::begin(out);
        let told = previous.as_deref().filter(|_| self.returns_previous);
        reply::put_value(out, told);
        reply::end(out, u8::from(is_done), 1);
        Ok(())
    }
}

/// The part of a range that a region has; none: it has nothing of it.
fn clamp<'r>(
    served: &'r Served,
    lower: &'r [u8],
    upper: Option<&'r [u8]>,
) -> Option<(&'r [u8], Option<&'r [u8]>)> {
    let lower = lower.max(served.order.from.0.as_slice());
    let to = served.order.to.as_ref().map(|to| to.0.as_slice());
    let upper = match (upper, to) {
        (Some(upper), Some(to)) => Some(upper.min(to)),
        (upper, to) => upper.or(to),
    };
    upper
        .is_none_or(|upper| lower < upper)
        .then_some((lower, upper))
}

fn bounds<'b>((lower, upper): (&'b [u8], Option<&'b [u8]>)) -> (Bound<&'b [u8]>, Bound<&'b [u8]>) {
    let upper = upper.map_or(Bound::Unbounded, Bound::Excluded);
    (Bound::Included(lower), upper)
}

fn scan(served: &Served, body: &Body<'_>, out: &mut Vec<u8>) -> Result<(), Status> {
    let Body::Scan {
        lower,
        upper,
        is_descending,
        count_max,
        keys_only,
    } = body
    else {
        unreachable!("who calls it has looked");
    };
    reply::begin(out);
    let Some(range) = clamp(served, lower, *upper) else {
        return Ok(());
    };
    let direction = if *is_descending {
        Direction::Descending
    } else {
        Direction::Ascending
    };
    let failed = |error: ReplicaError| read_failed(served, &error);
    let snapshot = served.primary.snapshot().map_err(failed)?;
    let mut records = snapshot
        .scan(bounds(range), direction)
        .map_err(|error| failed(error.into()))?;
    let (mut count, mut has_more) = (0, false);
    while count < *count_max {
        let Some(record) = records.next() else {
            break;
        };
        let (key, value) = record.map_err(|error| failed(error.into()))?;
        let value = if *keys_only { &[][..] } else { &value };
        reply::put_record(out, &key, value);
        count += 1;
        has_more = count == *count_max || out.len() >= REPLY_SIZE_BYTES_SOFT_MAX;
        if has_more {
            break;
        }
    }
    reply::end(out, u8::from(has_more), count);
    wait_for_child(served, |at| {
        range.1.is_none_or(|upper| upper > at.0.as_slice())
    })
}

fn delete_range(
    served: &Served,
    (lower, upper): (&[u8], Option<&[u8]>),
    count_max: u32,
    wish: Wish,
    out: &mut Vec<u8>,
) -> Result<(), Status> {
    check_writes(served)?;
    let mut written = Written::default();
    let deleted = delete_keys(served, (lower, upper), count_max, &mut written);
    // What was deleted before a failure is not told to be undone by anybody.
    let (count, next) = deleted.map_err(|status| match (status, written.end) {
        (Status::Failed { how, .. } | Status::NotNow(how) | Status::Refused(how), Some(_)) => {
            Status::Failed {
                is_unknown: true,
                how: format!("some were deleted, and then: {how}"),
            }
        }
        (Status::Stale(_), Some(_)) => Status::Failed {
            is_unknown: true,
            how: "some were deleted, and then the region was given to another server".to_owned(),
        },
        (status, _) => status,
    })?;
    wait_for(served, written, wish)?;
    reply::begin(out);
    reply::put_value(out, next.as_deref());
    reply::end(out, 0, count);
    Ok(())
}

/// Deletes the first keys of a range, and waits for nobody; how many, and where to go on.
fn delete_keys(
    served: &Served,
    (lower, upper): (&[u8], Option<&[u8]>),
    count_max: u32,
    written: &mut Written,
) -> Result<(u32, Option<Vec<u8>>), Status> {
    let Some(range) = clamp(served, lower, upper) else {
        return Ok((0, None));
    };
    let failed = |error: ReplicaError| read_failed(served, &error);
    let snapshot = served.primary.snapshot().map_err(failed)?;
    let keys = snapshot
        .scan(bounds(range), Direction::Ascending)
        .map_err(|error| failed(error.into()))?;
    let mut count = 0;
    for record in keys {
        let (key, _) = record.map_err(|error| failed(error.into()))?;
        if count == count_max {
            return Ok((count, Some(key)));
        }
        let _stripe = served.stripe(&key);
        let appended = served.append(&key, None, written);
        appended.map_err(|error| append_failed(served, &error, *written))?;
        count += 1;
    }
    Ok((count, None))
}
