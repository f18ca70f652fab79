//! Run: one kind of replication in one round, through all of its phases.

use std::path::Path;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Instant;

use farleaf_fabric::Endpoint;
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_replica::{Backup, Primary};

use super::check::check_promoted;
use super::clients::ClientPhase;
use super::config::ReplicationConfig;
use super::error::ReplicationError;
use super::names::{ReplicationFabric, ReplicationKind};
use super::nodes::Node;
use super::rows::{CounterSnapshot, ReplicationRow};
use super::servers::RunLocation;
use super::shared::{DeviceCounts, ReplicationRunState, Role, SERVER_COUNT, ShutdownGuard};
use super::tending::{run_primary_background, serve_backups};
use super::traffic::CountedEndpoint;
use crate::runner::ProgressSink;

/// Runs one kind of replication in an empty directory.
pub(super) fn run_one(
    config: &ReplicationConfig,
    kind: ReplicationKind,
    round: u32,
    directory: &Path,
    sink: &dyn ProgressSink,
) -> Result<Vec<ReplicationRow>, ReplicationError> {
    let run = Run {
        place: RunLocation::new(config, kind, directory)?,
        shared: ReplicationRunState::new(config.region_count(), SERVER_COUNT * config.background),
        round,
        sink,
    };
    if config.fabric == ReplicationFabric::Mem || kind == ReplicationKind::None {
        let memory = run.place.memory.clone();
        return run.serve(|server: usize| Ok(MappedEndpoint::new(memory[server].clone())));
    }
    let nodes = run.place.memory.iter().map(Node::start);
    let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
    run.serve(|server: usize| nodes[server].open_endpoint())
}

struct Run<'c> {
    place: RunLocation<'c>,
    shared: ReplicationRunState,
    round: u32,
    sink: &'c dyn ProgressSink,
}

/// Background threads that run until shutdown: those of primaries and of backups.
struct Threads<'s> {
    primaries: Vec<ScopedJoinHandle<'s, ()>>,
    backups: Vec<ScopedJoinHandle<'s, Vec<Backup<MappedEndpoint>>>>,
}

impl Run<'_> {
    /// Creates and connects two servers, runs all phases on them, and checks the backups.
    fn serve<E: Endpoint + Send + 'static>(
        &self,
        endpoint_to: impl Fn(usize) -> Result<E, ReplicationError>,
    ) -> Result<Vec<ReplicationRow>, ReplicationError> {
        let primaries = self.place.primaries::<E>()?;
        let backups = (0..SERVER_COUNT).map(|server| self.place.backups(server));
        let backups = backups.collect::<Result<Vec<_>, _>>()?;
        let (ran, backups) = thread::scope(|scope| {
            let _over = ShutdownGuard(&self.shared);
            let threads = self.start(scope, &primaries, backups)?;
            let ran = self.run_phases(&primaries, endpoint_to);
            // Primaries end before the backups that answer them.
            self.shared.end(Role::Primaries);
            for thread in threads.primaries {
                thread.join().expect("background work does not panic");
            }
            self.shared.end(Role::Backups);
            // By server, and by region in each.
            let backups = threads.backups.into_iter();
            let backups = backups.flat_map(|it| it.join().expect("a backup does not panic"));
            Ok::<_, ReplicationError>((ran, backups.collect::<Vec<_>>()))
        })?;
        // An error of the servers is the cause of what clients have seen.
        self.shared.check()?;
        let (mut rows, record_count) = ran?;
        let checked_count = check_promoted(&self.place, &primaries, backups, record_count)?;
        for row in &mut rows {
            row.checked_count = checked_count;
        }
        Ok(rows)
    }

    fn start<'s, E: Endpoint + Send + 'static>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        primaries: &'s [Primary<CountedEndpoint<E>>],
        backups: Vec<Vec<Backup<MappedEndpoint>>>,
    ) -> Result<Threads<'s>, ReplicationError> {
        let per_server = self.place.config.background;
        let failed = ReplicationError::thread(2 * SERVER_COUNT * per_server);
        let mut threads = Threads {
            primaries: Vec::new(),
            backups: Vec::new(),
        };
        let shared = &self.shared;
        let regions = self.place.config.regions as usize;
        let each = primaries.chunks(regions).zip(backups).enumerate();
        for (server, (primaries, mut backups)) in each {
            let mut first_region = self.place.first_backed_up(server);
            for thread in 0..per_server {
                let number = server * per_server + thread;
                let share = backups.len().div_ceil(per_server - thread);
                let own: Vec<_> = backups.drain(..share).collect();
                let serve = move || serve_backups(shared, number, first_region, own);
                first_region += share;
                let serving = thread::Builder::new().spawn_scoped(scope, serve);
                threads.backups.push(serving.map_err(&failed)?);
                let tend = move || run_primary_background(shared, server, number, primaries);
                let tending = thread::Builder::new().spawn_scoped(scope, tend);
                threads.primaries.push(tending.map_err(&failed)?);
            }
        }
        Ok(threads)
    }

    /// Runs all phases. Returns the number of records at the end.
    fn run_phases<E: Endpoint + Send + 'static>(
        &self,
        primaries: &[Primary<CountedEndpoint<E>>],
        endpoint_to: impl Fn(usize) -> Result<E, ReplicationError>,
    ) -> Result<(Vec<ReplicationRow>, u64), ReplicationError> {
        let (config, kind) = (self.place.config, self.place.kind);
        if kind != ReplicationKind::None {
            for (region, primary) in primaries.iter().enumerate() {
                self.place
                    .join(region, primary, &self.shared, &endpoint_to)?;
            }
        }
        self.shared.drain()?;
        let (mut rows, mut record_count) = (Vec::new(), 0);
        for phase in config.phases() {
            let clients = ClientPhase {
                config,
                kind,
                phase,
                seed: config.seed + u64::from(self.round),
                loaded_count: record_count,
                primaries,
                shared: &self.shared,
            };
            let name = format!("{kind}, {phase}");
            self.sink.begin(&name, config.operation_count(phase));
            let before = self.moment(primaries);
            let done = clients.run(self.sink)?;
            // A phase includes the background work that it caused.
            self.shared.drain()?;
            let settled = Instant::now();
            let after = self.moment(primaries);
            record_count = done.record_count;
            let levels = primaries
                .iter()
                .map(|it| it.engine().counts().tree_counts.len());
            let row = ReplicationRow::new(config, kind, phase, &done, settled, &before, &after);
            rows.push(ReplicationRow {
                round: self.round,
                level_count: levels.max().unwrap_or(0),
                ..row
            });
        }
        Ok((rows, record_count))
    }

    fn moment<E: Endpoint + Send + 'static>(
        &self,
        primaries: &[Primary<CountedEndpoint<E>>],
    ) -> CounterSnapshot {
        let status = primaries.iter().flat_map(|it| it.status().backups);
        let (log, index) = status.fold((0, 0), |(log, index), it| {
            (log + it.log_size_bytes, index + it.index_size_bytes)
        });
        let work = primaries
            .iter()
            .map(|it| DeviceCounts::from(&it.engine().work()));
        CounterSnapshot::now(&self.shared, work.sum(), log, index)
    }
}
