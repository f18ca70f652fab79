//! Profiles: the testbeds of papers, and others from files.

use std::path::PathBuf;

use super::model::{ModelError, NetworkModel};
use crate::shown;

/// The embedded profiles, by name.
const EMBEDDED: [(&str, &str); 3] = [
    ("rf-tree", include_str!("../../profiles/rf-tree.toml")),
    ("rolex", include_str!("../../profiles/rolex.toml")),
    ("xstore", include_str!("../../profiles/xstore.toml")),
];

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// It is no embedded one, and no such file can be read.
    #[error(
        "profile '{}' is none of 'rolex', 'rf-tree' and 'xstore', and no file that can be read: {source}",
        shown::text(name)
    )]
    Unreadable {
        /// What was asked for.
        name: String,
        /// What the system said of the file.
        source: std::io::Error,
    },
    /// It is not as it must be.
    #[error("{origin}: {source}")]
    Bad {
        /// Which profile: a file, or an embedded one.
        origin: String,
        /// What is wrong with it.
        source: ModelError,
    },
}

/// A testbed, and where it was read from.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The testbed.
    pub model: NetworkModel,
    /// The file, as it was asked for; none: it is built in.
    pub file: Option<PathBuf>,
}

/// Something that one profile says otherwise than another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The key, with its table.
    pub key: &'static str,
    /// What this one says.
    pub value: String,
    /// What the other one says.
    pub other: String,
}

impl Profile {
    /// What it says otherwise than the built-in profile of its name: parameters, names, and what is
    /// published. None: there is no built-in profile of this name.
    pub fn differences(&self) -> Option<Vec<Difference>> {
        let built_in = built_in(&self.model.name)?;
        Some(differences(&self.model, &built_in))
    }

    /// What numbers that were made with it are said to be of: its name, and that it is not the
    /// built-in profile of this name, if it differs from it in anything.
    pub fn label(&self) -> String {
        let name = &self.model.name;
        match self.differences() {
            Some(differences) if !differences.is_empty() => format!("{name} (changed)"),
            _ => name.clone(),
        }
    }

    /// Whether it is, in every number, the built-in profile of this name, and so the testbed that
    /// goes by it.
    pub fn is_built_in(&self, name: &str) -> bool {
        let is_same = |built_in| differences(&self.model, &built_in).is_empty();
        built_in(name).is_some_and(is_same)
    }
}

/// The built-in profile of this name.
fn built_in(name: &str) -> Option<NetworkModel> {
    let (_, text) = EMBEDDED.iter().find(|(known, _)| *known == name)?;
    // A test holds each of them to be sound.
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
        let [value, of_other] = [of_model, of_other].map(|it| shown::amount(it.value));
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

/// Whether a profile of this name is built in: then it is no file's.
pub fn is_embedded(name: &str) -> bool {
    EMBEDDED.iter().any(|(known, _)| *known == name)
}

/// The profile of this name, or in this file.
///
/// # Errors
/// There is none, or it is not as it must be: the error names the file and the key.
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

/// The profile in a text that came from `origin`.
///
/// # Errors
/// It is not as it must be.
pub fn parse_profile(text: &str, origin: &str) -> Result<NetworkModel, ProfileError> {
    NetworkModel::parse(text).map_err(|source| ProfileError::Bad {
        origin: origin.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the embedded profiles are as they must be, called what they are asked by, and
    /// differ in nothing from themselves.
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

    /// Promise: a changed copy is told from the profile whose name it bears, by what was changed.
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

    /// Promise: a profile that is not there is named in the error, with those that are.
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
