//! Logins for OCI registries, from the configuration of Docker and Podman.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use docker_credential::DockerCredential;
use reqwest::header::HeaderValue;

/// What a registry or its token service gets to see.
#[derive(Clone)]
pub(crate) enum RegistryLogin {
    /// Nothing.
    Anonymous,
    /// A name and a password, for `Authorization: Basic`.
    Basic(HeaderValue),
    /// A token that is exchanged for one of the registry.
    IdentityToken(String),
}

impl RegistryLogin {
    /// Finds the login for a registry. Helper programs may be asked, so this blocks.
    pub(crate) fn find(registry: &str) -> Self {
        let found = docker_credential::get_credential(registry)
            .or_else(|_| docker_credential::get_podman_credential(registry));
        match found {
            Ok(DockerCredential::UsernamePassword(name, password)) => {
                basic_header(&name, &password).map_or(Self::Anonymous, Self::Basic)
            }
            Ok(DockerCredential::IdentityToken(token)) => Self::IdentityToken(token),
            Err(_) => Self::Anonymous,
        }
    }
}

fn basic_header(name: &str, password: &str) -> Option<HeaderValue> {
    let text = format!("Basic {}", STANDARD.encode(format!("{name}:{password}")));
    sensitive_header(&text)
}

/// A header that is never shown in messages.
pub(crate) fn sensitive_header(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}
