//! Faults, and operations of administrators meanwhile.

use std::sync::Arc;
use std::time::Duration;

use farleaf_base::clock::ManualClock;
use farleaf_base::random::Random;
use farleaf_cluster::admin;
use farleaf_cluster::agent::Agent;
use farleaf_cluster::coordinator::{Coordinator as _, Embedded};
use farleaf_cluster::ids::ServerId;
use farleaf_cluster::record::region::Key;
use farleaf_cluster::record::space::LOW_SIZE_BYTES_MIN;
use farleaf_cluster::record::start::start_key;
use farleaf_cluster::record::{AdminRequestKind, Replica, START_PREFIX};
use farleaf_cluster::starts;

use super::link::LinkFaults;
use super::sim_servers::{BreaksFor, SimServer};
use super::world::{Event, FAULTS_UNTIL, KEY_END, MASTER_COUNT, SERVER_COUNT, World};

/// One in so many runs with full disks has replicas that break for damage instead.
const ROTS_EACH: u64 = 4;

impl World {
    fn link_faults(&mut self, actor: usize, change: impl FnOnce(&mut LinkFaults)) {
        change(&mut self.shared.lock().expect("one thread").link_faults[actor]);
    }

    pub(super) fn fault(&mut self) {
        if self.now() >= FAULTS_UNTIL {
            return self.calm();
        }
        let actor = self.random.index(SERVER_COUNT + MASTER_COUNT);
        let server = self.random.index(SERVER_COUNT);
        let until = self.now() + milliseconds(&mut self.random, 50, 3000);
        let which = self.random.below(19);
        if super::traces() {
            eprintln!(
                "fault {which} of {actor}, server {}, until {until:?}",
                server + 1
            );
        }
        match which {
            0 | 1 => {
                self.crash_server(server);
                let wait = 100 + self.random.below(4000);
                self.at(wait, Event::Restart(server));
            }
            2 | 3 => self.servers[server].paused_until = until,
            4 | 5 => self.link_faults(actor, |it| it.cut_until = until),
            6 => self.coordinator_away(),
            7 => self.link_faults(actor, |it| it.loss_one_in = 4),
            8 => self.link_faults(actor, |it| it.watch_delay = Duration::from_millis(700)),
            9 => {
                let max = milliseconds(&mut self.random, 20, 600);
                self.link_faults(actor, |it| it.answer_delay_max = max);
            }
            10 => {
                let other = self.random.index(SERVER_COUNT);
                let pair = (
                    self.servers[server.min(other)].id,
                    self.servers[server.max(other)].id,
                );
                self.sim_servers
                    .lock()
                    .expect("one thread")
                    .cuts
                    .insert(pair);
            }
            11 => self.sim_servers.lock().expect("one thread").cuts.clear(),
            12 => self.master_fails(until),
            13 => {
                let drains = self.random.one_in(2);
                let id = self.servers[server].id;
                admin::set_drain(&self.embedded, id, drains).expect("it works");
            }
            14 if self.random.one_in(3) => {
                for index in 0..SERVER_COUNT {
                    self.crash_server(index);
                    let wait = 50 + self.random.below(1500);
                    self.at(wait, Event::Restart(index));
                }
                if self.random.one_in(2) {
                    self.damage(server);
                }
            }
            15 => self.link_faults_end(actor),
            16 => {
                let id = self.servers[server].id;
                let count = 1 + self.random.below(2) as u32;
                self.sim_servers
                    .lock()
                    .expect("one thread")
                    .server(id)
                    .failing_order_count = count;
            }
            17 => self.space_changes(server),
            _ => self.admin_request(),
        }
        let wait = 50 + self.random.below(450);
        self.at(wait, Event::Fault);
    }

    /// Makes the disk of a stopped server lose its copies of regions of which two other members
    /// have one and no copy was lost before. Decisions that a master has not executed yet may leave
    /// one copy.
    fn damage(&mut self, server: usize) {
        let id = self.servers[server].id;
        let mut sim_servers = self.sim_servers.lock().expect("one thread");
        for record in self.checker.regions() {
            let region = record.region;
            let was_damaged = |server: &SimServer| {
                let mut damaged = server.damaged.iter();
                damaged.any(|(of, _)| *of == region)
            };
            let has_copy = |replica: &&Replica| {
                let copy = sim_servers.servers[&replica.server].copies.get(&region);
                copy.is_some_and(|copy| copy.number == replica.number)
            };
            let members = self.checker.lasting_members(&record);
            let others = members.iter().filter(|it| it.server != id);
            let is_elsewhere = others.filter(has_copy).count() >= 2;
            if is_elsewhere && !sim_servers.servers.values().any(was_damaged) {
                sim_servers.server(id).damage(region);
                self.damage_count += 1;
            }
        }
    }

