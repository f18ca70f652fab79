//! Execution of clients' requests on the primary's engine.

use std::ops::Bound;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::protocol::{
    Body, Condition, DeleteRange, Exchange, Header, REPLY_SIZE_BYTES_SOFT_MAX, Request, Scan,
    Status, reply,
};
use farleaf_cluster::client::Stale;
use farleaf_cluster::record::region::Key;
use farleaf_lsm::engine::Direction;
use farleaf_lsm::place::LogPosition;
use farleaf_lsm::{Durability, LsmError};
use farleaf_replica::ReplicaError;

use crate::served::{ServedRegion, ServingState, SplitTarget, WrittenEnds};

/// Time for which a write waits for a lost backup to be removed from the record.
const LOST_PATIENCE: Duration = Duration::from_secs(8);
const LOST_REST: Duration = Duration::from_millis(2);

/// Where a write must be before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckPolicy {
    /// On the disks of all members.
    Disks,
    /// In the memory of all members, or on the disk of the only one.
    Memories,
    /// In the memory of all members, or of the only one.
    MemoryOfOne,
}

impl AckPolicy {
    /// Returns the durability that this requires at present.
    fn durability(self, is_alone: bool) -> Durability {
        match self {
            Self::Disks => Durability::Sync,
            Self::Memories if is_alone => Durability::Sync,
            Self::Memories | Self::MemoryOfOne => Durability::Memory,
        }
    }
}

/// Executes a request on its region and puts the reply into `out`.
pub(crate) fn execute(served: &ServedRegion, request: &Request<'_>, out: &mut Vec<u8>) {
    let _operation = match served.begin() {
        Ok(operation) => operation,
        Err(serving_state) => return not_now(served, serving_state).encode(out),
    };
    if let Err(status) = check_keys(served, &request.body) {
        return status.encode(out);
    }
    let Header {
        is_durable,
        is_one_enough,
        ..
    } = request.header;
    let ack_policy = match (is_durable, is_one_enough) {
        (true, _) => AckPolicy::Disks,
        (false, true) => AckPolicy::MemoryOfOne,
        (false, false) => AckPolicy::Memories,
    };
    served.operation_count.fetch_add(1, Ordering::Relaxed);
    let is_read = request.body.is_read();
    let executed = match &request.body {
        Body::Get(keys) => get(served, keys, out),
        Body::Write(records) => write(served, records, ack_policy, out),
        Body::Exchange(exchange) => exchange_value(served, exchange, ack_policy, out),
        Body::Scan(range) => scan(served, range, out),
        Body::DeleteRange(range) => delete_range(served, range, ack_policy, out),
    };
    let status = match executed {
        // Checked only now, after the operation took effect.
        Ok(()) => match served.serving_state() {
            ServingState::Open => return,
            serving_state if is_read => not_now(served, serving_state),
            serving_state => Status::Failed {
                is_unknown: true,
                how: why_not(serving_state).to_owned(),
            },
        },
        Err(status) => status,
    };
    status.encode(out);
}

fn why_not(serving_state: ServingState) -> &'static str {
    match serving_state {
        ServingState::Open => "the region is served",
        ServingState::Opening => "the region is waiting for a backup that is catching up",
        ServingState::Stopped => "the region is being handed over to another server",
        ServingState::NoLease => {
            "the server cannot reach the coordinator, so its lease may have expired"
        }
    }
}

fn not_now(served: &ServedRegion, serving_state: ServingState) -> Status {
    match serving_state {
        ServingState::Stopped => Status::Stale(Stale {
            epoch: Some(served.epoch()),
        }),
        other => Status::NotNow(why_not(other).to_owned()),
    }
}

/// Checks that the region has the keys: a client with a valid map requests no others.
fn check_keys(served: &ServedRegion, body: &Body<'_>) -> Result<(), Status> {
    let has_all = match body {
        Body::Get(keys) => keys.iter().all(|key| served.has(key)),
        Body::Write(records) => records.iter().all(|(key, _)| served.has(key)),
        Body::Exchange(exchange) => served.has(exchange.key),
        // Keys outside of the region are left out of the reply.
        Body::Scan(_) | Body::DeleteRange(_) => true,
    };
    if has_all {
        return Ok(());
    }
    Err(Status::Stale(Stale { epoch: None }))
}

/// Returns the status of a failed read, which has changed nothing.
fn read_failed(served: &ServedRegion, error: &ReplicaError) -> Status {
    match error {
        // Another epoch has begun, or is about to.
        ReplicaError::Deposed { .. } | ReplicaError::Stopped => {
            not_now(served, ServingState::Stopped)
        }
        error => {
            let how = served.note(error);
            // Another replica takes over, and the client can retry there.
            if served.is_replaced_for(error) {
                return Status::NotNow(how);
            }
            Status::Failed {
                is_unknown: false,
                how,
            }
        }
    }
}

