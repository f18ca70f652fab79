//! Random 128-bit identifiers of clusters, table incarnations, and starts of a coordinator. They
//! are written as 32 hexadecimal digits.

use std::fmt;
use std::io;
use std::str::FromStr;

use farleaf_net::request::ClusterTag;
use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Number of hexadecimal digits of an identifier.
const DIGIT_COUNT: usize = 32;

/// Numbers of clusters below this one were drawn by versions before 128-bit identifiers.
const LEGACY_END: u128 = 1 << 64;

/// Draws 128 random bits. The result is never a number that an older version could have drawn.
fn draw() -> io::Result<u128> {
    loop {
        let mut bytes = [0; 16];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        let drawn = u128::from_le_bytes(bytes);
        if drawn >= LEGACY_END {
            return Ok(drawn);
        }
    }
}

/// Reads 32 lowercase hexadecimal digits.
fn parse(digits: &str) -> Option<u128> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_whole = digits.len() == DIGIT_COUNT && digits.bytes().all(is_digit);
    is_whole.then(|| u128::from_str_radix(digits, 16).ok())?
}

struct Digits;

impl Visitor<'_> for Digits {
    type Value = u128;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("32 hexadecimal digits")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u128, E> {
        parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident, $shown:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl $name {
            /// Draws a new identifier.
            ///
            /// # Errors
            /// If the operating system provides no random bits.
            pub fn draw() -> io::Result<Self> {
                draw().map(Self)
            }
        }

        impl FromStr for $name {
            type Err = ();

            /// Reads 32 hexadecimal digits.
            fn from_str(text: &str) -> Result<Self, ()> {
                parse(text).map(Self).ok_or(())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!($shown, " {:032x}"), self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(&format_args!("{:032x}", self.0))
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(Digits).map(Self)
            }
        }
    };
}

random_id!(
    /// Identifier of one creation of a table. A table created later has another one, even if it has
    /// the same name or number in another cluster.
    TableIncarnation,
    "incarnation"
);
random_id!(
    /// Random number of one start of a coordinator.
    StartNonce,
    "start"
);

/// Identifier of a cluster, drawn when the cluster is created.
///
/// A cluster that an older version created has a number below 2^53 instead, a *legacy* identifier.
/// There are so few of these that two clusters could have the same one. `farleaf cluster adopt`
/// replaces it by a 128-bit identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub u128);

impl ClusterId {
    /// Draws the identifier of a new cluster.
    ///
    /// # Errors
    /// If the operating system provides no random bits.
    pub fn draw() -> io::Result<Self> {
        draw().map(Self)
    }

    /// Returns the identifier as greetings carry it; `None` if it is a legacy one, which is
    /// compared by records only.
    pub fn tag(self) -> Option<ClusterTag> {
        ClusterTag::new(self.0).filter(|_| !self.is_legacy())
    }

    /// Returns the identifier alone, without the word `cluster`.
    pub fn digits(self) -> String {
        if self.is_legacy() {
            return self.0.to_string();
        }
        format!("{:032x}", self.0)
    }

    /// Returns whether an older version drew it, with fewer than 128 bits.
    pub fn is_legacy(self) -> bool {
        self.0 < LEGACY_END
    }
}

impl From<ClusterTag> for ClusterId {
    fn from(tag: ClusterTag) -> Self {
        Self(tag.bits())
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cluster {}", self.digits())
    }
}

impl Serialize for ClusterId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match u64::try_from(self.0) {
            Ok(number) => serializer.serialize_u64(number),
            Err(_) => serializer.collect_str(&format_args!("{:032x}", self.0)),
        }
    }
}

impl<'de> Deserialize<'de> for ClusterId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// A number, as older versions wrote it, or hexadecimal digits.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Legacy(u64),
            Digits(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Legacy(number) => Ok(Self(number.into())),
            Written::Digits(text) => match parse(&text) {
                Some(id) if id >= LEGACY_END => Ok(Self(id)),
                _ => Err(D::Error::invalid_value(Unexpected::Str(&text), &Digits)),
            },
        }
    }
}

impl TableIncarnation {
    /// Returns whether two incarnations may be of one table. Records of older versions have none,
    /// and match any.
    pub fn may_be_same(one: Option<Self>, other: Option<Self>) -> bool {
        one.is_none() || other.is_none() || one == other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Identifiers are written as 32 digits, legacy ones as numbers, and both are read back;
    /// anything else is refused.
    #[test]
    fn identifiers_come_back() {
        let id = ClusterId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        let written = serde_json::to_string(&id).expect("a plain value");
        assert_eq!(written, r#""0123456789abcdef0123456789abcdef""#);
        assert_eq!(id.to_string(), "cluster 0123456789abcdef0123456789abcdef");
        let legacy = ClusterId(77);
        assert_eq!(serde_json::to_string(&legacy).expect("a number"), "77");
        assert_eq!(legacy.to_string(), "cluster 77");
        assert_eq!(id.digits(), "0123456789abcdef0123456789abcdef");
        assert_eq!(legacy.digits(), "77");
        for id in [id, legacy] {
            let written = serde_json::to_string(&id).expect("a plain value");
            assert_eq!(serde_json::from_str::<ClusterId>(&written).ok(), Some(id));
        }
        for bad in [
            r#""77""#,
            r#""0123456789ABCDEF0123456789abcdef""#,
            r#""+123456789abcdef0123456789abcdef""#,
            r#""0000000000000000000000000000004d""#,
            "-1",
            "1.5",
        ] {
            assert!(serde_json::from_str::<ClusterId>(bad).is_err(), "{bad}");
        }
        let nonce = StartNonce(5);
        let written = serde_json::to_string(&nonce).expect("a plain value");
        assert_eq!(written, format!("\"{:032x}\"", 5));
        assert_eq!(
            serde_json::from_str::<StartNonce>(&written).ok(),
            Some(nonce)
        );
        assert!(serde_json::from_str::<StartNonce>("5").is_err());
    }

    /// Drawn identifiers differ, and are never legacy ones.
    #[test]
    fn drawn_identifiers_differ() {
        let [one, other] = [(); 2].map(|()| ClusterId::draw().expect("random bits"));
        assert!(one != other && !one.is_legacy() && !other.is_legacy());
    }
}
