//! Tokens: who may come in from other machines, and what for.

use std::str::FromStr;
use std::time::SystemTime;

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::db;
use crate::error::Error;
use crate::job::check_name;

/// Random bytes of a secret: nobody guesses it, so its plain hash tells nothing either.
const SECRET_BYTES: usize = 32;
/// How a secret starts, so that people and scanners know one when they see it.
const PREFIX: &str = "pitwheel_";

/// What the owner of a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// See jobs, queues, workers and history; payloads of redacted kinds not.
    Viewer,
    /// See everything, enqueue, change jobs, queues and workers.
    Operator,
    /// Everything, tokens and the audit log included.
    Admin,
    /// Run jobs, and enqueue.
    Worker,
    /// Enqueue.
    Producer,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 5] = [Role::Viewer, Role::Operator, Role::Admin, Role::Worker, Role::Producer];

    /// The word used everywhere: tables, CLI, API.
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

/// A token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Its id.
    pub id: i64,
    /// What people call it; one valid token has it at a time.
    pub name: String,
    /// What it is good for.
    pub role: Role,
    /// When it was made.
    pub created_at: SystemTime,
    /// By whom.
    pub created_by: String,
    /// Until when it is good.
    pub expires_at: Option<SystemTime>,
}

/// A token that is good now, as a server knows it.
#[derive(Debug, Clone)]
pub struct TokenHash {
    /// The hash of its secret.
    pub hash: Vec<u8>,
    /// Its id.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// What it is good for.
    pub role: Role,
}

/// Makes a token. The secret is shown this once.
pub(crate) async fn create(
    client: &Client,
    actor: &str,
    name: &str,
    role: Role,
    expires_at: Option<SystemTime>,
) -> Result<(Token, String), Error> {
    check_name("token", name)?;
    let mut bytes = [0; SECRET_BYTES];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| Error::Invalid("this machine gives no random bytes".into()))?;
    let secret: String = bytes.iter().fold(PREFIX.to_owned(), |secret, byte| format!("{secret}{byte:02x}"));
    let params: db::Params = &[
        (&name, Type::TEXT),
        (&role.as_str(), Type::TEXT),
        (&hash(&secret), Type::BYTEA),
        (&expires_at, Type::TIMESTAMPTZ),
        (&actor, Type::TEXT),
    ];
    let rows = db::query(client, include_str!("../sql/create_token.sql"), params).await;
    let rows = rows.map_err(|error| match error {
        Error::Database(refusal) if refusal.refused_with("23505") => {
            Error::Invalid(format!("token `{name}` exists already: revoke it first, or take another name"))
        }
        other => other,
    })?;
    let row = rows.first().ok_or_else(|| Error::Invalid("no token was made".into()))?;
    Ok((token(row)?, secret))
}

/// Whether there was one to revoke.
pub(crate) async fn revoke(client: &Client, actor: &str, name: &str) -> Result<bool, Error> {
    check_name("token", name)?;
    let params: db::Params = &[(&name, Type::TEXT), (&actor, Type::TEXT)];
    let rows = db::query(client, include_str!("../sql/revoke_token.sql"), params).await?;
    Ok(!rows.is_empty())
}

pub(crate) async fn tokens(client: &Client) -> Result<Vec<Token>, Error> {
    let rows = db::query(client, include_str!("../sql/tokens.sql"), &[]).await?;
    rows.iter().map(token).collect()
}

/// The tokens that are good now.
pub async fn token_hashes(client: &Client) -> Result<Vec<TokenHash>, Error> {
    let rows = db::query(client, include_str!("../sql/token_hashes.sql"), &[]).await?;
    let read = rows.iter().map(|row| {
        let role = row.get::<_, &str>("role").parse()?;
        Ok(TokenHash { hash: row.get("hash"), id: row.get("id"), name: row.get("name"), role })
    });
    read.collect()
}

/// What is kept of a secret.
pub fn hash(secret: &str) -> Vec<u8> {
    digest(&SHA256, secret.as_bytes()).as_ref().to_vec()
}

fn token(row: &Row) -> Result<Token, Error> {
    Ok(Token {
        id: row.get("id"),
        name: row.get("name"),
        role: row.get::<_, &str>("role").parse()?,
        created_at: row.get("created_at"),
        created_by: row.get("created_by"),
        expires_at: row.get("expires_at"),
    })
}