    /// The coordinator stays unreachable while it is unavailable.
    fn link_faults_end(&mut self, actor: usize) {
        let cut_until = self.away_until;
        self.link_faults(actor, |it| {
            *it = LinkFaults {
                cut_until,
                ..LinkFaults::default()
            };
        });
    }

    /// Makes a server report low, no, or enough free space (CONTROL-22).
    fn space_changes(&mut self, server: usize) {
        let free_sizes = [None, None, Some(LOW_SIZE_BYTES_MIN - 1), Some(0)];
        let free_bytes = free_sizes[self.random.index(free_sizes.len())];
        let id = self.servers[server].id;
        let mut sim_servers = self.sim_servers.lock().expect("one thread");
        if !sim_servers.servers[&id].is_full {
            sim_servers.server(id).free_bytes = free_bytes;
        }
    }

    /// Fills disks up, so that replicas on them break; there is space again later. Some replicas
    /// break for damage instead, and can continue at once. Possibly a server crashes meanwhile, and
    /// no other one is restarted for that. Random numbers come from a separate generator, so that
    /// histories without this fault stay unchanged.
    pub(super) fn fill_up(&mut self) {
        if self.now() >= FAULTS_UNTIL {
            return;
        }
        let mut random = self.filling.clone();
        let (server, are_all) = (random.index(SERVER_COUNT), random.one_in(2));
        for index in 0..SERVER_COUNT {
            if index != server && !are_all {
                continue;
            }
            let all_break = random.one_in(2);
            let id = self.servers[index].id;
            let mut sim_servers = self.sim_servers.lock().expect("one thread");
            let server = sim_servers.server(id);
            server.fill_up(|| all_break || random.one_in(2));
            // Draws no random number, so that histories of other seeds stay unchanged.
            if self.seed.is_multiple_of(ROTS_EACH) && index.is_multiple_of(2) {
                server.breaks_for = BreaksFor::Damage;
                server.make_space();
            }
            drop(sim_servers);
            self.at(100 + random.below(2500), Event::SpaceState(index));
            if random.one_in(3) {
                // The next records that the agent sees are newer than its break.
                let until = self.now() + milliseconds(&mut random, 50, 1000);
                self.link_faults(index, |it| it.cut_until = until);
            }
        }
        if random.one_in(2) {
            self.crash_server(server);
            self.at(100 + random.below(1500), Event::Restart(server));
        }
        self.at(300 + random.below(2000), Event::Fill);
        self.filling = random;
    }

    /// Stops or pauses a master for a while.
    fn master_fails(&mut self, until: Duration) {
        let master = self.random.index(MASTER_COUNT);
        if self.random.one_in(2) {
            self.masters[master].1 = None;
            let wait = 100 + self.random.below(2500);
            self.at(wait, Event::Restart(SERVER_COUNT + master));
        } else {
            self.masters[master].2 = until;
        }
    }

    /// Makes the coordinator unavailable for a while; then leases have their whole time again
    /// (CONTROL-6).
    fn coordinator_away(&mut self) {
        let away = milliseconds(&mut self.random, 200, 2500);
        // Available again when faults end: longer leases would look like another server's.
        let away = away.min(FAULTS_UNTIL.saturating_sub(self.now()));
        let until = self.now() + away;
        self.away_until = self.away_until.max(until);
        let mut shared = self.shared.lock().expect("one thread");
        for link_faults in &mut shared.link_faults {
            link_faults.cut_until = link_faults.cut_until.max(until);
        }
        drop(shared);
        // The clock of the coordinator stops meanwhile, so that no lease ends.
        self.embedded.renew_all_leases_after(away);
    }

