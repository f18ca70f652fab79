//! Profiles: the testbeds of papers, and others from files.

use std::path::PathBuf;

use super::model::{ModelError, NetworkModel};
use crate::display;

/// Embedded profiles, by name.
const EMBEDDED: [(&str, &str); 3] = [
    ("rf-tree", include_str!("../../profiles/rf-tree.toml")),
    ("rolex", include_str!("../../profiles/rolex.toml")),
    ("xstore", include_str!("../../profiles/xstore.toml")),
];

/// Errors of loading a profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The name is not an embedded profile, and no such file can be read.
    #[error(
        "cannot read profile '{}': {source}; name a file, or 'rolex', 'rf-tree' or 'xstore'",
        display::text(name)
    )]
    Unreadable {
        /// Name that was requested.
        name: String,
        /// Error of reading the file.
        source: std::io::Error,
    },
    /// The profile is invalid.
    #[error("{origin}: {source}")]
    Bad {
        /// Name of the file or embedded profile.
        origin: String,
        /// Description of the error.
        source: ModelError,
    },
}

/// Testbed with its origin.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Parameters of the testbed.
    pub model: NetworkModel,
    /// Path of the file as requested; `None` if the profile is built in.
    pub file: Option<PathBuf>,
}

/// Difference between two profiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Key with its table.
    pub key: &'static str,
    /// Value in this profile.
    pub value: String,
    /// Value in the other profile.
    pub other: String,
}

impl Profile {
    /// Returns the differences from the built-in profile of the same name: parameters, names, and
    /// published numbers. `None` if there is no such built-in profile.
    pub fn differences(&self) -> Option<Vec<Difference>> {
        let built_in = built_in(&self.model.name)?;
        Some(differences(&self.model, &built_in))
    }

    /// Returns the label of numbers made with this profile: its name, and a note if it differs from
    /// the built-in profile of this name.
    pub fn label(&self) -> String {
        let name = &self.model.name;
        match self.differences() {
            Some(differences) if !differences.is_empty() => format!("{name} (changed)"),
            _ => name.clone(),
        }
    }

    /// Returns whether the profile equals, in every number, the built-in profile of this name, and
    /// so is that testbed.
    pub fn is_built_in(&self, name: &str) -> bool {
        let is_same = |built_in| differences(&self.model, &built_in).is_empty();
        built_in(name).is_some_and(is_same)
    }
}

/// Returns the built-in profile of this name.
fn built_in(name: &str) -> Option<NetworkModel> {
    let (_, text) = EMBEDDED.iter().find(|(known, _)| *known == name)?;
    // A test checks that each of them is valid.
    NetworkModel::parse(text).ok()
}

fn differences(model: &NetworkModel, other: &NetworkModel) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut compare = |key, value: String, other: String| {
        if value != other {
            found.push(Difference { key, value, other });
        }
    };
    compare("name", model.name.clone(), other.name.clone());
    compare("testbed", model.testbed.clone(), other.testbed.clone());
    compare("nic.name", model.nic.name.clone(), other.nic.name.clone());
    let shared = |model: &NetworkModel| model.shared_machines.is_some().to_string();
    compare("shared_machines", shared(model), shared(other));
    for ((key, of_model), (_, of_other)) in model.parameters().zip(other.parameters()) {
        let [value, of_other] = [of_model, of_other].map(|it| display::amount(it.value));
        compare(key, value, of_other);
    }
    if model.published != other.published {
        let counts = [model, other].map(|it| format!("{} rates", it.published.len()));
        let [value, of_other] = counts;
        let value = format!("{value}, not the same");
        compare("published", value, of_other);
    }
    if model.published_latency != other.published_latency {
        let counts = [model, other].map(|it| format!("{} latencies", it.published_latency.len()));
        let [value, of_other] = counts;
        let value = format!("{value}, not the same");
        compare("published_latency", value, of_other);
    }
    found
}

/// Returns whether a profile of this name is built in; a file of that name is then ignored.
pub fn is_embedded(name: &str) -> bool {
    EMBEDDED.iter().any(|(known, _)| *known == name)
}

/// Loads the profile of this name, or from this file.
///
/// # Errors
/// The profile does not exist or is invalid: the error names the file and the key.
pub fn load_profile(name: &str) -> Result<Profile, ProfileError> {
    let embedded = EMBEDDED.iter().find(|(known, _)| *known == name);
    if let Some((_, text)) = embedded {
        let model = parse_profile(text, &format!("profile '{name}'"))?;
        return Ok(Profile { model, file: None });
    }
    let path = PathBuf::from(name);
    let text = std::fs::read_to_string(&path).map_err(|source| ProfileError::Unreadable {
        name: name.to_owned(),
        source,
    })?;
    let model = parse_profile(&text, &path.display().to_string())?;
    let file = Some(path);
    Ok(Profile { model, file })
}

/// Parses the profile in a text that came from `origin`.
///
/// # Errors
/// The profile is invalid.
pub fn parse_profile(text: &str, origin: &str) -> Result<NetworkModel, ProfileError> {
    NetworkModel::parse(text).map_err(|source| ProfileError::Bad {
        origin: origin.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the embedded profiles are valid, have the names by which they are requested, and do
    /// not differ from themselves.
    #[test]
    fn embedded_profiles_are_sound() {
        for (name, _) in EMBEDDED {
            let profile = load_profile(name).expect("embedded");
            assert_eq!(profile.model.name, name);
            assert!(profile.model.published.len() >= 5, "{name}");
            assert_eq!(profile.differences(), Some(Vec::new()));
            assert!(profile.is_built_in(name));
            assert_eq!(profile.label(), name);
        }
        let rolex = load_profile("rolex").expect("embedded");
        assert!(!rolex.is_built_in("xstore") && !rolex.is_built_in("none"));
    }

    /// Promise: a changed copy is distinguished from the profile of the same name by its changes.
    #[test]
    fn a_changed_copy_is_told_from_its_origin() {
        let mut profile = load_profile("rolex").expect("embedded");
        profile.model.nic.bandwidth_gbit_per_s.value = 200.0;
        profile.model.published.clear();
        let differences = profile.differences().expect("its name is known");
        let keys: Vec<&str> = differences.iter().map(|it| it.key).collect();
        assert_eq!(keys, ["nic.bandwidth_gbit_per_s", "published"]);
        assert_eq!(
            (&*differences[0].value, &*differences[0].other),
            ("200", "100")
        );
        assert!(!profile.is_built_in("rolex"));
        assert_eq!(profile.label(), "rolex (changed)");
        profile.model.name = "mine".to_owned();
        assert_eq!(profile.differences(), None);
        assert_eq!(profile.label(), "mine");
    }

    /// Promise: the error of an unknown profile names it, and the known ones.
    #[test]
    fn an_unknown_profile_is_named() {
        let error = load_profile("no/such.toml")
            .expect_err("no file")
            .to_string();
        assert!(
            error.contains("'no/such.toml'") && error.contains("'xstore'"),
            "{error}"
        );
    }
}
