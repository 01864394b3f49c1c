//! Tokens: create, list, revoke.

use std::time::SystemTime;

use ring::rand::{SecureRandom, SystemRandom};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::engine::token::{Role, hash};
use crate::error::Error;
use crate::job::new_job::check_name;
use crate::postgres::{Params, Sql, query};

/// The random bytes of a secret: too many to guess, so a plain hash of it is safe to store.
const SECRET_BYTES: usize = 32;
/// The start of every secret, by which people and secret scanners recognise it.
const PREFIX: &str = "pitwheel_";

/// A token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Its id.
    pub id: i64,
    /// Its name, unique among the tokens that are not revoked.
    pub name: String,
    /// What it permits.
    pub role: Role,
    /// When it was created.
    pub created_at: SystemTime,
    /// Who created it.
    pub created_by: String,
    /// When it expires; `None`: it does not.
    pub expires_at: Option<SystemTime>,
}

/// Creates a token. Returns its secret, which is not stored.
pub(crate) async fn create(
    client: &impl Sql,
    actor: &str,
    name: &str,
    role: Role,
    expires_at: Option<SystemTime>,
) -> Result<(Token, String), Error> {
    check_name("token", name)?;
    let mut bytes = [0; SECRET_BYTES];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| Error::Invalid("the operating system returned no random bytes".into()))?;
    let secret: String = bytes.iter().fold(PREFIX.to_owned(), |secret, byte| format!("{secret}{byte:02x}"));
    let params: Params = &[
        (&name, Type::TEXT),
        (&role.as_str(), Type::TEXT),
        (&hash(&secret), Type::BYTEA),
        (&expires_at, Type::TIMESTAMPTZ),
        (&actor, Type::TEXT),
    ];
    let rows = query(client, include_str!("../../sql/operate/create_token.sql"), params).await;
    let rows = rows.map_err(|error| match error {
        Error::Database(refusal) if refusal.refused_with("23505") => {
            Error::Invalid(format!("token `{name}` exists already: revoke it first, or take another name"))
        }
        other => other,
    })?;
    let row = rows.first().ok_or_else(|| Error::Invalid("the token was not created".into()))?;
    Ok((token(row)?, secret))
}

/// Returns whether there was such a token.
pub(crate) async fn revoke(client: &impl Sql, actor: &str, name: &str) -> Result<bool, Error> {
    check_name("token", name)?;
    let params: Params = &[(&name, Type::TEXT), (&actor, Type::TEXT)];
    let rows = query(client, include_str!("../../sql/operate/revoke_token.sql"), params).await?;
    Ok(!rows.is_empty())
}

pub(crate) async fn tokens(client: &impl Sql) -> Result<Vec<Token>, Error> {
    let rows = query(client, include_str!("../../sql/operate/tokens.sql"), &[]).await?;
    rows.iter().map(token).collect()
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
