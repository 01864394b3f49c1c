//! `pitwheel tokens`: creates, lists and revokes tokens.

use std::time::{Duration, SystemTime};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use pitwheel::{Role, Token};
use pitwheel_server::views::TokenLine;
use serde::Serialize;
use serde_json::json;

use crate::database;
use crate::exit::CommandError;
use crate::output::table::{Column, render};
use crate::output::{print, print_json, print_message};
use crate::settings::Settings;
use crate::time::{parse_span, relative};

#[derive(Debug, Subcommand)]
pub(crate) enum TokensCommand {
    /// Create a token and print its secret. The secret is not stored and never shown again.
    ///
    /// Roles: viewers see jobs, queues and workers; operators can change them; admins can do
    /// everything; workers run and enqueue jobs; producers enqueue jobs.
    ///
    /// Example, for a worker, and for a CI pipeline with a token that expires:
    ///   pitwheel tokens create mailer --role worker > mailer.token
    ///   pitwheel tokens create ci --role producer --expires 30d
    #[command(verbatim_doc_comment)]
    Create(CreateArgs),

    /// List the tokens that are not revoked, without their secrets.
    ///
    /// Example:
    ///   pitwheel tokens list
    #[command(verbatim_doc_comment)]
    List,

    /// Revoke a token. Within two seconds every server refuses it and ends its streams.
    ///
    /// Example:
    ///   pitwheel tokens revoke ci
    #[command(verbatim_doc_comment)]
    Revoke {
        /// The name of the token
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// The name of the token, also shown in the audit log
    name: String,
    /// What the token permits
    #[arg(long, value_parser = PossibleValuesParser::new(Role::ALL.map(Role::as_str)).try_map(|word| word.parse::<Role>()))]
    role: Role,
    /// When it expires, as in 12h or 30d from now [default: never]
    #[arg(long, value_name = "SPAN", value_parser = parse_lifetime)]
    expires: Option<Duration>,
}

/// Parses the lifetime of a token, which must not be zero.
fn parse_lifetime(text: &str) -> Result<Duration, String> {
    let span = parse_span(text)?;
    if span.is_zero() { Err("it must not be zero".to_owned()) } else { Ok(span) }
}

/// A new token with its secret.
#[derive(Debug, Serialize)]
struct CreatedToken {
    #[serde(flatten)]
    token: TokenLine,
    secret: String,
}

pub(crate) async fn run(command: TokensCommand, settings: &Settings) -> anyhow::Result<()> {
    match command {
        TokensCommand::Create(args) => create(&args, settings).await,
        TokensCommand::List => list(settings).await,
        TokensCommand::Revoke { name } => revoke(&name, settings).await,
    }
}

async fn create(args: &CreateArgs, settings: &Settings) -> anyhow::Result<()> {
    let pitwheel = database::open(settings).await?;
    let expires_at = match args.expires {
        Some(span) => Some(database::later(&pitwheel, span).await?),
        None => None,
    };
    let (token, secret) = pitwheel.create_token(&args.name, args.role, expires_at).await?;
    if settings.json() {
        return print_json(&CreatedToken { token: token.into(), secret });
    }
    print(&secret)?;
    print_message(&format!(
        "token `{}` with role {} is created. Store the secret now, it is not shown again. Callers send it as\n  \
           authorization: Bearer SECRET",
        token.name,
        token.role.as_str()
    ));
    Ok(())
}

async fn list(settings: &Settings) -> anyhow::Result<()> {
    let tokens = database::open(settings).await?.tokens().await?;
    if tokens.is_empty() {
        print_message("no tokens yet: create one with `pitwheel tokens create NAME --role ROLE`");
    }
    if settings.json() {
        return print_json(&tokens.into_iter().map(TokenLine::from).collect::<Vec<_>>());
    }
    if tokens.is_empty() {
        return Ok(());
    }
    Ok(print(&table(&tokens, SystemTime::now()))?)
}

fn table(tokens: &[Token], now: SystemTime) -> String {
    let expires = |token: &Token| match token.expires_at {
        Some(at) if at <= now => format!("expired {}", relative(at, now)),
        Some(at) => relative(at, now),
        None => String::new(),
    };
    let columns = vec![
        Column::new("TOKEN", tokens, |token| token.name.clone()).cut(),
        Column::new("ROLE", tokens, |token| token.role.as_str().to_owned()),
        Column::new("CREATED", tokens, |token| relative(token.created_at, now)),
        Column::new("BY", tokens, |token| token.created_by.clone()).cut(),
        Column::new("EXPIRES", tokens, expires).optional(),
    ];
    render(columns)
}

async fn revoke(name: &str, settings: &Settings) -> anyhow::Result<()> {
    if !database::open(settings).await?.revoke_token(name).await? {
        let problem = format!("there is no token `{name}`: see `pitwheel tokens list`");
        return Err(CommandError::not_found(problem).into());
    }
    if settings.json() {
        return print_json(&json!({ "name": name, "revoked": true }));
    }
    print_message(&format!("token `{name}` is revoked: every server refuses it within two seconds"));
    Ok(())
}
