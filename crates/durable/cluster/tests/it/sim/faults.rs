//! What goes wrong, and what administrators do meanwhile.

use std::sync::Arc;
use std::time::Duration;

use farleaf_cluster::admin;
use farleaf_cluster::agent::Agent;
use farleaf_cluster::clock::ManualClock;
use farleaf_cluster::coordinator::{Coordinator as _, Embedded};
use farleaf_cluster::ids::ServerId;
use farleaf_cluster::record::region::Key;
use farleaf_cluster::record::room::LOW_SIZE_BYTES_MIN;
use farleaf_cluster::record::start::start_key;
use farleaf_cluster::record::{Replica, START_PREFIX, WishKind};
use farleaf_cluster::starts;

use super::fleet::{BreaksFor, SimServer};
use super::link::Weather;
use super::world::{Event, FAULTS_UNTIL, KEY_END, MASTER_COUNT, SERVER_COUNT, World};

/// In each run of so many that fill disks up, some of those break for damage instead.
const ROTS_EACH: u64 = 4;

impl World {
    fn weather(&mut self, actor: usize, change: impl FnOnce(&mut Weather)) {
        change(&mut self.shared.lock().expect("one thread").weather[actor]);
    }

    pub(super) fn fault(&mut self) {
        if self.now() >= FAULTS_UNTIL {
            return self.calm();
        }
        let actor = self.random.index(SERVER_COUNT + MASTER_COUNT);
        let server = self.random.index(SERVER_COUNT);
        let until = self.now() + self.random.milliseconds(50, 3000);
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
            4 | 5 => self.weather(actor, |it| it.cut_until = until),
            6 => self.coordinator_away(),
            7 => self.weather(actor, |it| it.loss_one_in = 4),
            8 => self.weather(actor, |it| it.watch_delay = Duration::from_millis(700)),
            9 => {
                let max = self.random.milliseconds(20, 600);
                self.weather(actor, |it| it.answer_delay_max = max);
            }
            10 => {
                let other = self.random.index(SERVER_COUNT);
                let pair = (
                    self.servers[server.min(other)].id,
                    self.servers[server.max(other)].id,
                );
                self.fleet.lock().expect("one thread").cuts.insert(pair);
            }
            11 => self.fleet.lock().expect("one thread").cuts.clear(),
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
            15 => self.weather_clears(actor),
            16 => {
                let id = self.servers[server].id;
                let count = 1 + self.random.below(2) as u32;
                self.fleet
                    .lock()
                    .expect("one thread")
                    .server(id)
                    .failing_order_count = count;
            }
            17 => self.room_changes(server),
            _ => self.wish(),
        }
        let wait = 50 + self.random.below(450);
        self.at(wait, Event::Fault);
    }

    /// The disk of a server that is down loses its copies of regions of which two other members
    /// have one, and no copy was lost before: what a master has not acted on yet may leave one.
    fn damage(&mut self, server: usize) {
        let id = self.servers[server].id;
        let mut fleet = self.fleet.lock().expect("one thread");
        for record in self.checker.regions() {
            let region = record.region;
            let was_damaged = |server: &SimServer| {
                let mut damaged = server.damaged.iter();
                damaged.any(|(of, _)| *of == region)
            };
            let has_copy = |replica: &&Replica| {
                let copy = fleet.servers[&replica.server].copies.get(&region);
                copy.is_some_and(|copy| copy.number == replica.number)
            };
            let members = self.checker.lasting_members(&record);
            let others = members.iter().filter(|it| it.server != id);
            let is_elsewhere = others.filter(has_copy).count() >= 2;
            if is_elsewhere && !fleet.servers.values().any(was_damaged) {
                fleet.server(id).damage(region);
                self.damage_count += 1;
            }
        }
    }

    /// But nobody reaches a coordinator that is away.
    fn weather_clears(&mut self, actor: usize) {
        let cut_until = self.away_until;
        self.weather(actor, |it| {
            *it = Weather {
                cut_until,
                ..Weather::default()
            };
        });
    }

    /// A server says that it is low on room, or full, or that there is room again (CP22).
    fn room_changes(&mut self, server: usize) {
        let rooms = [None, None, Some(LOW_SIZE_BYTES_MIN - 1), Some(0)];
        let free_bytes = rooms[self.random.index(rooms.len())];
        let id = self.servers[server].id;
        let mut fleet = self.fleet.lock().expect("one thread");
        if !fleet.servers[&id].is_full {
            fleet.server(id).free_bytes = free_bytes;
        }
    }

    /// Disks get full, and replicas on them break; there is room again a while later. Or some break
    /// for damage, and can go on at once. A server crashes meanwhile, perhaps, and no other one is
    /// started again for it. All chance of this is of its own, so that histories without it are as
    /// they always were.
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
            let mut fleet = self.fleet.lock().expect("one thread");
            let server = fleet.server(id);
            server.fill_up(|| all_break || random.one_in(2));
            // No draw, so that histories of other seeds are as they always were.
            if self.seed.is_multiple_of(ROTS_EACH) && index.is_multiple_of(2) {
                server.breaks_for = BreaksFor::Damage;
                server.make_room();
            }
            drop(fleet);
            self.at(100 + random.below(2500), Event::Room(index));
            if random.one_in(3) {
                // The records that it hears of next are newer than that it broke.
                let until = self.now() + random.milliseconds(50, 1000);
                self.weather(index, |it| it.cut_until = until);
            }
        }
        if random.one_in(2) {
            self.crash_server(server);
            self.at(100 + random.below(1500), Event::Restart(server));
        }
        self.at(300 + random.below(2000), Event::Fill);
        self.filling = random;
    }

    /// A master is gone for a while, or paused.
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

    /// Nobody reaches the coordinator for a while; then leases have their whole time again (CP6).
    fn coordinator_away(&mut self) {
        let away = self.random.milliseconds(200, 2500);
        // It is back when all is calm: leases that go on for longer would look like others' then.
        let away = away.min(FAULTS_UNTIL.saturating_sub(self.now()));
        let until = self.now() + away;
        self.away_until = self.away_until.max(until);
        let mut shared = self.shared.lock().expect("one thread");
        for weather in &mut shared.weather {
            weather.cut_until = weather.cut_until.max(until);
        }
        drop(shared);
        // The clock of the coordinator stands while it is away: no lease ends.
        self.embedded.renew_all_leases_after(away);
    }

    /// The process with the coordinator is started again on another directory: an empty one, in
    /// which it creates a cluster; another cluster's, whose tables have the same numbers; or an
    /// older copy of its own. All chance of this is of its own, as of [`fill_up`](Self::fill_up).
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
                admin::found(&other).expect("it is empty");
                if which == 1 {
                    let keys: Vec<_> = (1..40).map(|byte| Key(vec![byte])).collect();
                    admin::create_table(&other, "t", 3, &keys).expect("it can be made");
                }
                other
            }
        };
        self.replaced_by = Some(starts::begin_start(&other).expect("nobody else starts it"));
        let away = random.milliseconds(500, 3000);
        let away = away.min(FAULTS_UNTIL.saturating_sub(now));
        let next = 500 + random.below(4000);
        // The clock of the own one stands meanwhile: no lease ends (CP6).
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

    /// Whether every server has seen a start that a copy does not have. One that was cut off since
    /// the copy was made cannot tell it from the newest data (ID5).
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
        // Who began meanwhile knew nothing else, and has taken it for the cluster's.
        if let Some(nonce) = self.replaced_by.take() {
            starts::forgive(&self.embedded, nonce).expect("it works");
        }
        let mut shared = self.shared.lock().expect("one thread");
        shared.embedded = self.embedded.clone();
        shared.replaced_count += 1;
    }

    fn wish(&mut self) {
        let regions = self.checker.regions();
        let Some(record) = regions.get(self.random.index(regions.len().max(1))) else {
            return;
        };
        let (table, region) = (record.table, record.region);
        let kind = if self.random.one_in(2) {
            let at = Key(vec![self.random.below(KEY_END) as u8]);
            WishKind::Split { table, region, at }
        } else {
            let from = record.primary.map_or(ServerId(1), |it| it.server);
            let to = ServerId(1 + self.random.below(SERVER_COUNT as u64));
            WishKind::Move {
                table,
                region,
                from,
                to,
            }
        };
        admin::wish(&self.embedded, kind).expect("it works");
    }

    /// Everything that was broken is whole again.
    fn calm(&mut self) {
        for index in 0..SERVER_COUNT {
            self.servers[index].paused_until = Duration::ZERO;
            let id = self.servers[index].id;
            let mut fleet = self.fleet.lock().expect("one thread");
            let server = fleet.server(id);
            server.failing_order_count = 0;
            server.make_room();
            let has_failed = std::mem::take(&mut server.has_failed);
            drop(fleet);
            if has_failed {
                // What is broken stays so until the server is started again, but for want of room.
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
        self.fleet.lock().expect("one thread").cuts.clear();
        let mut shared = self.shared.lock().expect("one thread");
        for weather in &mut shared.weather {
            *weather = Weather::default();
        }
    }
}