/// Returns the status of a failed append.
fn append_failed(served: &ServedRegion, error: &ReplicaError, written: WrittenEnds) -> Status {
    let WrittenEnds { end, end_of_child } = written;
    match error {
        // Nothing was appended.
        ReplicaError::Stopped if end.is_none() => not_now(served, ServingState::Stopped),
        // Nothing was appended here, either.
        ReplicaError::Engine(error)
            if error.is_out_of_space() && end.is_none() && end_of_child.is_none() =>
        {
            served.note_engine(error);
            out_of_space(served).unwrap_or_else(|| Status::NotNow(error.to_string()))
        }
        error => write_failed(served, error),
    }
}

/// Returns the status of a failed write, which may have taken effect.
fn write_failed(served: &ServedRegion, error: &ReplicaError) -> Status {
    let how = match error {
        ReplicaError::Engine(LsmError::KeyTooLong { .. } | LsmError::ValueTooLong { .. }) => {
            return Status::Refused(error.to_string());
        }
        ReplicaError::Engine(error) => served.note_engine(error),
        other => other.to_string(),
    };
    let is_full = matches!(error, ReplicaError::Engine(error) if error.is_out_of_space());
    let out_of_space = served.out_of_space().filter(|_| is_full);
    Status::Failed {
        is_unknown: true,
        how: out_of_space.map_or(how, |it| it.0),
    }
}

/// Time within which another server that has everything, if there is one, may take over from a
/// primary on a full disk.
const TAKE_OVER_PATIENCE: Duration = Duration::from_secs(5);

/// Returns the status of a write that was not executed because the disk is full.
fn out_of_space(served: &ServedRegion) -> Option<Status> {
    let (how, since) = served.out_of_space()?;
    Some(
        if served.is_alone() || since.elapsed() > TAKE_OVER_PATIENCE {
            Status::Refused(how)
        } else {
            Status::NotNow(how)
        },
    )
}

/// Waits until everything before a position is replicated. While a backup is lost, waits until the
/// record no longer names it, or the region moves to another server.
fn wait_for(
    served: &ServedRegion,
    written: WrittenEnds,
    ack_policy: AckPolicy,
) -> Result<(), Status> {
    if let Some(end) = written.end {
        wait_until(served, served, end, ack_policy)?;
    }
    // An acknowledged write is also in the region being split off.
    match (written.end_of_child, served.split()) {
        (Some(end), Some(SplitTarget { child, .. })) => wait_until(served, &child, end, ack_policy),
        _ => Ok(()),
    }
}

fn wait_until(
    served: &ServedRegion,
    of: &ServedRegion,
    end: LogPosition,
    ack_policy: AckPolicy,
) -> Result<(), Status> {
    let since = Instant::now();
    loop {
        let durability = ack_policy.durability(of.is_alone());
        let waited = of.primary.wait_for(end, durability);
        // The last backup may have been given up meanwhile.
        if waited.is_ok() && durability != ack_policy.durability(of.is_alone()) {
            continue;
        }
        let is_lost = matches!(waited, Err(ReplicaError::BackupLost { .. }));
        if !is_lost
            || since.elapsed() > LOST_PATIENCE
            || served.serving_state() == ServingState::Stopped
        {
            return waited.map_err(|error| write_failed(served, &error));
        }
        thread::sleep(LOST_REST);
    }
}

/// Checks that writes can be acknowledged, before anything is written.
fn check_writes(served: &ServedRegion) -> Result<(), Status> {
    if let Some(status) = out_of_space(served) {
        return Err(status);
    }
    let can_write = served.primary.check();
    can_write.map_err(|error| Status::NotNow(error.to_string()))
}

fn get(served: &ServedRegion, keys: &[&[u8]], out: &mut Vec<u8>) -> Result<(), Status> {
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

/// Waits until values read of keys being split off are replicated in the new region, before the
/// reply.
fn wait_for_child(
    served: &ServedRegion,
    has_some: impl FnOnce(&Key) -> bool,
) -> Result<(), Status> {
    let written = WrittenEnds {
        end: None,
        end_of_child: served.end_of_child(has_some),
    };
    let waited = wait_for(served, written, AckPolicy::MemoryOfOne);
    waited.map_err(|status| match status {
        Status::Failed { how, .. } => Status::NotNow(how),
        other => other,
    })
}

fn write(
    served: &ServedRegion,
    records: &[(&[u8], Option<&[u8]>)],
    ack_policy: AckPolicy,
    out: &mut Vec<u8>,
) -> Result<(), Status> {
    check_writes(served)?;
    let mut written = WrittenEnds::default();
    let mut appended = Ok(());
    for (key, value) in records {
        let _stripe = served.stripe(key);
        appended = served.append(key, *value, &mut written);
        if appended.is_err() {
            break;
        }
    }
    wait_for(served, written, ack_policy)?;
    match appended {
        Err(error) if written.end.is_some() => {
            drop(write_failed(served, &error));
            Err(Status::Failed {
                is_unknown: true,
                how: format!("only some records were written: {error}"),
            })
        }
        other => {
            other.map_err(|error| append_failed(served, &error, written))?;
            reply::begin(out);
            Ok(())
        }
    }
}

/// Reads the newest value, even if it is not replicated yet, and waits until both that value and
/// the write are replicated.
fn exchange_value(
    served: &ServedRegion,
    exchange: &Exchange<'_>,
    ack_policy: AckPolicy,
    out: &mut Vec<u8>,
) -> Result<(), Status> {
    check_writes(served)?;
    let primary = &served.primary;
    let (previous, is_done, written) = {
        let _stripe = served.stripe(exchange.key);
        let previous = primary.engine().get(exchange.key);
        let previous = previous.map_err(|error| read_failed(served, &error.into()))?;
        let is_done = match exchange.condition {
            Condition::Any => true,
            Condition::Absent => previous.is_none(),
            Condition::Present => previous.is_some(),
            Condition::Equals(expected) => previous.as_deref() == Some(expected),
        };
        let changes = is_done && !(previous.is_none() && exchange.new.is_none());
        let mut written = WrittenEnds::default();
        if changes {
            let appended = served.append(exchange.key, exchange.new, &mut written);
            appended.map_err(|error| append_failed(served, &error, written))?;
        } else {
            written.end = Some(primary.log_end());
            written.end_of_child = served.end_of_child(|at| exchange.key >= at.0.as_slice());
        }
        (previous, is_done, written)
    };
    wait_for(served, written, ack_policy)?;
    reply::begin(out);
    let returned = previous.as_deref().filter(|_| exchange.returns_previous);
    reply::put_value(out, returned);
    reply::end(out, u8::from(is_done), 1);
    Ok(())
}

/// Returns the part of a range that is in a region, if any.
fn clamp<'r>(
    served: &'r ServedRegion,
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

fn bounds<'b>(lower: &'b [u8], upper: Option<&'b [u8]>) -> (Bound<&'b [u8]>, Bound<&'b [u8]>) {
    let upper = upper.map_or(Bound::Unbounded, Bound::Excluded);
    (Bound::Included(lower), upper)
}

