//! The caller of a request and its permissions.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use pitwheel::Role;

use crate::problem::Problem;

/// What a call needs permission for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permission {
    /// Read lists, counts, workers and history.
    View,
    /// Read one job by its id.
    ViewJob,
    /// Enqueue jobs.
    Enqueue,
    /// Change jobs, queues and workers.
    Operate,
    /// Change tokens and kinds, read the audit log.
    Administer,
    /// Run jobs: open streams, send heartbeats, report results.
    Work,
}

impl Permission {
    const ALL: [Permission; 6] = [
        Permission::View,
        Permission::ViewJob,
        Permission::Enqueue,
        Permission::Operate,
        Permission::Administer,
        Permission::Work,
    ];

    fn is_given_to(self, role: Role) -> bool {
        use Permission::{Administer, Enqueue, View, ViewJob, Work};
        match role {
            Role::Admin => true,
            Role::Operator => !matches!(self, Administer | Work),
            Role::Viewer => matches!(self, View | ViewJob),
            Role::Worker => matches!(self, Work | Enqueue | ViewJob),
            Role::Producer => matches!(self, Enqueue | ViewJob),
        }
    }
}

/// Who sent a request. A handler takes it as an argument.
///
/// Every request that reaches a route has a caller: requests without a valid token are refused before. On a server that
/// needs no tokens the caller is named `loopback` and has the role admin.
#[derive(Debug, Clone)]
pub struct Caller {
    name: String,
    role: Role,
    token: Option<i64>,
}

impl Caller {
    pub(crate) fn with_token(id: i64, name: &str, role: Role) -> Caller {
        Caller { name: format!("token {name}"), role, token: Some(id) }
    }

    /// A program on this machine that sent no token.
    pub(crate) fn loopback() -> Caller {
        Caller { name: "loopback".to_owned(), role: Role::Admin, token: None }
    }

    /// The caller of a gRPC request.
    pub(crate) fn of<T>(request: &tonic::Request<T>) -> Result<Caller, Problem> {
        request.extensions().get::<Caller>().cloned().ok_or_else(no_caller)
    }

    /// The name that the audit log shows: `token` and the token's name, or `loopback`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The role of the caller's token.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The id of the caller's token; `None` for a caller without one.
    pub(crate) fn token(&self) -> Option<i64> {
        self.token
    }

    /// Checks that the caller may do everything that `role` may do: an admin passes every check, an operator also passes
    /// for viewer and producer, a worker for producer.
    ///
    /// # Errors
    /// The code `forbidden`, HTTP status 403. A handler returns it as it is.
    pub fn require(&self, role: Role) -> Result<(), Problem> {
        let needed = Permission::ALL.into_iter().filter(|permission| permission.is_given_to(role));
        let mut missing = needed.filter(|permission| !permission.is_given_to(self.role));
        match missing.next() {
            None => Ok(()),
            Some(_) => Err(Problem::forbidden(format!(
                "`{}` has the role {}, this call needs the role {}",
                self.name,
                self.role.as_str(),
                role.as_str()
            ))),
        }
    }

    /// Checks one permission.
    pub(crate) fn check(&self, permission: Permission) -> Result<(), Problem> {
        if permission.is_given_to(self.role) {
            return Ok(());
        }
        Err(Problem::forbidden(format!(
            "`{}` has the role {}, which does not permit this call",
            self.name,
            self.role.as_str()
        )))
    }

    /// Whether keys, lanes, notes, payloads, metadata, results and error messages of redacted kinds are hidden from this caller.
    pub(crate) fn needs_redaction(&self) -> bool {
        !Permission::Operate.is_given_to(self.role)
    }

    /// The token whose workers this caller may act for; `None`: the workers of every token.
    pub(crate) fn limited_to_token(&self) -> Option<i64> {
        self.token.filter(|_| self.role == Role::Worker)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Caller, Problem> {
        parts.extensions.get::<Caller>().cloned().ok_or_else(no_caller)
    }
}

fn no_caller() -> Problem {
    Problem::unauthenticated(
        "the request was not authenticated: the route is not served by a Pitwheel server",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_includes_the_roles_that_may_do_less() {
        let passes = |role| {
            let caller = Caller::with_token(1, "ci", role);
            Role::ALL.into_iter().filter(move |needed| caller.require(*needed).is_ok()).collect::<Vec<_>>()
        };
        assert_eq!(passes(Role::Admin), Role::ALL);
        assert_eq!(passes(Role::Operator), [Role::Viewer, Role::Operator, Role::Producer]);
        assert_eq!(passes(Role::Worker), [Role::Worker, Role::Producer]);
        assert_eq!(passes(Role::Viewer), [Role::Viewer]);
        assert_eq!(passes(Role::Producer), [Role::Producer]);
    }
}