    /// Restarts the coordinator's process on another directory: an empty one, in which it creates a
    /// cluster; another cluster's, whose tables have the same numbers; or an older copy of its own.
    /// Random numbers come from a separate generator, as in [`fill_up`](Self::fill_up).
    pub(super) fn replace_coordinator(&mut self) {
        let now = self.now();
        if now + Duration::from_secs(1) >= FAULTS_UNTIL {
            return;
        }
        let copied = self.embedded.copy(Arc::new(ManualClock::new()));
        let copied = self.copied.replace(copied);
        let copied = copied.filter(|it| self.is_older_for_all(it));
        let random = &mut self.replacing;
        let clock = ManualClock::new();
        clock.set(Duration::from_secs(1) + now);
        let other = match (random.below(3), copied) {
            (0, Some(copied)) => copied.copy(Arc::new(clock)),
            (which, _) => {
                let other = Embedded::in_memory(Arc::new(clock));
                admin::create_cluster(&other).expect("it is empty");
                if which == 1 {
                    let keys: Vec<_> = (1..40).map(|byte| Key(vec![byte])).collect();
                    admin::create_table(&other, "t", 3, &keys).expect("it can be made");
                }
                other
            }
        };
        self.replaced_by = Some(starts::begin_start(&other).expect("nobody else starts it"));
        let away = milliseconds(random, 500, 3000);
        let away = away.min(FAULTS_UNTIL.saturating_sub(now));
        let next = 500 + random.below(4000);
        // The clock of the original one stops meanwhile: no lease ends (CONTROL-6).
        self.embedded.renew_all_leases_after(away);
        let mut shared = self.shared.lock().expect("one thread");
        shared.embedded = other;
        shared.replaced_count += 1;
        drop(shared);
        self.replaced_count += 1;
        let away_ms = away.as_millis() as u64;
        self.at(away_ms, Event::PutBack);
        self.at(away_ms + next, Event::Replace);
    }

    /// Returns whether every server has seen a start that a copy lacks. A server that was cut off
    /// since the copy was made cannot tell it from the newest data.
    fn is_older_for_all(&self, copy: &Embedded) -> bool {
        let starts = copy.range(START_PREFIX).expect("it works").entries;
        let has = |nonce| starts.iter().any(|it| it.key == start_key(nonce));
        self.servers.iter().all(|server| {
            let agent = server.agent.as_ref();
            let seen = agent.map_or(server.seen, Agent::seen);
            seen.is_some_and(|seen| !has(seen.nonce))
        })
    }

    pub(super) fn put_coordinator_back(&mut self) {
        starts::begin_start(&self.embedded).expect("nobody else starts it");
        // Members that started meanwhile have taken the replacement for the cluster's coordinator.
        if let Some(nonce) = self.replaced_by.take() {
            starts::accept_lost_start(&self.embedded, nonce).expect("it works");
        }
        let mut shared = self.shared.lock().expect("one thread");
        shared.embedded = self.embedded.clone();
        shared.replaced_count += 1;
    }

    fn admin_request(&mut self) {
        let regions = self.checker.regions();
        let Some(record) = regions.get(self.random.index(regions.len().max(1))) else {
            return;
        };
        let (table, region) = (record.table, record.region);
        let kind = if self.random.one_in(2) {
            let at = Key(vec![self.random.below(KEY_END) as u8]);
            AdminRequestKind::Split { table, region, at }
        } else {
            let from = record.primary.map_or(ServerId(1), |it| it.server);
            let to = ServerId(1 + self.random.below(SERVER_COUNT as u64));
            AdminRequestKind::Move {
                table,
                region,
                from,
                to,
            }
        };
        admin::admin_request(&self.embedded, kind).expect("it works");
    }

    /// Ends all faults.
    fn calm(&mut self) {
        for index in 0..SERVER_COUNT {
            self.servers[index].paused_until = Duration::ZERO;
            let id = self.servers[index].id;
            let mut sim_servers = self.sim_servers.lock().expect("one thread");
            let server = sim_servers.server(id);
            server.failing_order_count = 0;
            server.make_space();
            let has_failed = std::mem::take(&mut server.has_failed);
            drop(sim_servers);
            if has_failed {
                // Broken replicas stay broken until the server is restarted, except after a full
                // disk.
                self.crash_server(index);
            }
            admin::set_drain(&self.embedded, self.servers[index].id, false).expect("it works");
            if self.servers[index].agent.is_none() {
                self.start_server(index);
            }
        }
        for index in 0..MASTER_COUNT {
            self.masters[index].2 = Duration::ZERO;
            if self.masters[index].1.is_none() {
                self.start_master(index);
            }
        }
        self.sim_servers.lock().expect("one thread").cuts.clear();
        let mut shared = self.shared.lock().expect("one thread");
        for link_faults in &mut shared.link_faults {
            *link_faults = LinkFaults::default();
        }
    }
}

/// Draws a time of at least `from` and less than `to` milliseconds.
fn milliseconds(random: &mut Random, from: u64, to: u64) -> Duration {
    Duration::from_millis(random.between(from, to - 1))
}
