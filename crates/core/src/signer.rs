//! Who signed a skill.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Who signed something, as a certificate authority confirmed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signer {
    /// An e-mail address, or the URI of a workflow.
    pub identity: String,
    /// Who confirmed the identity.
    pub issuer: String,
}

impl fmt::Display for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.identity, self.issuer)
    }
}
