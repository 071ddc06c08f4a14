//! Who asks, and what they may do. The one place where permissions are checked.

use std::sync::{Arc, LazyLock};

use repertoire_core::{
    SkillId,
    permission::{IdPrefix, Permission, PermissionSet},
};
use repertoire_registry::store::StoredToken;

use crate::{
    error::{Error, Result},
    search_usage::LOCAL_OWNER,
};

/// The sender of a request: the user of this process, or the holder of a token.
///
/// ```
/// use repertoire_app::{Caller, Permission};
///
/// assert!(Caller::local_user().require(Permission::Admin).is_ok());
/// assert!(Caller::without_permissions().require(Permission::Read).is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller(Arc<CallerRights>);

#[derive(Debug, PartialEq, Eq)]
struct CallerRights {
    /// The name of the token.
    token: Option<String>,
    /// Under which key is kept what the caller chooses in searches, if it is kept.
    usage_owner: Option<String>,
    permissions: PermissionSet,
    /// The only skills it may see; all if empty.
    prefixes: Vec<IdPrefix>,
    /// The only tools it may call; all if empty.
    tools: Vec<String>,
}

impl Caller {
    /// The user that this process runs as, who may do everything.
    pub fn local_user() -> Self {
        static LOCAL_USER: LazyLock<Caller> =
            LazyLock::new(|| Caller::new(PermissionSet::ALL, Some(LOCAL_OWNER.to_owned())));
        LOCAL_USER.clone()
    }

    /// Any caller of a server without authentication, who may do everything. What several people
    /// choose in searches is not kept, because it would move the results of others.
    pub fn anonymous() -> Self {
        Self::new(PermissionSet::ALL, None)
    }

    /// A caller that may do nothing: what an unknown request gets.
    pub fn without_permissions() -> Self {
        Self::new(PermissionSet::default(), None)
    }

    fn new(permissions: PermissionSet, usage_owner: Option<String>) -> Self {
        Self(Arc::new(CallerRights {
            token: None,
            usage_owner,
            permissions,
            prefixes: Vec::new(),
            tools: Vec::new(),
        }))
    }

    /// The holder of a token.
    pub fn from_token(token: &StoredToken) -> Self {
        Self(Arc::new(CallerRights {
            token: Some(token.name.clone()),
            // Another token of the same name is another client.
            usage_owner: Some(format!(
                "token:{}:{}",
                token.name,
                &token.hash.hex_digits()[..16]
            )),
            permissions: token.permissions,
            prefixes: token.prefixes.clone(),
            tools: token.tools.clone(),
        }))
    }

    /// The name of the token, if the caller has one.
    pub fn token_name(&self) -> Option<&str> {
        self.0.token.as_deref()
    }

    /// Under which key is kept what the caller chooses in searches; without one, nothing is kept.
    pub fn usage_owner(&self) -> Option<&str> {
        self.0.usage_owner.as_deref()
    }

    /// Whether the caller has a permission.
    pub fn may(&self, permission: Permission) -> bool {
        self.0.permissions.allows(permission)
    }

    /// Refuses a caller without a permission.
    pub fn require(&self, permission: Permission) -> Result<()> {
        if self.may(permission) {
            return Ok(());
        }
        Err(Error::PermissionDenied(permission))
    }

    /// Refuses a caller that is restricted to some skills, for what concerns all of them.
    pub fn require_all_skills(&self) -> Result<()> {
        if self.0.prefixes.is_empty() {
            return Ok(());
        }
        Err(Error::RestrictedToken)
    }

    /// Refuses a caller that is restricted to some skills or some tools, for what concerns all skills
    /// and functions.
    pub fn require_unrestricted(&self) -> Result<()> {
        self.require_all_skills()?;
        if self.0.tools.is_empty() {
            return Ok(());
        }
        Err(Error::RestrictedToTools)
    }

    /// Whether the caller is restricted to some skills.
    pub fn is_restricted(&self) -> bool {
        !self.0.prefixes.is_empty()
    }

    /// The only skills the caller may see; all if empty.
    pub fn prefixes(&self) -> &[IdPrefix] {
        &self.0.prefixes
    }

    /// Whether the caller may see a skill.
    pub fn may_see(&self, id: &SkillId) -> bool {
        self.may_see_name(id.as_str())
    }

    /// Whether the caller may see a prompt, whose name is like an id.
    pub fn may_see_name(&self, name: &str) -> bool {
        let prefixes = &self.0.prefixes;
        prefixes.is_empty() || prefixes.iter().any(|prefix| prefix.contains_str(name))
    }

    /// Whether the caller may call a tool of this name, if it has the permission.
    pub fn may_use_tool(&self, name: &str) -> bool {
        self.0.tools.is_empty() || self.0.tools.iter().any(|tool| tool == name)
    }

    /// Refuses a caller whose token is for other tools.
    pub fn require_tool(&self, name: &str) -> Result<()> {
        if self.may_use_tool(name) {
            return Ok(());
        }
        Err(Error::ToolNotAllowed(name.to_owned()))
    }
}
