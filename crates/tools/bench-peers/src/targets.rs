//! Targets of Farleaf with one thread.

use std::fmt;

use serde::Serialize;

use crate::floor::FloorManner;
use crate::peer::Work;
use crate::peers::PeerName;
use crate::report::{Figure, SubjectName, find};

/// Ratio that must be reached, or not be exceeded.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// Name of the comparison.
    pub name: &'static str,
    /// Target value of the ratio.
    pub wanted: f64,
    /// Whether the ratio may be larger (compared with peers) or smaller (compared with the floor).
    pub is_minimum: bool,
    /// Ratio that was measured; `None` if one of the two was not.
    pub measured: Option<f64>,
}

impl Target {
    /// Returns whether the target is met; `None` if it was not measured.
    pub fn is_met(&self) -> Option<bool> {
        let measured = self.measured?;
        Some(if self.is_minimum {
            measured >= self.wanted
        } else {
            measured <= self.wanted
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.is_met() {
            Some(true) => "met",
            Some(false) => "NOT met",
            None => "not measured",
        };
        let bound = if self.is_minimum {
            "at least"
        } else {
            "at most"
        };
        write!(formatter, "{verdict}: {}: ", self.name)?;
        if let Some(measured) = self.measured {
            write!(formatter, "{measured:.2}, ")?;
        }
        write!(formatter, "expected {bound} {}", self.wanted)
    }
}

/// Returns all targets, with the measurements with one thread.
pub fn judge(figures: &[Figure]) -> Vec<Target> {
    let farleaf = SubjectName::Peer(PeerName::Farleaf);
    let time = |subject, work| find(figures, subject, work, 1);
    let of_peer = |peer, work| Some(time(SubjectName::Peer(peer), work)? / time(farleaf, work)?);
    let of_floor =
        |manner, work| Some(time(farleaf, work)? / time(SubjectName::Floor(manner), work)?);
    let fastest_peer_get = figures
        .iter()
        .filter(|figure| figure.work == Work::Get && figure.thread_count == 1)
        .filter(
            |figure| matches!(figure.subject, SubjectName::Peer(peer) if peer != PeerName::Farleaf),
        )
        .map(Figure::nanoseconds_median)
        .min_by(f64::total_cmp);
    let of_fastest = || Some(fastest_peer_get? / time(farleaf, Work::MultiGet)?);
    let target = |name, is_minimum, wanted, measured| Target {
        name,
        wanted,
        is_minimum,
        measured,
    };
    let minimum = |name, wanted, measured| target(name, true, wanted, measured);
    let maximum = |name, wanted, measured| target(name, false, wanted, measured);
    vec![
        minimum(
            "get of masstree by get of farleaf",
            1.2,
            of_peer(PeerName::Masstree, Work::Get),
        ),
        minimum(
            "get of LMDB by get of farleaf",
            2.0,
            of_peer(PeerName::Lmdb, Work::Get),
        ),
        minimum(
            "fastest get of a peer by multi_get of farleaf",
            1.0,
            of_fastest(),
        ),
        minimum(
            "put of LMDB by put of farleaf",
            3.0,
            of_peer(PeerName::Lmdb, Work::Put),
        ),
        maximum(
            "get of farleaf by dependent copies of leaves",
            1.5,
            of_floor(FloorManner::Dependent, Work::Get),
        ),
        maximum(
            "multi_get of farleaf by copies of leaves in groups of 16",
            2.5,
            of_floor(FloorManner::Grouped, Work::MultiGet),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(subject: SubjectName, work: Work, nanoseconds: f64) -> Figure {
        Figure {
            subject,
            work,
            thread_count: 1,
            nanoseconds_by_round: vec![nanoseconds],
        }
    }

    /// Promise: ratios to peers are minima, those to the floor maxima. The fastest peer counts for
    /// `multi_get`. A target that was not measured is neither met nor missed.
    #[test]
    fn targets_are_judged_in_the_right_direction() {
        let peer = SubjectName::Peer;
        let figures = [
            figure(peer(PeerName::Farleaf), Work::Get, 100.0),
            figure(peer(PeerName::Farleaf), Work::MultiGet, 40.0),
            figure(peer(PeerName::Masstree), Work::Get, 130.0),
            figure(peer(PeerName::Lmdb), Work::Get, 190.0),
            figure(peer(PeerName::Congee), Work::Get, 39.0),
            figure(SubjectName::Floor(FloorManner::Dependent), Work::Get, 80.0),
            figure(
                SubjectName::Floor(FloorManner::Grouped),
                Work::MultiGet,
                10.0,
            ),
        ];
        let met: Vec<_> = judge(&figures).iter().map(Target::is_met).collect();
        let expected = [
            Some(true),
            Some(false),
            Some(false),
            None,
            Some(true),
            Some(false),
        ];
        assert_eq!(met, expected);
    }
}
