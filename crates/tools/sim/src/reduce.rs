//! Reduces a plan that breaks a promise, as long as it still breaks one.
//!
//! The search is greedy, from coarse to fine: whole clients, faults and freedoms first, then halves
//! of a client's operations, then single operations. A smaller plan is another run, in which the
//! same race may need other random delays, so each is tried with a few seeds.

use crate::fabric::Freedoms;
use crate::history::Operation;
use crate::plan::Plan;

/// Number of seeds with which a smaller plan is tried.
const SEED_COUNT: u64 = 6;

/// Returns the smallest plan found for which `is_broken` is true, after at most `attempt_count_max`
/// calls of it.
pub fn reduce(plan: &Plan, attempt_count_max: u64, is_broken: impl FnMut(&Plan) -> bool) -> Plan {
    let mut reduction = Reduction {
        plan: plan.clone(),
        left: attempt_count_max,
        is_broken,
    };
    loop {
        let before = size(&reduction.plan);
        reduction.drop_faults();
        reduction.drop_nodes();
        reduction.drop_clients();
        reduction.lift_budgets();
        reduction.calm_down();
        reduction.drop_operations();
        reduction.drop_records();
        if reduction.left == 0 || size(&reduction.plan) == before {
            return reduction.plan;
        }
    }
}

/// Returns the size that the reduction minimizes.
fn size(plan: &Plan) -> usize {
    let lanes: usize = plan.clients.iter().map(|client| client.lanes.len()).sum();
    let nodes = usize::from(plan.node_count) * 4;
    plan.operation_count() * 4 + plan.faults.len() * 4 + nodes + lanes + plan.table.loaded.len()
}

/// Returns the records of a load, on either table.
fn loaded(operation: &mut Operation) -> Option<&mut Vec<(u64, u64)>> {
    match operation {
        Operation::Load(records) => Some(records),
        Operation::Other(inner) => loaded(inner),
        _ => None,
    }
}

struct Reduction<F> {
    plan: Plan,
    left: u64,
    is_broken: F,
}

impl<F: FnMut(&Plan) -> bool> Reduction<F> {
    /// Accepts a candidate if it is broken with some seed.
    fn offer(&mut self, candidate: &Plan) -> bool {
        for seed in 0..SEED_COUNT {
            if self.left == 0 {
                return false;
            }
            self.left -= 1;
            let mut candidate = candidate.clone();
            candidate.seed = candidate.seed.wrapping_add(seed);
            if (self.is_broken)(&candidate) {
                self.plan = candidate;
                return true;
            }
        }
        false
    }

    fn drop_faults(&mut self) {
        let mut index = 0;
        while index < self.plan.faults.len() {
            let mut candidate = self.plan.clone();
            candidate.faults.remove(index);
            if !self.offer(&candidate) {
                index += 1;
            }
        }
    }

    /// Tries a pool of one node, or of one node less. Faults of a missing node do nothing.
    fn drop_nodes(&mut self) {
        for node_count in 1..self.plan.node_count {
            let mut candidate = self.plan.clone();
            candidate.node_count = node_count;
            if self.offer(&candidate) {
                return;
            }
        }
    }

    /// Empties clients and lanes. Clients keep their numbers, which faults name.
    fn drop_clients(&mut self) {
        for client in 0..self.plan.clients.len() {
            if self.plan.clients[client].lanes.is_empty() {
                continue;
            }
            let mut candidate = self.plan.clone();
            candidate.clients[client].lanes.clear();
            if self.offer(&candidate) {
                continue;
            }
            let mut lane = 0;
            while lane < self.plan.clients[client].lanes.len() {
                let mut candidate = self.plan.clone();
                candidate.clients[client].lanes.remove(lane);
                if !self.offer(&candidate) {
                    lane += 1;
                }
            }
        }
    }

    fn lift_budgets(&mut self) {
        for client in 0..self.plan.clients.len() {
            let mut candidate = self.plan.clone();
            if candidate.clients[client]
                .metadata_budget_bytes
                .take()
                .is_some()
            {
                self.offer(&candidate);
            }
        }
    }

    fn calm_down(&mut self) {
        let calmer: [fn(&mut Freedoms); 5] = [
            |freedoms| freedoms.read_torn_per_mille = 0,
            |freedoms| freedoms.write_torn_per_mille = 0,
            |freedoms| freedoms.overtaken_per_mille = 0,
            |freedoms| freedoms.stall_per_mille = 0,
            |freedoms| freedoms.pause_per_mille = 0,
        ];
        for calm in calmer {
            let mut candidate = self.plan.clone();
            calm(&mut candidate.freedoms);
            if format!("{:?}", candidate.freedoms) != format!("{:?}", self.plan.freedoms) {
                self.offer(&candidate);
            }
        }
    }

    fn drop_operations(&mut self) {
        for client in 0..self.plan.clients.len() {
            for lane in 0..self.plan.clients[client].lanes.len() {
                self.thin_out(|plan| &mut plan.clients[client].lanes[lane]);
            }
        }
    }

    fn drop_records(&mut self) {
        self.thin_out(|plan| &mut plan.table.loaded);
        for client in 0..self.plan.clients.len() {
            for lane in 0..self.plan.clients[client].lanes.len() {
                // The load stays in place, whatever records are removed from it.
                for place in 0..self.plan.clients[client].lanes[lane].len() {
                    let operation = &mut self.plan.clients[client].lanes[lane][place];
                    if loaded(operation).is_some() {
                        self.thin_out(|plan| {
                            let operation = &mut plan.clients[client].lanes[lane][place];
                            loaded(operation).expect("it is a load")
                        });
                    }
                }
            }
        }
    }

    /// Removes pieces of a list: halves first, then ever smaller ones.
    fn thin_out<T>(&mut self, list: impl Fn(&mut Plan) -> &mut Vec<T>) {
        let mut piece = list(&mut self.plan.clone()).len().div_ceil(2);
        while piece > 0 {
            let mut from = 0;
            loop {
                let mut candidate = self.plan.clone();
                let items = list(&mut candidate);
                if from >= items.len() {
                    break;
                }
                items.drain(from..items.len().min(from + piece));
                if !self.offer(&candidate) {
                    from += piece;
                }
            }
            if piece == 1 {
                return;
            }
            piece = piece.div_ceil(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Profile;

    /// Promise: operations that do not matter are removed: here, all but one delete.
    #[test]
    fn what_does_not_matter_goes() {
        let has_delete = |plan: &Plan| {
            let operations = plan
                .clients
                .iter()
                .flat_map(|client| &client.lanes)
                .flatten();
            operations
                .filter(|operation| matches!(operation, Operation::Delete(_)))
                .count()
                > 0
        };
        let plan = (0..100)
            .map(|seed| Plan::draw(seed, Profile::Crashes))
            .find(|plan| has_delete(plan) && plan.operation_count() > 100 && plan.node_count > 1)
            .expect("some seed");
        let reduced = reduce(&plan, 100_000, has_delete);
        assert_eq!(reduced.operation_count(), 1);
        assert_eq!(reduced.node_count, 1);
        assert!(reduced.faults.is_empty() && reduced.table.loaded.is_empty());
        assert!(has_delete(&reduced));
    }

    /// Promise: the reduction stops at its limit of attempts, with a plan that is broken.
    #[test]
    fn it_stops_in_time() {
        let plan = Plan::draw(1, Profile::Crashes);
        let mut calls = 0;
        let reduced = reduce(&plan, 10, |_| {
            calls += 1;
            false
        });
        assert_eq!(calls, 10);
        assert_eq!(reduced.operation_count(), plan.operation_count());
    }
}
