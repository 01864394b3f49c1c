//! Tokens as a server checks them.

use std::str::FromStr;
use std::time::Duration;

use ring::digest::{SHA256, digest};

use crate::error::Error;
use crate::postgres::{Sql, query};

/// What a token permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Read jobs, queues, workers and history, except the payloads of redacted kinds.
    Viewer,
    /// Read everything, enqueue, and change jobs, queues and workers.
    Operator,
    /// Everything, including tokens and the audit log.
    Admin,
    /// Run jobs, and enqueue.
    Worker,
    /// Enqueue.
    Producer,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 5] = [Role::Viewer, Role::Operator, Role::Admin, Role::Worker, Role::Producer];

    /// The name used in tables, the CLI and the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
            Role::Worker => "worker",
            Role::Producer => "producer",
        }
    }
}

impl FromStr for Role {
    type Err = Error;

    fn from_str(word: &str) -> Result<Role, Error> {
        let found = Role::ALL.into_iter().find(|role| role.as_str() == word);
        found.ok_or_else(|| {
            Error::Invalid(format!("role `{word}` is not one of viewer, operator, admin, worker, producer"))
        })
    }
}

/// A valid token, as a server checks it.
#[derive(Debug, Clone)]
pub struct TokenHash {
    /// The SHA-256 hash of its secret.
    pub hash: Vec<u8>,
    /// Its id.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// What it permits.
    pub role: Role,
    /// How long after the read it expires; `None`: it does not.
    pub expires_in: Option<Duration>,
}

/// The valid tokens.
pub async fn token_hashes(client: &impl Sql) -> Result<Vec<TokenHash>, Error> {
    let rows = query(client, include_str!("../../sql/engine/token_hashes.sql"), &[]).await?;
    let read = rows.iter().map(|row| {
        let role = row.get::<_, &str>("role").parse()?;
        let expires_in = row.get::<_, Option<f64>>("expires_in").map(Duration::from_secs_f64);
        Ok(TokenHash { hash: row.get("hash"), id: row.get("id"), name: row.get("name"), role, expires_in })
    });
    read.collect()
}

/// The hash of a secret. The secret is random, so a plain hash is enough.
pub fn hash(secret: &str) -> Vec<u8> {
    digest(&SHA256, secret.as_bytes()).as_ref().to_vec()
}
