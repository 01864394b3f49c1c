//! Routes that an application adds to the server.

use std::panic::{AssertUnwindSafe, catch_unwind};

use axum::Router;
use utoipa::openapi::{OpenApi, Server};
use utoipa_axum::router::OpenApiRouter;

use crate::error::Error;

/// Adds the routes of an application to `routes`, and their operations to `document`.
///
/// `prefix` is where the paths of `document` are served; `others` are paths of `routes` that it does not describe.
///
/// # Errors
/// If a path, or the name of a schema, is already taken. axum panics then, or keeps the first of the two.
pub(crate) fn add<S: Clone + Send + Sync + 'static>(
    mut routes: Router<S>,
    document: &mut OpenApi,
    (prefix, others): (&str, &[&str]),
    added: Vec<OpenApiRouter>,
) -> Result<Router<S>, Error> {
    let mut taken = matchit::Router::new();
    let described = document.paths.paths.keys().map(|path| format!("{prefix}{path}"));
    for path in described.chain(others.iter().map(|path| (*path).to_owned())) {
        take(&mut taken, path)?;
    }
    for router in added {
        let (router, described) = router.split_for_parts();
        for path in described.paths.paths.keys() {
            take(&mut taken, if path.is_empty() { "/".to_owned() } else { path.clone() })?;
        }
        describe(document, described)?;
        // The server has one answer for unknown paths.
        let router = router.reset_fallback().with_state(());
        // Routes that no document describes cannot be listed: when they clash, axum panics.
        let merge = AssertUnwindSafe(|| routes.clone().merge(router));
        routes = catch_unwind(merge).map_err(|panic| Error::Routes(message(&*panic)))?;
    }
    Ok(routes)
}

/// Takes a path, by the rules of axum's router: `/jobs/{id}` and `/jobs/{job}` are the same path.
fn take(taken: &mut matchit::Router<()>, path: String) -> Result<(), Error> {
    taken.insert(path.clone(), ()).map_err(|error| match error {
        matchit::InsertError::Conflict { with } => {
            Error::Routes(format!("path `{path}` is taken by `{with}`: choose another path"))
        }
        error => Error::Routes(format!("path `{path}` cannot be served: {error}")),
    })
}

/// Adds the operations and schemas of an application to the document.
fn describe(document: &mut OpenApi, mut added: OpenApi) -> Result<(), Error> {
    for (path, item) in &mut added.paths.paths {
        if document.paths.paths.contains_key(path) {
            return Err(Error::Routes(format!(
                "path `{path}` has the name of a path of the API in the OpenAPI document: choose another path"
            )));
        }
        // Paths of the document are relative to its server `/api/v1`; these are not.
        item.servers = Some(vec![Server::new("/")]);
    }
    let schemas = document.components.as_ref().map(|components| &components.schemas);
    for (name, schema) in added.components.iter().flat_map(|components| &components.schemas) {
        if schemas.and_then(|schemas| schemas.get(name)).is_some_and(|taken| taken != schema) {
            return Err(Error::Routes(format!(
                "schema `{name}` is another one in the OpenAPI document: rename yours with `#[schema(as = ...)]`"
            )));
        }
    }
    // Authentication is the same for all paths, and each path has its server.
    (added.servers, added.security) = (None, None);
    document.merge(added);
    Ok(())
}

/// The message of a panic.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("the routes clash with those of the server").to_owned()
}