fn scan(served: &ServedRegion, range: &Scan<'_>, out: &mut Vec<u8>) -> Result<(), Status> {
    reply::begin(out);
    let Some((lower, upper)) = clamp(served, range.lower, range.upper) else {
        return Ok(());
    };
    let direction = if range.is_descending {
        Direction::Descending
    } else {
        Direction::Ascending
    };
    let failed = |error: ReplicaError| read_failed(served, &error);
    let snapshot = served.primary.snapshot().map_err(failed)?;
    let mut records = snapshot
        .scan(bounds(lower, upper), direction)
        .map_err(|error| failed(error.into()))?;
    let (mut count, mut has_more) = (0, false);
    while count < range.count_max {
        let Some(record) = records.next() else {
            break;
        };
        let (key, value) = record.map_err(|error| failed(error.into()))?;
        let value = if range.keys_only { &[][..] } else { &value };
        reply::put_record(out, &key, value);
        count += 1;
        has_more = count == range.count_max || out.len() >= REPLY_SIZE_BYTES_SOFT_MAX;
        if has_more {
            break;
        }
    }
    reply::end(out, u8::from(has_more), count);
    wait_for_child(served, |at| {
        upper.is_none_or(|upper| upper > at.0.as_slice())
    })
}

fn delete_range(
    served: &ServedRegion,
    range: &DeleteRange<'_>,
    ack_policy: AckPolicy,
    out: &mut Vec<u8>,
) -> Result<(), Status> {
    check_writes(served)?;
    let mut written = WrittenEnds::default();
    let deleted = delete_keys(served, range, &mut written);
    // Deletions before a failure are not undone, so the outcome is unknown.
    let (count, next) = deleted.map_err(|status| match (status, written.end) {
        (Status::Failed { how, .. } | Status::NotNow(how) | Status::Refused(how), Some(_)) => {
            Status::Failed {
                is_unknown: true,
                how: format!("only some records were deleted: {how}"),
            }
        }
        (Status::Stale(_), Some(_)) => Status::Failed {
            is_unknown: true,
            how: "only some records were deleted: the region moved to another server".to_owned(),
        },
        (status, _) => status,
    })?;
    wait_for(served, written, ack_policy)?;
    reply::begin(out);
    reply::put_value(out, next.as_deref());
    reply::end(out, 0, count);
    Ok(())
}

/// Deletes the first keys of a range without waiting. Returns their number, and where to continue.
fn delete_keys(
    served: &ServedRegion,
    range: &DeleteRange<'_>,
    written: &mut WrittenEnds,
) -> Result<(u32, Option<Vec<u8>>), Status> {
    let Some((lower, upper)) = clamp(served, range.lower, range.upper) else {
        return Ok((0, None));
    };
    let failed = |error: ReplicaError| read_failed(served, &error);
    let snapshot = served.primary.snapshot().map_err(failed)?;
    let keys = snapshot
        .scan(bounds(lower, upper), Direction::Ascending)
        .map_err(|error| failed(error.into()))?;
    let mut count = 0;
    for record in keys {
        let (key, _) = record.map_err(|error| failed(error.into()))?;
        if count == range.count_max {
            return Ok((count, Some(key)));
        }
        let _stripe = served.stripe(&key);
        let appended = served.append(&key, None, written);
        appended.map_err(|error| append_failed(served, &error, *written))?;
        count += 1;
    }
    Ok((count, None))
}
