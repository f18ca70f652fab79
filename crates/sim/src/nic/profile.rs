//! Profiles: the testbeds of papers, and others from files.

use std::path::{Path, PathBuf};

use super::model::{ModelError, NetworkModel};
use crate::shown;

/// The embedded profiles, by name.
const EMBEDDED: [(&str, &str); 2] = [
    ("rolex", include_str!("../../profiles/rolex.toml")),
    ("xstore", include_str!("../../profiles/xstore.toml")),
];

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// It is no embedded one, and no such file can be read.
    #[error(
        "profile '{}' is neither 'rolex' nor 'xstore', and no file that can be read: {source}",
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

/// The profile of this name, or in this file.
///
/// # Errors
/// There is none, or it is not as it must be: the error names the file and the key.
pub fn load_profile(name: &str) -> Result<NetworkModel, ProfileError> {
    let embedded = EMBEDDED.iter().find(|(known, _)| *known == name);
    if let Some((_, text)) = embedded {
        return parse_profile(text, &format!("profile '{name}'"));
    }
    let path = PathBuf::from(name);
    let text = std::fs::read_to_string(&path).map_err(|source| ProfileError::Unreadable {
        name: name.to_owned(),
        source,
    })?;
    parse_profile(&text, &shown(&path))
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

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the embedded profiles are as they must be, and called what they are asked by.
    #[test]
    fn embedded_profiles_are_sound() {
        for (name, _) in EMBEDDED {
            let model = load_profile(name).expect("embedded");
            assert_eq!(model.name, name);
            assert!(model.published.len() >= 5, "{name}");
        }
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
