//! Who means harm to a memory node that others use over `tcp`, or to its clients.
//!
//! What happens is in the table of `docs/hostile-inputs.md`, which names these tests.
//!
//! | module | what it holds |
//! |---|---|
//! | `raw` | the protocol by hand: every byte is written down here a second time |
//! | `logins` | secrets, proofs, versions, tickets |
//! | `rights` | verbs and requests beyond what a session may do |
//! | `streams` | frames that are none, that do not end, and answers that nobody fetches |
//! | `floods` | connections without end |
//! | `nodes` | nodes that know no secret, or lie |

mod floods;
mod logins;
mod nodes;
mod raw;
mod rights;
mod streams;

use farleaf_executor::block_on;
use farleaf_fabric::tcp::{TcpClient, TcpEndpoint};
use farleaf_fabric::{Batch, BatchError, Control, Endpoint};
use farleaf_types::{NodeId, OwnerWord, WordAddr};

fn at(index: u64) -> WordAddr {
    WordAddr::new(NodeId(0), index)
}

fn execute(endpoint: &TcpEndpoint, batch: &mut Batch) -> Result<(), BatchError> {
    block_on(endpoint.execute(batch), endpoint.completions())
}

/// An honest client that was there before, and must not notice anything.
struct Honest {
    client: TcpClient,
    owner: OwnerWord,
    endpoint: TcpEndpoint,
}

impl Honest {
    fn of(client: TcpClient) -> Self {
        let owner = client.register_session().expect("a session");
        let endpoint = client.endpoint(Some(owner)).expect("a connection");
        Self {
            client,
            owner,
            endpoint,
        }
    }

    /// Control and data work: the word at the index is counted up.
    fn works(&self, index: u64) {
        let life = self.client.session_life(self.owner);
        life.expect("the control connection is served");
        let mut batch = Batch::new();
        let before = batch.fetch_add(at(index), 1);
        let after = batch.read(at(index), 1);
        execute(&self.endpoint, &mut batch).expect("the data connection is served");
        let expected = batch.previous(before).wrapping_add(1);
        assert_eq!(batch.words(after), [expected]);
    }
}
