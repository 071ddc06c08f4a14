//! Every permission that a surface declares, collected from the tables of the surfaces.

use repertoire_app::Permission;

use crate::{http, iii, mcp};

/// One thing that a caller can ask for, and what it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermissionRow {
    /// Where it can be asked for: `route`, `method`, `tool`, `function` or `message`.
    pub surface: &'static str,
    /// Its name there.
    pub name: &'static str,
    /// What the caller must be allowed to do; nothing if `None`.
    pub permission: Option<Permission>,
}

/// Returns everything that a caller can ask for. Functions and tools of workers are not in it: they
/// need [`Permission::Run`].
pub fn all_permissions() -> Vec<PermissionRow> {
    let row = |surface, name, permission| PermissionRow {
        surface,
        name,
        permission,
    };
    let routes = http::declared_routes().map(|(path, needs)| row("route", path, needs));
    let methods = mcp::METHODS.iter();
    let methods = methods.map(|method| row("method", method.name, Some(method.permission)));
    let tools = mcp::TOOLS.iter();
    let tools = tools.map(|tool| row("tool", tool.name, Some(tool.permission)));
    let functions = iii::functions::all_functions().iter();
    let functions = functions.map(|one| row("function", one.id, Some(one.permission)));
    let builtin =
        iii::hub::builtin_permissions().map(|(id, needs)| row("function", id, Some(needs)));
    let messages = iii::hub::MESSAGE_TYPES.iter();
    let messages = messages.map(|(kind, needs)| row("message", kind, *needs));
    routes
        .chain(methods)
        .chain(tools)
        .chain(functions)
        .chain(builtin)
        .chain(messages)
        .collect()
}
