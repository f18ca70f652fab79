//! Valid greetings that are changed at random.

use farleaf_base::foreign_protocol::PortKind;
use farleaf_base::fuzzing::run;
use farleaf_base::random::Random;

use crate::greeting::{
    DETAILS_SIZE_BYTES, Details, Greeting, MESSAGE_SIZE_BYTES, Protocol, ServerGreeting,
};
use crate::secret::{Proof, Rights, Scope};

fn details(random: &mut Random) -> Details {
    let mut details = [0; DETAILS_SIZE_BYTES];
    details.fill_with(|| random.bits() as u8);
    details
}

fn greeting(random: &mut Random) -> Greeting {
    let nonce = random.bytes();
    match random.below(6) {
        0 => Greeting::Hello {
            rights: Rights::ALL[random.index(3)],
            scope: Scope::new(&vec![7; random.index(128)]).expect("short enough"),
            nonce,
            details: details(random),
        },
        1 => Greeting::Challenge {
            nonce,
            details: details(random),
        },
        2 => Greeting::Proof(Proof(nonce)),
        3 => Greeting::Welcome {
            proof: Proof(nonce),
            details: details(random),
        },
        4 => Greeting::WrongSecret("é".repeat(random.index(130))),
        _ => Greeting::Refusal("é".repeat(random.index(130))),
    }
}

/// Promise: any message is decoded or rejected, without a panic, and a decoded message encodes to
/// an equal one. A server answers it, or has a reason to refuse it.
#[test]
fn any_greeting_is_understood_or_refused() {
    run("greetings", |random| {
        let ports = [PortKind::Cluster, PortKind::MemoryNode];
        let protocol = Protocol {
            port: ports[random.index(2)],
            version: random.below(3) as u16,
        };
        let mut server = ServerGreeting::new(protocol);
        for _ in 0..3 {
            let mut bytes = greeting(random).encode(protocol).to_vec();
            random.mutate(&mut bytes);
            bytes.resize(MESSAGE_SIZE_BYTES, 0);
            let message = bytes.first_chunk().expect("it has this size");
            if let Ok(read) = Greeting::decode(protocol, message) {
                assert_eq!(Greeting::decode(protocol, &read.encode(protocol)), Ok(read));
            }
            let step = server.receive(message, || [0; DETAILS_SIZE_BYTES]);
            if let Err(error) = step.expect("there is randomness") {
                assert!(!error.reason(protocol).is_empty());
            }
        }
    });
}
